#!/usr/bin/env bash
# Measures the module and the popular locks of Go, in one run.
set -euo pipefail
cd "$(dirname "$0")/bench"
export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
export GOFLAGS='-modcacherw -mod=readonly -buildvcs=false'
go build -o "$DLOCK_CLIENT_TARGET/bench" .
exec timeout 600 "$DLOCK_CLIENT_TARGET/bench"
