#!/usr/bin/env bash
# Runs one client of a run of failovers. `failover.sh --install` builds it.
set -euo pipefail
if [ "$1" = --install ]; then
    cd "$(dirname "$0")/failover"
    export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
    export GOFLAGS='-modcacherw -mod=readonly -buildvcs=false'
    exec go build -o "$DLOCK_CLIENT_TARGET/failover" .
fi
exec "$DLOCK_CLIENT_TARGET/failover"
