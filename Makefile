# `make` alone lists what can be made: the text after `##` is the help, and begins with its group.

SHELL := /bin/bash

PORT   ?= 6379

# Debian's services of the server load nothing that is not below /usr/lib. On macOS nobody may write there.
PREFIX ?= $(if $(filter Darwin,$(shell uname)),/usr/local,/usr)

FUZZ_SECONDS ?= 60

DEPTH ?= 5

MEMCHECK_SECONDS ?= 300
MEMCHECK_SEED    ?= 1

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
MODULE := libdlock.$(if $(filter Darwin,$(shell uname)),dylib,so)
BUILT  := $(TARGET)/release/$(MODULE)
PLACE  := $(PREFIX)/lib/redis/modules

PEERS  := $(TARGET)/peers
BENCH  := DLOCK_BENCH_PYTHON='$(PEERS)/bin/python' cargo run --quiet --release --bin bench -- --results '$(TARGET)/bench'

# The version of a development build ends with the last commit that changed what is built. (Any later one builds the same.)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
ifneq ($(findstring -,$(VERSION)),)
    COMMIT := $(shell git log -1 --abbrev=10 --format=%h -- src engine confirm commands clients/cli Cargo.toml Cargo.lock 2>/dev/null)
    export DLOCK_VERSION := $(VERSION)$(if $(COMMIT),+$(COMMIT))
endif

# The last commits of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0 and 0.5.0, which `make upgrade` updates from.
OLD ?= cd925ff e3db170 c85dd40 c9dbc51 1bc24f8 0b12004

# The oldest compiler that is promised: `rust-version` in Cargo.toml.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1).0

# The second server that the clients' tests run on.
VALKEY ?= $(TARGET)/servers/valkey-9.1/server

# The server that `make run` starts and that the tests use.
export DLOCK_REDIS_SERVER ?= redis-server
export DLOCK_MODULE := $(BUILT)

# Tests with servers wait more than they work.
test check test-servers: export RUST_TEST_THREADS ?= 10

.PHONY: help run test test-engine test-documents demo failover ladder clean
.PHONY: bench bench-check bench-servers bench-peers peers results pictures
.PHONY: msrv deny coverage
.PHONY: check check-long explore fuzz memcheck chaos schedules judge clocks disks rivals clients bench-clients failover-clients lines packages cli observe upgrade
.PHONY: install build deps servers test-servers
.PHONY: deb deb-check dist dist-check container-check group-check

help: ## use: List what can be made
	@for group in use develop prove package; do \
	    echo "$$group"; \
	    sed -n "s/^\([a-z-]*\):.*## $$group: \(.*\)/\1|\2/p" $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-15s %s\n", $$1, $$2 }'; \
	done
	@echo 'More: CONTRIBUTING.md, evidence/README.md'

run: build ## use: Start a server with the module, in the foreground (PORT=6379)
	@integration/run.sh '$(BUILT)' '$(PORT)' $(if $(filter file,$(origin PORT)),or-next)

test: built ## develop: Run all tests
	cargo test

test-engine: ## develop: Run the tests that need no server
	cargo test --package dlock-engine --package dlock-confirm --package dlock-commands --package dlock-conversations

test-documents: ## develop: Run the tests of pages and comments, in seconds
	cargo test --package dlock-documents

demo: build ## use: Sell 6,000 items by 100 clients, with and without locks
	@cargo run --quiet --bin demo

failover: build ## use: Kill a primary under load: who was let in twice
	@cargo run --quiet --bin failover

ladder: build ## use: Break a lock made of SETNX in ten steps
	@cargo run --quiet --bin ladder

bench: build peers ## prove: Measure beside what dlock replaces (QUICK=1: two minutes)
	@$(BENCH) $(if $(QUICK),--quick)

bench-check: build peers ## prove: Fail if a ratio of the quick run has grown
	@$(BENCH) --quick --check

bench-servers: build ## prove: Measure on five servers (QUICK=1: four minutes)
	@integration/servers.sh '$(TARGET)/servers' redis-7.2 redis-8.6 valkey-8.1 valkey-9.1
	@$(BENCH) --servers '$(TARGET)/servers' $(if $(QUICK),--quick)

