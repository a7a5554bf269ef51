# What a user runs. Each target does its own set-up: see scripts/setup.sh.

.PHONY: build demo test lint bench

build:
	@scripts/setup.sh demo
	cargo build --release --locked

# A throwaway Postgres, the proxy and two leaders: the zombie's write lands without the proxy, not with it.
demo:
	@scripts/setup.sh demo
	@cargo build --release --locked --quiet
	@target/release/fencegate demo

# Without optimisation: the tests wait for servers, not for our code, and it builds in half the time.
test:
	@scripts/setup.sh test
	cargo test --locked

lint:
	@scripts/setup.sh demo
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

# What the proxy costs, with pgbench on this machine.
bench:
	@scripts/setup.sh demo
	@cargo build --release --locked --quiet
	@scripts/bench.sh
