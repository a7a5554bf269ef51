# A small image of fencegate: `docker build -t fencegate .`. With the cron of examples/distributed_cron:
# `docker build --target distributed_cron .`. `scripts/image.sh` builds both from existing binaries, in seconds.
# For several architectures: `docker buildx build --platform linux/amd64,linux/arm64 .`. docs/run/install.md lists what
# is tested.

# The digests are those of indexes with an image for each architecture. A local image name works as well.
ARG DEBIAN=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
ARG RUST=rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1

# Files of Debian that the programs need: the C library, and certificates for etcd and servers that public authorities sign.
# status.d tells scanners which packages these are.
FROM ${DEBIAN} AS files
RUN [ -e /etc/ssl/certs/ca-certificates.crt ] || { apt-get update && apt-get install -y --no-install-recommends ca-certificates; }
RUN mkdir -p /files/etc /files/var/lib/dpkg/status.d \
    && cp --parents -L /lib*/ld-linux-*.so.? /lib/*-linux-gnu/libc.so.6 /lib/*-linux-gnu/libm.so.6 \
        /lib/*-linux-gnu/libgcc_s.so.1 /etc/ssl/certs/ca-certificates.crt /etc/debian_version /files \
    && for package in libc6 libgcc-s1 ca-certificates; do dpkg -s $package >/files/var/lib/dpkg/status.d/$package; done \
    && echo "fencegate:x:10001:10001::/nonexistent:/sbin/nologin" >/files/etc/passwd \
    && echo "hosts: files dns" >/files/etc/nsswitch.conf

FROM scratch AS base
COPY --from=files /files /
USER 10001:10001
WORKDIR /
LABEL org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.vendor="The fencegate authors"

# The proxy writes no files, so the root file system may be read-only.
FROM base AS proxy
LABEL org.opencontainers.image.title="fencegate" \
    org.opencontainers.image.description="A fencing-aware proxy for PostgreSQL"
ENV FENCEGATE_LISTEN=0.0.0.0:6432 \
    FENCEGATE_HTTP=0.0.0.0:9432 \
    FENCEGATE_POLICIES=/etc/fencegate/policies
EXPOSE 6432 9432
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["fencegate", "healthcheck"]
ENTRYPOINT ["fencegate"]
CMD ["proxy"]

FROM base AS cron
LABEL org.opencontainers.image.title="distributed_cron"
ENTRYPOINT ["distributed_cron"]

# Copies binaries from the context, which has a folder for each architecture. Builders without BuildKit do not set TARGETARCH, and
# use the files beside these folders.
FROM proxy AS from-binary
ARG TARGETARCH
COPY ./${TARGETARCH}/fencegate /usr/local/bin/

FROM cron AS distributed_cron-from-binary
ARG TARGETARCH
COPY ./${TARGETARCH}/distributed_cron /usr/local/bin/

# cargo-auditable records the dependencies in the programs, where scanners find them.
FROM ${RUST} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
RUN cargo install --locked cargo-auditable --version 0.7.7
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
COPY benches benches
COPY examples examples
RUN cargo auditable build --release --locked --package fencegate --package fencegate-examples --bin fencegate --bin distributed_cron \
    && strip target/release/fencegate target/release/distributed_cron

FROM cron AS distributed_cron
COPY --from=build /build/target/release/distributed_cron /usr/local/bin/

# The default target of `docker build`.
FROM proxy AS fencegate
COPY --from=build /build/target/release/fencegate /usr/local/bin/
