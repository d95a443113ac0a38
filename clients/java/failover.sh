#!/usr/bin/env bash
# Runs one client of a run of failovers: `failover.sh Lettuce` or `failover.sh Jedis`. `failover.sh --install` builds it.
set -euo pipefail
maven() {
    mvn --quiet --batch-mode --no-transfer-progress -Dmaven.repo.local="$DLOCK_CLIENT_TARGET/repository" \
        -Ddlock.target="$DLOCK_CLIENT_TARGET/build" "$@"
}
if [ "$1" = --install ]; then
    cd "$(dirname "$0")"
    maven -DskipTests install --projects .,core,lettuce,jedis >&2
    maven --file failover/pom.xml compile dependency:build-classpath -Dmdep.outputFile="$DLOCK_CLIENT_TARGET/failover-classpath" >&2
    exit
fi
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    -cp "$DLOCK_CLIENT_TARGET/build/failover/classes:$(cat "$DLOCK_CLIENT_TARGET/failover-classpath")" Failover "$1"
