#!/usr/bin/env bash
# Builds the client and its tests with Maven, which fetches the libraries, and runs them.
set -euo pipefail
cd "$(dirname "$0")"

exec mvn --batch-mode --no-transfer-progress --fail-at-end \
    -Dmaven.repo.local="$DLOCK_CLIENT_TARGET/repository" -Ddlock.target="$DLOCK_CLIENT_TARGET/build" \
    test "$@"
