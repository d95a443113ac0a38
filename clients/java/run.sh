#!/usr/bin/env bash
# Builds the packages with Maven, which fetches the libraries, runs the tests on them, and an empty project that uses what
# was built, with the newest and the oldest libraries. `run.sh --package DIR` only builds, and puts the packages there.
set -euo pipefail
cd "$(dirname "$0")"

maven() {
    mvn --batch-mode --no-transfer-progress -Dmaven.repo.local="$DLOCK_CLIENT_TARGET/repository" \
        -Ddlock.target="$DLOCK_CLIENT_TARGET/build" "$@"
}

if [ "${1:-}" = --package ]; then
    maven --quiet -DskipTests -Ppackage package
    declare -A artifact=([core]=core [lettuce]=lettuce [jedis]=jedis [starter]=spring-boot-starter [shedlock]=shedlock)
    mkdir -p "$2"
    for module in core lettuce jedis starter shedlock; do
        cp "$DLOCK_CLIENT_TARGET/build/dlock-${artifact[$module]}/"*.jar "$2"
        cp "$module/pom.xml" "$2/dlock-${artifact[$module]}-0.3.0.pom"
    done
    cp pom.xml "$2/dlock-java-0.3.0.pom"
    exit
fi

maven --fail-at-end install "$@"
for versions in "7.7.0.RELEASE 8.0.2 7.10.1" "6.6.0.RELEASE 6.0.0 6.0.1"; do
    read -r lettuce jedis shedlock <<<"$versions"
    maven --quiet --file example/pom.xml -Dlettuce.version="$lettuce" -Djedis.version="$jedis" \
        -Dshedlock.version="$shedlock" clean compile dependency:build-classpath -Dmdep.outputFile="$DLOCK_CLIENT_TARGET/classpath"
    java -cp "$DLOCK_CLIENT_TARGET/build/example/classes:$(cat "$DLOCK_CLIENT_TARGET/classpath")" Example
done
