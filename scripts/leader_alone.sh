#!/bin/sh
# Builds a crate outside the workspace, like a user's, that uses the leader library with leases in PostgreSQL only, without
# protoc. Fails if the library needs any crate other than these and their dependencies.
set -eu
cd "$(dirname "$0")/.."

allowed="futures-core nix thiserror tokio tokio-postgres tracing"
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
END
cat >"$user/src/lib.rs" <<'END'
use fencegate_leader::{BuildError, Election, Lost};
use std::time::Duration;

pub fn election(url: &str) -> Result<Election, BuildError> {
    Election::postgres(url).name("cron").ttl(Duration::from_secs(10)).build()
}

pub async fn token(election: &Election) -> Result<i64, Box<dyn std::error::Error>> {
    let leadership = election.campaign().await?;
    let token: Result<i64, Lost> = leadership.run(async { leadership.token().get() }).await;
    Ok(token?)
}
END
began=$(date +%s)
PROTOC=/nonexistent CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/leader_alone" \
    cargo build --quiet --offline --manifest-path "$user/Cargo.toml"
echo "the leader library alone, with leases in PostgreSQL: built in $(($(date +%s) - began)) s"
