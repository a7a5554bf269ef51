# Commands for users and developers. Each target runs scripts/setup.sh for what it needs.

EXAMPLES = distributed_cron dispatch_leader blue_green_scheduler job_queue
.PHONY: build deb demo examples $(EXAMPLES) test docs proof soak simulate mutants torture drivers compat clients lint deny bench instructions micro failover renewals guard definitions

build:
	@scripts/setup.sh demo
	cargo build --release --locked

# Builds target/debian/fencegate_….deb: the program, its unit, user, settings, manual pages and completions.
deb:
	@scripts/setup.sh deb
	cargo build --release --locked
	@scripts/deb.sh release target/debian

# A temporary PostgreSQL, the proxy and two leaders: the proxy rejects the deposed leader's write; without it, the write
# succeeds.
demo:
	@scripts/setup.sh demo
	@cargo build --profile demo --locked --quiet
	@target/demo/fencegate demo --events target/demo.jsonl
	@target/demo/fencegate timeline target/demo.jsonl > target/timeline.svg
	@echo "target/timeline.svg is a picture of the last scene."

# Builds the program together with programs that start it from the same folder.
BESIDE = cargo build --locked --quiet --package fencegate --package fencegate-examples --package fencegate-benches --bin fencegate

# Runs the programs of examples/, each with its own servers, without a fence and with it, and checks their claims.
examples: $(EXAMPLES)
$(EXAMPLES):
	@scripts/setup.sh examples
	@$(BESIDE) --profile demo --bin stage --bin distributed_cron --bin job_queue
	@target/demo/stage --timeline target/$@.svg examples/$@/policy.yaml examples/$@/schema.sql -- examples/$@/show.py

# Tests every guarantee in a few minutes and without the network, and runs each random suite briefly. Not optimized,
# because the tests mostly wait for servers, and the build takes half the time.
test:
	@scripts/setup.sh test
	@/usr/bin/python3 proof/protocol.py
	@scripts/mutants.sh --check
	@scripts/tests.sh --test behaviour --lib --test simulation

# Builds the documentation as a searchable site: target/docs/index.html.
docs:
	@scripts/setup.sh docs
	@scripts/docs.py "$${CARGO_TARGET_DIR:-target}/tools/bin/mdbook"

# Checks the inductive proof of the protocol. For each precondition, prints what happens without it; STORY=no_drain prints one.
STORY = --stories
proof:
	@scripts/setup.sh proof
	@/usr/bin/python3 proof/protocol.py $(STORY)

# All other tests: random suites at LENGTH percent of their full length, the model, memory bounds, drivers and frameworks,
# PostgreSQL 18, floods, the demo and the README. Floods run alone, because they measure the remaining capacity.
LENGTH = 100
soak:
	@scripts/setup.sh soak
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test soak -- --skip abuse:: --skip torture::
	@RUST_TEST_THREADS=1 scripts/tests.sh --test soak -- abuse::
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test behaviour -- --ignored --skip waits_to_be_killed
	@FENCEGATE_TORTURE=$(LENGTH) RUST_TEST_THREADS=1 scripts/tests.sh --test soak -- torture::
	@FENCEGATE_SIMULATE=$$(($(LENGTH) * 2)) FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --lib --test simulation --test model --test memory -- --include-ignored \
		--skip in_this_process no_history the_protocol_holds without_any_of_its_protections buffers:: keys:: sessions:: shapes::
	@FENCEGATE_LENGTH=$(LENGTH) scripts/tests.sh --test behaviour -- decoders:: fence::store:: keys:: leaders:: parameter:: prepared:: rejections:: robustness:: search_path:: transparency::
	@$(MAKE) --no-print-directory instructions

# Runs simulated histories for HOURS, starting at SEED. Prints the trace of a history that breaks a promise, or of HISTORY=n.
SEED = 1
HOURS = 1
simulate:
	@scripts/setup.sh test
	@FENCEGATE_SEED=$(SEED) FENCEGATE_SIMULATE=$$(($(HOURS) * 3600)) $(if $(HISTORY),FENCEGATE_HISTORY=$(HISTORY)) \
		cargo test --locked --quiet --profile simulate --test simulation no_history -- --nocapture

# Checks that the simulator finds the wrong variants in tests/mutants, and after how many histories.
mutants:
	@scripts/setup.sh test
	@scripts/mutants.sh

# Runs real servers, proxies and leaders with random faults (SEED) for MINUTES, and checks the server's log of commits.
MINUTES = 2
torture:
	@scripts/setup.sh soak
	@FENCEGATE_SEED=$(SEED) FENCEGATE_TORTURE=$$(($(MINUTES) * 60)) RUST_TEST_THREADS=1 \
		scripts/tests.sh --test soak -- torture:: --nocapture

# Runs the same steps with every driver and pool in docs/reference/compatibility.md, including those that `make soak` omits.
drivers:
	@scripts/setup.sh drivers
	cargo test --locked --test soak -- --include-ignored drivers:: of_pgjdbc

# Runs PostgreSQL's own regression tests: the output through the proxy must be the same, byte for byte.
compat:
	@scripts/setup.sh compat
	cargo test --locked --test soak -- --include-ignored compat:: --nocapture --test-threads 1

# Builds the packages of clients/, installs them into new environments, and tests them there with real servers.
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

# Checks licenses, advisories and sources of all dependencies, by deny.toml. Needs cargo-deny; downloads the advisories.
deny:
	cargo deny --locked check

# Compares the proxy with HAProxy and PgBouncer: throughput, logins, TLS, COPY, texts that never repeat, memory. Writes
# docs/reference/performance.md and its picture. SECONDS is the duration of each run. With one second, the target takes less
# than five minutes.
SECONDS = 5
ROUNDS = $(if $(filter 1,$(SECONDS)),3,5)
bench:
	@scripts/setup.sh bench
	@cargo build --release --locked --quiet
	@python3 scripts/bench/bench.py $${CARGO_TARGET_DIR:-target}/release/fencegate $(SECONDS) $(ROUNDS)

# Counts the proxy's instructions in fixed conversations, and compares them with benches/instructions.txt (WRITE=--write replaces it).
# Measures the program of the tests: an optimized build takes minutes, and shows the same regressions.
instructions:
	@scripts/setup.sh instructions
	@cargo bench --locked --quiet --workspace --profile dev --bench instructions -- $(WRITE)

# Measures single steps in nanoseconds: frames, verdicts, and a transaction in the session's state machine. Takes about a minute.
# The build takes as long as a release build, because it needs dependencies of the tests.
micro:
	@scripts/setup.sh demo
	@cargo bench --locked --quiet --package fencegate-benches --bench micro

# Measures the time from a leader's crash, stall or resignation to the follower's first write, by TTL. Uses etcd, or leases with
# COORDINATOR=postgres, and then also measures leases under contention, after a crash of the server, and as locks for jobs.
COORDINATOR = etcd
failover:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin failover --bin leases
	@target/release/failover $(COORDINATOR) 20
	$(if $(filter postgres,$(COORDINATOR)),@target/release/leases)

# Measures the cost of many leases, with one for each election and with one for all.
renewals:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin renewals
	@target/release/renewals

# Measures the cost of the guard per statement and per row.
guard:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin guard
	@target/release/guard

# Measures DDL with hundreds and thousands of fenced tables: the catalog reading, and the writes that wait for it.
definitions:
	@scripts/setup.sh demo
	@$(BESIDE) --release --bin definitions
	@target/release/definitions
