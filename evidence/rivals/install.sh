#!/usr/bin/env bash
# install.sh DIRECTORY: builds the drivers of `make rivals` in DIRECTORY: Redisson's in Java, redsync's in Go.
set -euo pipefail

mkdir -p "$1"
# Maven takes a relative one from where its project is.
directory=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# So that it can be removed like anything else.
export GOMODCACHE=$directory/go/modules GOCACHE=$directory/go/cache GOFLAGS='-modcacherw -buildvcs=false -mod=readonly'

missing() {
    command -v javac >/dev/null || echo default-jdk-headless
    command -v mvn >/dev/null || echo maven
    command -v go >/dev/null || echo golang-go
}

# Word splitting is wanted: the function prints names of packages.
# shellcheck disable=SC2046
set -- $(missing)
[ $# -eq 0 ] || "$here/../../integration/apt.sh" "$@"

version=$(go env GOVERSION)
minor=$(sed -n 's/^go1\.\([0-9]*\).*/\1/p' <<<"$version")
# From 1.21 on Go fetches the newer one that go.mod names.
[ "${minor:-0}" -ge 21 ] || {
    echo "dlock: Go ${version#go} is too old: the driver of redlock needs 1.21 or later (https://go.dev/dl)" >&2
    exit 1
}

if ! cmp -s "$here/java/pom.xml" "$directory/pom.xml"; then
    rm -rf "$directory/lib"
    mvn -q -B -f "$here/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$directory/lib"
    cp "$here/java/pom.xml" "$directory/pom.xml"
fi
mkdir -p "$directory/classes"
javac -cp "$directory/lib/*" -d "$directory/classes" "$here/java/Rivals.java"

(
    cd "$here/redlock"
    unformatted=$(gofmt -l .)
    [ -z "$unformatted" ] || { echo "dlock: not as gofmt has it: $unformatted" >&2; exit 1; }
    go vet ./...
    go build -o "$directory/redlock" .
)

version() {
    sed -n "s|.*$1 v\([0-9.]*\).*|\1|p" "$here/redlock/go.mod"
}
{
    echo "Redisson $(sed -n 's|.*<version>\(4[0-9.]*\)</version>.*|\1|p' "$here/java/pom.xml")"
    echo "redsync $(version go-redsync/redsync/v4)"
    echo "go-redis $(version redis/go-redis/v9)"
    echo "Java $(java -version 2>&1 | sed -n '1s/.*"\(.*\)".*/\1/p')"
} >"$directory/versions"
