# What a user runs. Each target does its own set-up: see scripts/setup.sh.

EXAMPLES = distributed_cron dispatch_leader blue_green_scheduler job_queue
.PHONY: build deb demo examples $(EXAMPLES) test docs proof soak simulate mutants torture drivers compat clients lint deny bench instructions micro failover renewals guard definitions

build:
	@scripts/setup.sh demo
	cargo build --release --locked

# target/debian/fencegate_….deb: the program, its unit, user, settings, manual pages and completions.
deb:
	@scripts/setup.sh deb
	cargo build --release --locked
	@scripts/deb.sh release target/debian

# A throwaway Postgres, the proxy and two leaders: the zombie's write lands without the proxy, not with it.
demo:
	@scripts/setup.sh demo
	@cargo build --profile demo --locked --quiet
	@target/demo/fencegate demo --events target/demo.jsonl
	@target/demo/fencegate timeline target/demo.jsonl > target/timeline.svg
	@echo "target/timeline.svg is a picture of the last scene."

# The program, as `make build` leaves it, and others that run beside it.
BESIDE = cargo build --locked --quiet --package fencegate --package fencegate-examples --package fencegate-benches --bin fencegate

# The programs of examples/, each beside servers of its own: without a fence, with it, and what that proves.
examples: $(EXAMPLES)
$(EXAMPLES):
	@scripts/setup.sh examples
	@$(BESIDE) --profile demo --bin stage --bin distributed_cron --bin job_queue
	@target/demo/stage --timeline target/$@.svg examples/$@/policy.yaml examples/$@/schema.sql -- examples/$@/show.py

# Every guarantee, in a few minutes and without the network; a little of each random suite. Without optimization: the
# tests wait for servers, not for our code, and it builds in half the time.
test:
	@scripts/setup.sh test
	@/usr/bin/python3 proof/protocol.py
	@scripts/mutants.sh --check
	@scripts/tests.sh --test behaviour --lib --test simulation

# The documentation as a site with a search: target/docs/index.html.
docs:
	@scripts/setup.sh docs
	@scripts/docs.py "$${CARGO_TARGET_DIR:-target}/tools/bin/mdbook"

# The inductive proof of the protocol, and for each precondition the story of what happens without it; STORY=no_drain tells one.
STORY = --stories
proof:
	@scripts/setup.sh proof
	@/usr/bin/python3 proof/protocol.py $(STORY)

# The rest: random suites at LENGTH percent of their full length, the model, bounds of memory, drivers and frameworks,
# PostgreSQL 18, floods, the demo, the README. Floods run alone: they measure the capacity that they leave to others.
LENGTH = 100
soak:
	@scripts/setup.sh soak
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test soak -- --skip abuse:: --skip torture::
	@RUST_TEST_THREADS=1 scripts/tests.sh --test soak -- abuse::
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test behaviour -- --ignored --skip waits_to_be_killed
	@FENCEGATE_TORTURE=60 RUST_TEST_THREADS=1 scripts/tests.sh --test soak -- torture::
	@FENCEGATE_SIMULATE=90 FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --lib --test simulation --test model --test memory -- --include-ignored \
		--skip in_this_process no_history the_protocol_holds without_any_of_its_protections buffers:: keys:: sessions::
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test behaviour -- decoders:: fence::store:: keys:: leaders:: parameter:: prepared:: rejections:: robustness:: search_path:: transparency::
	@$(MAKE) --no-print-directory instructions

# Histories of the simulated world, from SEED on, for HOURS. One that breaks a promise is told as a story; HISTORY=n tells one.
SEED = 1
HOURS = 1
simulate:
	@scripts/setup.sh test
	@FENCEGATE_SEED=$(SEED) FENCEGATE_SIMULATE=$$(($(HOURS) * 3600)) $(if $(HISTORY),FENCEGATE_HISTORY=$(HISTORY)) \
		cargo test --locked --quiet --profile simulate --test simulation no_history -- --nocapture

# Whether the simulator finds the wrong variants of tests/mutants, and after how many histories.
mutants:
	@scripts/setup.sh test
	@scripts/mutants.sh

# Real servers, proxies and leaders, with faults from SEED on, for MINUTES; judged by the server's log of commits.
MINUTES = 2
torture:
	@scripts/setup.sh soak
	@FENCEGATE_SEED=$(SEED) FENCEGATE_TORTURE=$$(($(MINUTES) * 60)) RUST_TEST_THREADS=1 \
		scripts/tests.sh --test soak -- torture:: --nocapture

# The same steps with every driver and pool that docs/reference/compatibility.md names, also with those that need more to be installed.
drivers:
	@scripts/setup.sh drivers
	cargo test --locked --test soak -- --include-ignored drivers:: of_pgjdbc

# PostgreSQL's own regression tests: the same through the proxy as without it, byte for byte.
compat:
	@scripts/setup.sh compat
	cargo test --locked --test soak -- --include-ignored compat:: --nocapture --test-threads 1

# The packages of clients/: built, installed into fresh environments, and tested there beside real servers.
clients:
	@scripts/setup.sh clients
	@cargo build --locked --quiet
	@FENCEGATE_BINARY=$${CARGO_TARGET_DIR:-target}/debug/fencegate scripts/clients.sh

lint:
	@scripts/setup.sh demo
	cargo fmt --check --all
	cargo fmt --check --manifest-path tests/soak/drivers/sqlx/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@scripts/leader_alone.sh
	@scripts/english.sh

# Licences, known holes and sources of all that is built in, by deny.toml. Needs cargo-deny; fetches the list of known holes.
deny:
	cargo deny --locked check

# What the proxy costs, beside HAProxy and PgBouncer: writes docs/reference/performance.md and its picture. SECONDS: of each run; with
# one second, all of it takes less than five minutes.
SECONDS = 5
ROUNDS = $(if $(filter 1,$(SECONDS)),3,5)
bench:
	@scripts/setup.sh bench
	@cargo build --release --locked --quiet
	@python3 scripts/bench/bench.py $${CARGO_TARGET_DIR:-target}/release/fencegate $(SECONDS) $(ROUNDS)

# What fixed conversations cost the proxy in instructions, against benches/instructions.txt; WRITE=--write writes that anew.
# The program that the tests use is measured: to build an optimized one takes minutes, and both cost more by the same changes.
instructions:
	@scripts/setup.sh instructions
	@cargo bench --locked --quiet --workspace --profile dev --bench instructions -- $(WRITE)

# What single steps cost, in nanoseconds: frames, verdicts, and a transaction in the session's machine. About a minute, once it is built,
# which takes as long as a release: it needs dependencies of the tests.
micro:
	@scripts/setup.sh demo
	@cargo bench --locked --quiet --package fencegate-benches --bench micro

# How long a follower takes to write after its leader's crash, stall or resignation, against the TTL: with etcd, or with
# COORDINATOR=postgres by leases, and then also how these do under contention, after a crash of the server, and as locks of jobs.
COORDINATOR = etcd
failover:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin failover --bin leases
	@target/release/failover $(COORDINATOR) 20
	$(if $(filter postgres,$(COORDINATOR)),@target/release/leases)

# What many leases cost, with one for each election and with one for all: a table.
renewals:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin renewals
	@target/release/renewals

# What the guard inside the database costs, a statement and a row.
guard:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin guard
	@target/release/guard

# Cost of DDL where hundreds and thousands of tables are fenced: a reading of the catalog, and the writes that wait for it.
definitions:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin definitions
	@target/release/definitions
