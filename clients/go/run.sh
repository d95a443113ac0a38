#!/usr/bin/env bash
# Fetches go-redis and builds the tests into directories of its own, and runs them.
set -euo pipefail
cd "$(dirname "$0")"

export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
# So that it can be removed like anything else.
export GOFLAGS='-modcacherw -mod=readonly -buildvcs=false'
exec go test -count=1 -timeout=20m -parallel=8 "$@" ./...
