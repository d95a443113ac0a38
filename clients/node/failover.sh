#!/usr/bin/env bash
# Runs the program of a run of failovers: `failover.sh ioredis` or `failover.sh node-redis`. `failover.sh --install` builds and
# installs what it needs, and prints only what has failed.
set -euo pipefail
cd "$(dirname "$0")"
project=$DLOCK_CLIENT_TARGET/failover
[ "${1:-}" = --install ] || exec node "$project/failover.mjs" "$@"

mkdir -p "$project"
log=$DLOCK_CLIENT_TARGET/failover.log
exec 3>&2 >"$log" 2>&1
trap '[ $? -eq 0 ] || cat "$log" >&3' EXIT
rm -rf "$DLOCK_CLIENT_TARGET/failover-packages"
./run.sh --package "$DLOCK_CLIENT_TARGET/failover-packages"
cp failover.mjs .npmrc "$project"
cd "$project"
[ -e package.json ] || echo '{ "private": true, "type": "module" }' >package.json
npm install --loglevel=error --no-save --force ioredis@6.0.0 redis@6.3.1 "$DLOCK_CLIENT_TARGET"/failover-packages/*.tgz
