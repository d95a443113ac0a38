#!/usr/bin/env bash
# Installs the package next to the popular locks of Node, and measures them in one run.
set -euo pipefail
cd "$(dirname "$0")"
./run.sh --package "$DLOCK_CLIENT_TARGET/bench-packages" >&2
bench=$DLOCK_CLIENT_TARGET/bench
mkdir -p "$bench"
cp bench.mjs .npmrc "$bench"
cd "$bench"
[ -e package.json ] || echo '{ "private": true, "type": "module" }' >package.json
npm install --loglevel=error --no-save --force ioredis@6.0.0 redis@6.3.1 redlock@5.0.0-beta.2 redis-semaphore@5.8.0 \
    "$DLOCK_CLIENT_TARGET"/bench-packages/*.tgz >&2
exec timeout 600 node bench.mjs
