#!/usr/bin/env bash
# Runs the program of a run of failovers: `failover.sh phpredis`. `failover.sh --install` builds and installs what it needs, and
# prints only what has failed.
set -euo pipefail
cd "$(dirname "$0")"
[ "${1:-}" = --install ] || exec php failover.php "$@"

mkdir -p "$DLOCK_CLIENT_TARGET"
log=$DLOCK_CLIENT_TARGET/failover.log
./run.sh --project "$DLOCK_CLIENT_TARGET/failover" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