bench-peers: build ## prove: Measure PostgreSQL, etcd, ZooKeeper, Redisson (QUICK=1: seven minutes)
	@integration/servers.sh '$(TARGET)/servers' redis-8.6 valkey-9.1
	@evidence/peers/install.sh '$(TARGET)/bench-peers/installed'
	@cargo run --quiet --release --manifest-path evidence/peers/Cargo.toml --target-dir '$(TARGET)/bench-peers' -- \
	    --results '$(TARGET)/bench-peers' --installed '$(TARGET)/bench-peers/installed' --servers '$(TARGET)/servers' \
	    $(if $(QUICK),--quick) $(ARGS)

results: ## prove: Put the last full runs into docs/results
	@evidence/results.sh '$(TARGET)' docs/results

pictures: ## develop: Draw the pictures of the documents
	@cargo run --quiet --bin pictures

chaos: build ## prove: Kill, stop, cut off, move servers (QUICK=1: six minutes)
	@cargo run --quiet --release --bin chaos -- \
	    --servers '$(TARGET)/servers' --results '$(TARGET)/chaos' \
	    $(if $(QUICK),--quick --lanes 10) $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory schedules)

schedules: build ## prove: Play the schedules of docs/protocol.md (QUICK=1: two minutes)
	@cargo build --quiet --package dlock --features planted --target-dir '$(TARGET)/planted'
	@cargo run --quiet --bin schedules -- --planted '$(TARGET)/planted/debug/$(MODULE)' \
	    --servers '$(TARGET)/servers' --results '$(TARGET)/schedules$(if $(QUICK),/quick)' $(if $(QUICK),--quick --lanes 8) $(ARGS)

judge: build ## prove: Have Porcupine judge real histories (QUICK=1: three minutes)
	@evidence/judge/run.sh '$(TARGET)/judge' --module '$(BUILT)' --results '$(TARGET)/judge' \
	    $(if $(QUICK),--quick) $(ARGS) '$(DLOCK_REDIS_SERVER)' '$(TARGET)/servers/redis-8.6/server' '$(TARGET)/servers/valkey-9.1/server'

clocks: build ## prove: Step wall clocks under load (three minutes)
	@cargo run --quiet --release --bin clocks -- --results '$(TARGET)/clocks' $(ARGS)

disks: build ## prove: Cut the AOF at any byte (two minutes)
	@cargo run --quiet --release --bin disks -- --results '$(TARGET)/disks' $(ARGS)

rivals: build ## prove: Do the same faults to other locks (QUICK=1: four minutes)
	@evidence/rivals/install.sh '$(TARGET)/rivals'
	@cargo run --quiet --release --bin rivals -- --drivers '$(TARGET)/rivals' --results '$(TARGET)/rivals' $(if $(QUICK),--quick) $(ARGS)

# Ten seconds of a fuzzer do not win back what more optimizing costs.
check: built ## develop: Run what a change must pass: lints, tests, fuzzers
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test
	@CARGO_PROFILE_RELEASE_OPT_LEVEL=1 fuzz/run.sh 10 '$(TARGET)/fuzz'
	@observability/run.sh '$(TARGET)/observability' exporter

coverage: ## develop: Count the lines that tests without a server run
	@tests/coverage/run.py '$(TARGET)/coverage'

msrv: deps ## develop: Check everything with the oldest compiler that is promised
	@rustup toolchain list | grep -q '^$(MSRV)' || rustup toolchain install $(MSRV) --profile minimal
	CARGO_TARGET_DIR='$(TARGET)/msrv' cargo +$(MSRV) check --workspace --all-targets --locked

deny: ## develop: Check licences, sources and known faults of all crates
	@cargo deny --version >/dev/null 2>&1 || { echo 'make deny needs cargo-deny: cargo install --locked cargo-deny' >&2; exit 1; }
	cargo deny --workspace check

check-long: ## prove: Compare the engine with its model, search for two owners
	DLOCK_LONG=1 cargo test --release --test engine -- what_the_model_does every_promise_holds the_exploration_finds
	cargo run --release --bin dlock-protocol -- $(if $(WRITE),--write)

explore: ## prove: Try every sequence of requests and events (DEPTH=5)
	DLOCK_DEPTH=$(DEPTH) cargo test --release --test engine -- --nocapture every_sequence

observe: build ## prove: Test dashboard and alerts with Prometheus
	@observability/run.sh '$(TARGET)/observability'

clients: build ## develop: Run the clients' tests (ONLY=python,rust VALKEY=/path/to/server)
	@test -x '$(VALKEY)' || integration/servers.sh '$(TARGET)/servers' valkey-9.1
	@cargo run --quiet --bin clients -- '$(VALKEY)' $(if $(ONLY),--only '$(ONLY)')

