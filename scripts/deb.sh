#!/bin/sh
# Builds the Debian package of a program that is built, with its manual pages and completions.
# Usage: scripts/deb.sh release|dev FOLDER   (the cargo profile; where the package goes)
set -eu
cd "$(dirname "$0")/.."
profile=$1
[ "$profile" = dev ] && built=debug || built=$profile
built=${CARGO_TARGET_DIR:-target}/$built
PATH=$PATH:${CARGO_TARGET_DIR:-target}/tools/bin

rm -rf "$built/package"
mkdir -p "$built/package/man"
"$built/fencegate" man "$built/package/man"
for shell in bash zsh fish; do
    "$built/fencegate" completions "$shell" >"$built/package/$shell"
done
cargo deb --quiet --locked --no-build --profile "$profile" --output "$2"
