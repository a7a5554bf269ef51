#!/bin/sh
# Fails when the leader library, built alone, needs another crate than these and what they bring along.
set -eu
cd "$(dirname "$0")/.."

allowed="etcd-client nix thiserror tokio tokio-postgres tracing"
needed=$(cargo tree --locked --no-default-features --features leader --edges no-dev --depth 1 --prefix none | sed '1d; s/ .*//' | xargs)
if [ "$needed" != "$allowed" ]; then
    echo "the leader library is to need: $allowed; it needs: $needed" >&2
    exit 1
fi