lines: ## develop: Count the clients' lines of code; find import circles
	@python3 clients/lines.py

bench-clients: build ## prove: Measure the clients and their languages' locks (ONLY=python)
	@cargo run --quiet --bin clients -- --bench $(if $(ONLY),--only '$(ONLY)')

failover-clients: build ## prove: Fail over under all clients (ONLY=go QUICK=1)
	@cargo run --quiet --release --bin failover-clients -- --installed '$(TARGET)/clients' --results '$(TARGET)/failover-clients' \
	    $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)') $(ARGS)

packages: ## package: Build the clients' packages (ONLY='python rust')
	@for one in $(or $(ONLY),python node php go java rust); do \
		mkdir -p '$(TARGET)/clients/'$$one; \
		DLOCK_CLIENT_TARGET='$(TARGET)/clients/'$$one clients/$$one/run.sh --package '$(TARGET)/packages' || exit 1; \
	done

cli: ## use: Build the command line, dlock, into target/cli
	@packaging/cli.sh '$(TARGET)/cli'

fuzz: ## prove: Send arbitrary words, effects and values (FUZZ_SECONDS=60)
	@fuzz/run.sh '$(FUZZ_SECONDS)' '$(TARGET)/fuzz'

memcheck: build ## prove: Run tests under valgrind (MEMCHECK_SECONDS=300 MEMCHECK_SEED=1)
	@integration/memcheck/run.sh '$(TARGET)/memcheck' '$(MEMCHECK_SECONDS)' '$(MEMCHECK_SEED)'

upgrade: build ## prove: Update a running system from 0.1.0 to now
	@for old in $(OLD); do integration/upgrade.sh '$(TARGET)/upgrade' "$$old" || exit 1; done

install: ## use: Copy the module to PREFIX/lib/redis/modules (PREFIX=/usr)
	@test -e '$(BUILT)' || $(MAKE) build
	install -d '$(DESTDIR)$(PLACE)'
	install -m 755 '$(BUILT)' '$(DESTDIR)$(PLACE)/$(MODULE)'
	@echo 'To load it, add this line to redis.conf and restart the server:'
	@echo '    loadmodule $(PLACE)/$(MODULE)'
	@case '$(PLACE)/' in /usr/lib/*|/lib/*) ;; *) \
	    for unit in redis-server valkey-server; do \
	        ! grep -qs ^NoExecPaths= "/lib/systemd/system/$$unit.service" || \
	            printf '%s\n' "The service $$unit loads nothing from there, unless you say so by systemctl edit $$unit:" \
	                '    [Service]' '    ExecPaths=$(PLACE)'; \
	    done ;; esac

clean: ## develop: Remove all that was built and fetched
	cargo clean

build: deps ## use: Build the module
	cargo build --release --package dlock

# The module ends with one long step for one core: the tests are built beside it.
.PHONY: built built-tests
built: deps
	@$(MAKE) --no-print-directory --jobs=2 build built-tests

built-tests: deps
	cargo test --no-run

deb: deps ## package: Make a Debian package in target/package
	@packaging/deb.sh '$(TARGET)/package'

deb-check: deb ## package: Install that package, load it, remove it (as root)
	@packaging/deb-check.sh "$$(ls -t '$(TARGET)'/package/*.deb | head -n 1)" '$(TARGET)/servers'

dist: deps ## package: Make the source archive and the module in target/dist
	@packaging/dist.sh '$(TARGET)/dist'

dist-check: deps ## package: Make them twice: both must give the same bytes
	@packaging/dist-check.sh '$(TARGET)/dist-check'

container-check: ## package: Build the container, take a lock (podman or docker)
	@packaging/container-check.sh

group-check: build ## package: Run the nodes of the described group, without containers
	@packaging/group/check.sh '$(BUILT)' '$(TARGET)/group'

servers: ## develop: Fetch other servers (SERVERS='redis-8.0 valkey-9.1')
	@integration/servers.sh '$(TARGET)/servers' $(SERVERS)

test-servers: build ## develop: Run the server tests on each fetched server (SERVERS=…)
	@integration/test-servers.sh '$(TARGET)/servers' $(SERVERS)

# The Python libraries that the benchmark compares with.
peers:
	@evidence/bench/peers/install.sh '$(PEERS)'

# Installs what is missing on a fresh machine; says and does nothing when all is there.
deps:
	@integration/deps.sh
