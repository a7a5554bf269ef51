# fencegate in a small image: `docker build -t fencegate .`; with the cron of examples/distributed_cron:
# `docker build --target distributed_cron .`. What is tested of it, and what is not: docs/run/install.md.

FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
COPY benches benches
COPY examples examples
RUN cargo build --release --locked --package fencegate --package fencegate-examples --bin fencegate --bin distributed_cron

# The programs are linked to the C library of the same Debian.
FROM debian:bookworm-slim AS base
# For etcd and servers whose certificates the system's authorities sign.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home fencegate
USER 10001
WORKDIR /

FROM base AS distributed_cron
COPY --from=build /build/target/release/distributed_cron /usr/local/bin/
ENTRYPOINT ["distributed_cron"]

# The last stage is what `docker build` makes. It writes no file, so that the root file system may be read-only.
FROM base AS fencegate
COPY --from=build /build/target/release/fencegate /usr/local/bin/
ENV FENCEGATE_LISTEN=0.0.0.0:6432 \
    FENCEGATE_HTTP=0.0.0.0:9432 \
    FENCEGATE_POLICIES=/etc/fencegate/policies
EXPOSE 6432 9432
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["fencegate", "healthcheck"]
ENTRYPOINT ["fencegate"]
CMD ["proxy"]
