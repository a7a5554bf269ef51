#!/bin/sh
# Packages an existing build as a Debian package, with manual pages and completions.
# Usage: scripts/deb.sh release|dev FOLDER [CARGO DEB OPTION…]   (the cargo profile; where the package goes)
set -eu
cd "$(dirname "$0")/.."
profile=$1
output=$2
shift 2
[ "$profile" = dev ] && built=debug || built=$profile
built=${CARGO_TARGET_DIR:-target}/$built
PATH=$PATH:${CARGO_TARGET_DIR:-target}/tools/bin

rm -rf "$built/package"
mkdir -p "$built/package/man"
"$built/fencegate" man "$built/package/man"
for shell in bash zsh fish; do
    "$built/fencegate" completions "$shell" >"$built/package/$shell"
done
gzip -9n "$built"/package/man/*.1

# Uses the time of the last commit as the build time, so that the same program produces the same package.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}"
export SOURCE_DATE_EPOCH
field() { sed -n "s/^$1 = \"\(.*\)\"$/\1/p" Cargo.toml | head -n 1; }
gzip -9n >"$built/package/changelog.Debian.gz" <<CHANGES
fencegate ($(field version)-1) unstable; urgency=medium

  * The changes are in changelog.gz.

 -- $(field maintainer)  $(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")
CHANGES
gzip -9n <CHANGELOG.md >"$built/package/changelog.gz"
cargo deb --quiet --locked --no-build --profile "$profile" --output "$output" "$@"
