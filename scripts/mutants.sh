#!/bin/sh
# Applies each wrong variant in tests/mutants to a copy of the tree, and checks that the simulator finds it.
# Usage: scripts/mutants.sh [--check] [NAME...]   --check: only check that the patches apply.
# MUTANT_SECONDS: time limit for each (180). MUTANT_LINES: number of trace lines to show (10).
set -eu
cd "$(dirname "$0")/.."
# Use a separate folder: in a shared one, cargo would mistake a variant for the program.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants
export CARGO_TARGET_DIR
# Some variants need tens of thousands of histories. Optimization makes them several times faster, and the build 50% slower.
export CARGO_PROFILE_DEV_OPT_LEVEL=1

check=
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
[ $# -gt 0 ] || set -- $(cd tests/mutants && ls | sed 's/\.patch$//')

copy=$(mktemp -d /tmp/fencegate-mutants-XXXXXX)
trap 'rm -rf "$copy"' EXIT
trap 'exit 1' INT TERM HUP
cp -R Cargo.toml Cargo.lock src crates tests benches examples "$copy"

look() {
    FENCEGATE_SIMULATE=${MUTANT_SECONDS:-180} cargo test --locked --quiet --workspace --manifest-path "$copy/Cargo.toml" --test simulation \
        no_history -- --nocapture
}

left=0
for name; do
    mutant=$PWD/tests/mutants/$name.patch
    (cd "$copy" && patch --quiet --strip 1 --forward) <"$mutant" || { echo "$name does not apply" >&2; exit 1; }
    if [ -z "$check" ]; then
        echo "== $name: $(head -n 1 "$mutant")"
        if ! cargo test --locked --quiet --workspace --manifest-path "$copy/Cargo.toml" --test simulation --no-run; then
            left=$((left + 1))
        elif look >"$copy/story" 2>&1; then
            echo "NOT FOUND: $(grep ' histories, ' "$copy/story")"
            left=$((left + 1))
        else
            grep -B "${MUTANT_LINES:-10}" '^FENCEGATE_HISTORY=' "$copy/story" || { tail -n 20 "$copy/story"; left=$((left + 1)); }
        fi
    fi
    (cd "$copy" && patch --quiet --strip 1 --reverse) <"$mutant"
done
[ "$left" = 0 ]
