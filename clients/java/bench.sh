#!/usr/bin/env bash
# Measures the packages and Redisson, in one run.
set -euo pipefail
cd "$(dirname "$0")"
maven() {
    mvn --quiet --batch-mode --no-transfer-progress -Dmaven.repo.local="$DLOCK_CLIENT_TARGET/repository" \
        -Ddlock.target="$DLOCK_CLIENT_TARGET/build" "$@"
}
maven -DskipTests install --projects .,core,lettuce,jedis >&2
maven --file bench/pom.xml compile dependency:build-classpath -Dmdep.outputFile="$DLOCK_CLIENT_TARGET/bench-classpath" >&2
exec timeout 600 java -cp "$DLOCK_CLIENT_TARGET/build/bench/classes:$(cat "$DLOCK_CLIENT_TARGET/bench-classpath")" Bench
