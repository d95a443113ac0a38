#!/usr/bin/env bash
# Measures the module next to a popular lock of Rust, in one run.
set -euo pipefail
cd "$(dirname "$0")/bench"
export CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET
cargo build --quiet --release --locked
exec timeout 600 "$DLOCK_CLIENT_TARGET/release/bench"
