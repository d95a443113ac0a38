#!/usr/bin/env bash
# Runs one client of a run of failovers. `failover.sh --install` builds it.
set -euo pipefail
if [ "$1" = --install ]; then
    cd "$(dirname "$0")/failover"
    export CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET
    exec cargo build --quiet --release --locked
fi
exec "$DLOCK_CLIENT_TARGET/release/failover"
