#!/usr/bin/env bash
# Builds the client and its tests with cargo, and runs them.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET
# A process that waits or holds, for the tests to kill.
cargo build --quiet --locked --example process
# The example in the client's own words.
cargo test --quiet --locked --doc
exec cargo test --quiet --locked --tests "$@"
