#!/bin/sh
# Builds a crate outside the workspace that depends on the leader library with leases in PostgreSQL alone, as a user's crate
# would, without protoc. Fails when the library needs another crate than these and their dependencies.
set -eu
cd "$(dirname "$0")/.."

allowed="nix thiserror tokio tokio-postgres tracing"
needed=$(cargo tree --locked --package fencegate-leader --edges no-dev --depth 1 --prefix none | sed '1d; s/ .*//' | xargs)
if [ "$needed" != "$allowed" ]; then
    echo "the leader library should need: $allowed; it needs: $needed" >&2
    exit 1
fi

user=$(mktemp -d /tmp/fencegate-user-XXXXXX)
trap 'rm -rf "$user"' EXIT
trap 'exit 1' INT TERM HUP
mkdir "$user/src"
cp Cargo.lock "$user"
cat >"$user/Cargo.toml" <<END
[package]
name = "user"
edition = "2024"

[dependencies]
fencegate-leader = { path = "$PWD/crates/leader", default-features = false, features = ["postgres"] }
tokio-postgres = { version = "0.7", default-features = false, features = ["runtime"] }
END
cat >"$user/src/lib.rs" <<'END'
use fencegate_leader::{Leases, Leadership};
use tokio_postgres::{Config, NoTls};

pub type Client = Leases<(Config, NoTls)>;

pub fn token(leadership: &Leadership) -> i64 {
    leadership.token()
}
END
began=$(date +%s)
PROTOC=/nonexistent CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/leader_alone" \
    cargo build --quiet --offline --manifest-path "$user/Cargo.toml"
echo "the leader library alone, with leases in PostgreSQL: built in $(($(date +%s) - began)) s"
