# `make` alone lists what can be made: the text after `##` is the help.

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

# The last commits of 0.1.0, 0.2.0, 0.3.0 and 0.3.1, which `make upgrade` updates from.
OLD ?= cd925ff e3db170 c85dd40 c9dbc51

# The oldest compiler that is promised: `rust-version` in Cargo.toml.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1).0

# The second server that the clients' tests run on.
VALKEY ?= $(TARGET)/servers/valkey-9.1/server

# The server that `make run` starts and that the tests use.
export DLOCK_REDIS_SERVER ?= redis-server
export DLOCK_MODULE := $(BUILT)

# Tests with servers wait more than they work.
test check test-servers: export RUST_TEST_THREADS ?= 10

.PHONY: help run test test-engine demo failover ladder clean
.PHONY: bench bench-check bench-servers bench-peers peers results pictures
.PHONY: msrv deny
.PHONY: check check-long explore fuzz memcheck chaos schedules judge clocks disks rivals clients bench-clients lines packages cli observe upgrade
.PHONY: install build deps servers test-servers
.PHONY: deb deb-check dist dist-check container-check group-check

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "make %-13s %s\n", $$1, $$2 }'

run: build ## Start a server with the module in the foreground (PORT=6379)
	@integration/run.sh '$(BUILT)' '$(PORT)' $(if $(filter file,$(origin PORT)),or-next)

test: built ## Run all tests
	cargo test

test-engine: ## Run the tests that need no server: the engine, the rule of confirmations, the commands, the conversations
	cargo test --package dlock-engine --package dlock-confirm --package dlock-commands --package dlock-conversations

demo: build ## The shop: 6,000 orders by 100 clients without a lock, with a client-side lock, with dlock, with GUARD; then a rush of 50
	@cargo run --quiet --bin demo

failover: build ## A primary is killed under load, with and without dlock.replicas: who was let in twice, how long nobody was
	@cargo run --quiet --bin failover

ladder: build ## Why a lock made of SETNX is not one: eight steps with kill -9, then the same with dlock, in half a minute
	@cargo run --quiet --bin ladder

bench: build peers ## Measure dlock side by side with what it replaces, in up to twenty minutes (QUICK=1: two)
	@$(BENCH) $(if $(QUICK),--quick)

bench-check: build peers ## Fail when a ratio of the quick run has grown by more than its tolerance since the committed full one
	@$(BENCH) --quick --check

bench-servers: build ## Measure pairs, hand-overs and memory on five server versions, in up to twelve minutes (QUICK=1: four)
	@integration/servers.sh '$(TARGET)/servers' redis-7.2 redis-8.6 valkey-8.1 valkey-9.1
	@$(BENCH) --servers '$(TARGET)/servers' $(if $(QUICK),--quick)

bench-peers: build ## Measure dlock and PostgreSQL, etcd, ZooKeeper, Redisson, in half an hour (QUICK=1: seven minutes; ARGS='--help')
	@integration/servers.sh '$(TARGET)/servers' redis-8.6 valkey-9.1
	@evidence/peers/install.sh '$(TARGET)/bench-peers/installed'
	@cargo run --quiet --release --manifest-path evidence/peers/Cargo.toml --target-dir '$(TARGET)/bench-peers' -- \
	    --results '$(TARGET)/bench-peers' --installed '$(TARGET)/bench-peers/installed' --servers '$(TARGET)/servers' \
	    $(if $(QUICK),--quick) $(ARGS)

results: ## Put tables and plots of the last full runs where the documents show them
	@evidence/results.sh '$(TARGET)' docs/results

pictures: ## Draw the pictures of the documents from their texts in docs/pictures
	@cargo run --quiet --bin pictures

chaos: build ## Kill, stop, cut off, move servers under Sentinel and in a cluster, judge, then schedules (QUICK=1: six minutes; ARGS='--help')
	@cargo run --quiet --release --bin chaos -- \
	    --servers '$(TARGET)/servers' --results '$(TARGET)/chaos' \
	    $(if $(QUICK),--quick --lanes 10 --histories '$(TARGET)/chaos/histories') $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory schedules)

schedules: build ## Play the schedules of docs/protocol.md on real servers, with all clauses and without those they break (QUICK=1: two minutes)
	@cargo build --quiet --package dlock --features planted --target-dir '$(TARGET)/planted'
	@cargo run --quiet --bin schedules -- --planted '$(TARGET)/planted/debug/$(MODULE)' \
	    --servers '$(TARGET)/servers' --results '$(TARGET)/schedules$(if $(QUICK),/quick)' $(if $(QUICK),--quick --lanes 8) $(ARGS)

judge: build ## Have Porcupine judge histories from real servers; planted faults must be found (QUICK=1: three minutes)
	@evidence/judge/run.sh '$(TARGET)/judge' --module '$(BUILT)' --results '$(TARGET)/judge' --histories '$(TARGET)/chaos/histories' \
	    $(if $(QUICK),--quick) $(ARGS) '$(DLOCK_REDIS_SERVER)' '$(TARGET)/servers/redis-8.6/server' '$(TARGET)/servers/valkey-9.1/server'

clocks: build ## Step the wall clocks of a primary and its replicas under load: how often two owners, for how long (three minutes)
	@cargo run --quiet --release --bin clocks -- --results '$(TARGET)/clocks' $(ARGS)

disks: build ## Cut the AOF at any byte, and lose the newest of it under load: what is left, how often two owners (two minutes)
	@cargo run --quiet --release --bin disks -- --results '$(TARGET)/disks' $(ARGS)

