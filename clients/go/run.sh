#!/usr/bin/env bash
# Runs the tests: all with the newest go-redis, the core with the oldest, too, and an empty project that uses the package.
# `run.sh --install` fetches go-redis, checks the module, and builds all of these. `run.sh --package DIR` only makes its archive.
set -euo pipefail
cd "$(dirname "$0")"

newest=v9.23.0 # that of go.mod
oldest=v9.7.3
# So that it can be removed like anything else.
export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
export GOFLAGS='-modcacherw -buildvcs=false'

old=$DLOCK_CLIENT_TARGET/oldest project=$DLOCK_CLIENT_TARGET/project built=$DLOCK_CLIENT_TARGET/built

package() { # DIRECTORY
    mkdir -p "$1"
    tar --sort=name --owner=0 --group=0 --mtime=@0 --exclude='*_test.go' --transform 's,^,dlock-go-0.3.0/,' \
        -czf "$1/dlock-go-0.3.0.tar.gz" -- *.go go.mod go.sum README.md gocron
}
look() {
    grep -q "go-redis/v9 $newest" go.mod
    [ -z "$(gofmt -l .)" ] || { gofmt -d .; exit 1; }
    go vet -mod=readonly ./...
    (cd gocron && go vet -mod=readonly .)
}
build_oldest() {
    mkdir -p "$old"
    cp -- *.go go.mod go.sum "$old"
    cd "$old"
    go get "github.com/redis/go-redis/v9@$oldest" >/dev/null 2>&1
    go mod tidy >/dev/null 2>&1
    go list -m github.com/redis/go-redis/v9 | grep -q "$oldest"
    go test -c -o "$built/oldest" .
}
build_project() {
    mkdir -p "$project/dlock"
    tar -xzf "$DLOCK_CLIENT_TARGET/packages/dlock-go-0.3.0.tar.gz" --strip-components=1 -C "$project/dlock"
    cat >"$project/main.go" <<'END'
package main

import (
	"context"
	"fmt"
	"os"

	"dlock"
	"github.com/redis/go-redis/v9"
)

func main() {
	locks, err := dlock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_SINGLE")}), dlock.Settings{})
	if err != nil {
		panic(err)
	}
	defer locks.Close()
	err = locks.With(context.Background(), "go:project", func(_ context.Context, hold *dlock.Hold) error {
		fmt.Println("an empty project has the lock under the token", hold.Token)
		return nil
	})
	if err != nil {
		panic(err)
	}
}
END
    cd "$project"
    go mod init example >/dev/null 2>&1
    go mod edit -replace dlock=./dlock -require dlock@v0.0.0 -require "github.com/redis/go-redis/v9@$newest"
    go mod tidy >/dev/null 2>&1
    go build -o "$built/project" .
}
case ${1:-} in
--package)
    package "$2"
    exit
    ;;
--install)
    rm -rf "$old" "$project" "$built"
    package "$DLOCK_CLIENT_TARGET/packages"
    look
    go test -mod=readonly -c -o "$built/newest" .
    (cd gocron && go test -mod=readonly -c -o "$built/gocron" .)
    (build_oldest)
    (build_project)
    exit
    ;;
esac

# Options are those of a test's program: `-test.run TestCases`.
"$built/newest" -test.timeout=20m -test.parallel=16 "$@"
# Once is enough for the rest. That each case fails on a client with a fault takes minutes more: DLOCK_PLANTED=1.
case ${DLOCK_SERVER:-} in
Redis*)
    DLOCK_CASES=$PWD/../cases/cases.json "$built/oldest" -test.timeout=5m -test.parallel=16 -test.run \
        'TestCases(Alone)?/(forced|cut_and_kept|cut_wait|wrong_password|hung_try|no_channel)$|TestCounts|TestHoldOver|TestWaitOver|TestQuorumAMinority'
    (cd gocron && "$built/gocron" -test.timeout=3m)
    "$built/project"
    ;;
esac
