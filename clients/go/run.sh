#!/usr/bin/env bash
# Runs the tests: all with the newest go-redis, the core with the oldest and with the race detector, too, and empty projects that
# use the package: a program that looks from outside, and each program of README.md as it is printed.
# `run.sh --cases` runs the cases only. `run.sh --install` fetches go-redis, checks the module, and builds all of these.
# `run.sh --package DIR` only makes its archive.
set -euo pipefail
cd "$(dirname "$0")"

oldest=v9.7.3 # that of go.mod: a program keeps its own
newest=v9.23.0
# So that it can be removed like anything else.
export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
export GOFLAGS='-modcacherw -buildvcs=false'

new=$DLOCK_CLIENT_TARGET/newest projects=$DLOCK_CLIENT_TARGET/projects built=$DLOCK_CLIENT_TARGET/built

package() { # DIRECTORY
    mkdir -p "$1"
    tar --sort=name --owner=0 --group=0 --mtime=@0 --exclude='*_test.go' --transform 's,^,dlock-go-0.6.0-dev/,' \
        -czf "$1/dlock-go-0.6.0-dev.tar.gz" -- *.go go.mod go.sum README.md gocron
}
look() {
    grep -q "go-redis/v9 $oldest" go.mod
    [ -z "$(gofmt -l .)" ] || { gofmt -d .; exit 1; }
    go vet -mod=readonly ./...
    (cd gocron && go vet -mod=readonly ./...)
}
build_newest() {
    mkdir -p "$new/gocron"
    cp -- *.go go.mod go.sum "$new"
    cp -- gocron/*.go gocron/go.mod gocron/go.sum "$new/gocron"
    local module
    for module in "$new" "$new/gocron"; do
        cd "$module"
        go get "github.com/redis/go-redis/v9@$newest" >/dev/null 2>&1
        go mod tidy >/dev/null 2>&1
        go list -m github.com/redis/go-redis/v9 | grep -q "$newest"
        go test -c -o "$built/$([ "$module" = "$new" ] && echo newest || echo gocron)" .
    done
    cd "$new"
    CGO_ENABLED=1 go test -race -c -o "$built/race" .
}
# The commands of README.md, in a project that has nothing else. Those of its second block are for gocron.
project() { # NAME
    cd "$projects/$1"
    go mod init example >/dev/null 2>&1
    cp "$DLOCK_CLIENT_TARGET/packages/dlock-go-0.6.0-dev.tar.gz" .
    local both=(install)
    if grep -q dlock/gocron main.go; then
        both+=(gocron)
        mv main.go later # the first block is for a program without it
    fi
    local block
    for block in "${both[@]}"; do
        [ "$block" = install ] || mv later main.go
        bash -euo pipefail "../$block.sh" >/dev/null 2>&1 || bash -euxo pipefail "../$block.sh"
    done
    rm -r dlock/README.md
    go vet .
    go build -o "$built/project-$1" .
}
build_projects() {
    mkdir -p "$projects/outside"
    local block=0 name
    for name in install gocron; do
        block=$((block + 1))
        awk -v block=$block '/^```sh$/ && ++n == block { on = 1; next } /^```$/ { on = 0 } on' README.md >"$projects/$name.sh"
    done
    cp outside/main.go "$projects/outside"
    # Each program of the page. What it calls localhost:6379 is the test's server.
    awk -v dir="$projects" '/^```go$/ { on = 1; text = ""; next }
        /^```$/ { if (on && text ~ /^package main/) { n++; d = dir "/page" n; system("mkdir -p " d); printf "%s", text >(d "/main.go") } on = 0 }
        on { text = text $0 "\n" }' README.md
    for name in "$projects"/*/; do
        (project "$(basename "$name")")
    done
    [ "$(find "$built" -name 'project-page*' | wc -l)" -ge 4 ]
}
case ${1:-} in
--package)
    package "$2"
    exit
    ;;
--install)
    rm -rf "$new" "$projects" "$built"
    package "$DLOCK_CLIENT_TARGET/packages"
    look
    go test -mod=readonly -c -o "$built/oldest" .
    (build_newest)
    (build_projects)
    exit
    ;;
esac

export DLOCK_CASES=$PWD/../cases/cases.json
if [ "${1:-}" = --cases ]; then
    "$built/newest" -test.timeout=20m -test.parallel=16 -test.run '^TestCases'
    exit
fi
# That each case fails on a client with a fault takes minutes more: DLOCK_PLANTED=1.
"$built/newest" -test.timeout=20m -test.parallel=16
"$built/oldest" -test.timeout=5m -test.parallel=16 -test.run \
    'TestCases(Alone)?/(forced|cut_and_kept|cut_wait|wrong_password|hung_try|released_.*|(hold|wait)_over_.*)$|TestCounts|TestQuorumAMinority|TestSentinel|TestAReleaseOutlasts|TestADialThat|TestASilentServer|Example'
"$built/race" -test.timeout=10m -test.parallel=8 -test.run \
    'TestCases/(forced|closed_.*|cut_.*|released_.*|said_twice|max_hold|a_thousand_cycles)$|TestCounts|TestCancel|TestMany|TestFake|TestElection|TestCounting|TestOne'
"$built/gocron" -test.timeout=3m
"$built/project-outside"
for page in "$projects"/page*; do
    program=$DLOCK_CLIENT_SEEN/$(basename "$page")
    sed "s/localhost:6379/$DLOCK_SINGLE/" "$page/main.go" >"$program.go"
    printf '{"Replace": {"%s": "%s"}}' "$page/main.go" "$program.go" >"$program.json"
    (cd "$page" && go build -overlay "$program.json" -o "$program" .)
    timeout 60 "$program"
done