rivals: build ## Kill, stop, stall and cut off the primary of Redisson, redlock, SET NX with WAIT and dlock, in 15 minutes (QUICK=1: four)
	@evidence/rivals/install.sh '$(TARGET)/rivals'
	@cargo run --quiet --release --bin rivals -- --drivers '$(TARGET)/rivals' --results '$(TARGET)/rivals' $(if $(QUICK),--quick) $(ARGS)

check: built ## What a change must pass: formatting, lints, all tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test
	@observability/run.sh '$(TARGET)/observability' exporter

msrv: deps ## Build and check everything with the oldest compiler that is promised, fetched by rustup
	@rustup toolchain list | grep -q '^$(MSRV)' || rustup toolchain install $(MSRV) --profile minimal
	CARGO_TARGET_DIR='$(TARGET)/msrv' cargo +$(MSRV) check --workspace --all-targets --locked

deny: ## Licences, sources and known faults of all crates (needs cargo-deny; a test holds licences and sources without it)
	@cargo deny --version >/dev/null 2>&1 || { echo 'make deny needs cargo-deny: cargo install --locked cargo-deny' >&2; exit 1; }
	cargo deny --workspace check

check-long: ## Hold the engine against its model for all seeds, and search the model of replication for two owners (WRITE=1: into the page)
	DLOCK_LONG=1 cargo test --release --test engine -- what_the_model_does every_promise_holds the_exploration_finds
	cargo run --release --bin dlock-protocol -- $(if $(WRITE),--write)

explore: ## Every sequence of requests and events over three owners and two locks, against the model (DEPTH=5)
	DLOCK_DEPTH=$(DEPTH) cargo test --release --test engine -- --nocapture every_sequence

observe: build ## Test the dashboard with Prometheus and its exporters for Redis, fetched into target/observability
	@observability/run.sh '$(TARGET)/observability'

clients: build ## Run the tests of the clients in all languages (ONLY=python,rust; VALKEY=/path/to/server)
	@test -x '$(VALKEY)' || integration/servers.sh '$(TARGET)/servers' valkey-9.1
	@cargo run --quiet --bin clients -- '$(VALKEY)' $(if $(ONLY),--only '$(ONLY)')

lines: ## Count the clients' lines of code; fail if their files import each other in a circle
	@python3 clients/lines.py

bench-clients: build ## Measure the clients beside the popular locks of their languages (ONLY=python)
	@cargo run --quiet --bin clients -- --bench $(if $(ONLY),--only '$(ONLY)')

packages: ## Build the clients' packages into target/packages (ONLY='python rust')
	@for one in $(or $(ONLY),python node php go java rust); do \
		mkdir -p '$(TARGET)/clients/'$$one; \
		DLOCK_CLIENT_TARGET='$(TARGET)/clients/'$$one clients/$$one/run.sh --package '$(TARGET)/packages' || exit 1; \
	done

cli: ## Build the command line, dlock, into target/cli: one static program, and its manual page
	@packaging/cli.sh '$(TARGET)/cli'

fuzz: ## Let a fuzzer send words, effects and stored values, a minute each (FUZZ_SECONDS=60)
	@fuzz/run.sh '$(FUZZ_SECONDS)' '$(TARGET)/fuzz'

memcheck: build ## Run tests and random commands on a server under valgrind's memcheck (MEMCHECK_SECONDS=300 MEMCHECK_SEED=1)
	@integration/memcheck/run.sh '$(TARGET)/memcheck' '$(MEMCHECK_SECONDS)' '$(MEMCHECK_SEED)'

upgrade: build ## Update a running system from 0.1.0 to 0.3.1, built from the project's history, to the module of now
	@for old in $(OLD); do integration/upgrade.sh '$(TARGET)/upgrade' "$$old" || exit 1; done

install: ## Copy the module to PREFIX/lib/redis/modules (PREFIX=/usr, on macOS /usr/local)
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

clean: ## Remove all that was built and fetched
	cargo clean

build: deps ## Build the module
	cargo build --release --package dlock

# The module ends with one long step for one core: the tests are built beside it.
.PHONY: built built-tests
built: deps
	@$(MAKE) --no-print-directory --jobs=2 build built-tests

built-tests: deps
	cargo test --no-run

deb: deps ## Make a Debian package in target/package
	@packaging/deb.sh '$(TARGET)/package'

deb-check: deb ## Install the package, have Redis and Valkey load it, remove it (as root)
	@packaging/deb-check.sh "$$(ls -t '$(TARGET)'/package/*.deb | head -n 1)" '$(TARGET)/servers'

dist: deps ## Make the source archive and the module, with their SHA-256 sums, in target/dist
	@packaging/dist.sh '$(TARGET)/dist'

dist-check: deps ## Do so twice, at two places: both must give the same bytes
	@packaging/dist-check.sh '$(TARGET)/dist-check'

container-check: ## Build the container and take a lock in it (needs podman or docker)
	@packaging/container-check.sh

group-check: build ## Check the descriptions of a group for Compose and Kubernetes, and run its nodes on this machine, without containers
	@packaging/group/check.sh '$(BUILT)' '$(TARGET)/group'

servers: ## Fetch other versions of Redis and Valkey into target/servers (SERVERS='redis-8.0 valkey-9.1')
	@integration/servers.sh '$(TARGET)/servers' $(SERVERS)

test-servers: build ## Run the integration tests against each fetched server (SERVERS='redis-8.0 valkey-9.1')
	@integration/test-servers.sh '$(TARGET)/servers' $(SERVERS)

# The Python libraries that the benchmark compares with.
peers:
	@evidence/bench/peers/install.sh '$(PEERS)'

# Installs what is missing on a fresh machine; says and does nothing when all is there.
deps:
	@integration/deps.sh
