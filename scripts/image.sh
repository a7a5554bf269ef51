#!/bin/sh
# Builds the images `fencegate` and `fencegate-distributed-cron` from existing programs, in seconds.
# Usage: scripts/image.sh release|demo|dev [DOCKER BUILD OPTION…]   (the cargo profile; FENCEGATE_IMAGE and
# FENCEGATE_CRON_IMAGE rename the images, DOCKER the client, and --build-arg DEBIAN=IMAGE replaces the base image)
set -eu
cd "$(dirname "$0")/.."
profile=$1
shift
[ "$profile" = dev ] && built=debug || built=$profile
target=${CARGO_TARGET_DIR:-target}
context=$target/image
docker=${DOCKER:-docker}
version=$("$target/$built/fencegate" --version | cut -d ' ' -f 2)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)

rm -rf "$context"
# Docker's architecture names.
case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac
mkdir -p "$context/$architecture"
for program in fencegate distributed_cron; do
    strip -o "$context/$program" "$target/$built/$program"
    # Copy, because the cache of builders without BuildKit does not see the content of a hard link.
    cp "$context/$program" "$context/$architecture/"
done

image() {
    stage=$1
    name=$2
    shift 2
    $docker build --quiet --file Dockerfile --target "$stage" --tag "$name" \
        --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$revision" \
        "$@" "$context" >/dev/null
    $docker image inspect --format "$name: {{.Size}} bytes" "$name"
}
image from-binary "${FENCEGATE_IMAGE:-fencegate}" "$@"
image distributed_cron-from-binary "${FENCEGATE_CRON_IMAGE:-fencegate-distributed-cron}" "$@"
