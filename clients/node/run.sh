#!/usr/bin/env bash
# Installs the libraries with npm into a directory of its own, and runs the tests there.
set -euo pipefail
cd "$(dirname "$0")"

# Modules are looked up from where the files are.
cp *.mjs README.md package.json package-lock.json .npmrc "$DLOCK_CLIENT_TARGET"
cd "$DLOCK_CLIENT_TARGET"
if ! cmp --silent package-lock.json installed; then
    npm ci --loglevel=error >&2
    cp package-lock.json installed
fi
exec node --test --test-reporter=dot --test-concurrency=1 "$@" dlock.test.mjs library.test.mjs quorum.test.mjs \
    faults.test.mjs
