#!/usr/bin/env bash
# Fetches go-redis and builds the tests into directories of its own, and runs them: all with the newest go-redis, the core
# with the oldest, too, and an empty project that uses the package. `run.sh --package DIR` only makes the module's archive.
set -euo pipefail
cd "$(dirname "$0")"

newest=v9.23.0 # that of go.mod
oldest=v9.7.3
# So that it can be removed like anything else.
export GOMODCACHE=$DLOCK_CLIENT_TARGET/modules GOCACHE=$DLOCK_CLIENT_TARGET/cache
export GOFLAGS='-modcacherw -buildvcs=false'

if [ "${1:-}" = --package ]; then packages=$2; else packages=$DLOCK_CLIENT_TARGET/packages; fi
mkdir -p "$packages"
tar --sort=name --owner=0 --group=0 --mtime=@0 --exclude='*_test.go' --transform 's,^,dlock-go-0.3.0/,' \
    -czf "$packages/dlock-go-0.3.0.tar.gz" -- *.go go.mod go.sum README.md gocron
if [ "${1:-}" = --package ]; then exit; fi

grep -q "go-redis/v9 $newest" go.mod
[ -z "$(gofmt -l .)" ] || { gofmt -d .; exit 1; }
go vet -mod=readonly ./...
go test -mod=readonly -count=1 -timeout=20m -parallel=16 "$@" .

# Once is enough for the rest. That each case fails on a client with a fault takes minutes more: DLOCK_PLANTED=1.
case ${DLOCK_SERVER:-} in
Valkey*) exit ;;
esac
old=$DLOCK_CLIENT_TARGET/oldest project=$DLOCK_CLIENT_TARGET/project
rm -rf "$old" "$project"
mkdir -p "$old" "$project/dlock"
cp -- *.go go.mod go.sum "$old"
(
    cd "$old"
    export DLOCK_CASES=$OLDPWD/../cases/cases.json
    go get "github.com/redis/go-redis/v9@$oldest" >/dev/null 2>&1
    go mod tidy >/dev/null 2>&1
    go list -m github.com/redis/go-redis/v9 | grep -q "$oldest"
    go test -count=1 -timeout=5m -parallel=16 -run 'TestCases(Alone)?/(forced|cut_and_kept|cut_wait|wrong_password|hung_try|no_channel)$|TestCounts|TestHoldOver|TestWaitOver|TestQuorumAMinority' .
)
(cd gocron && go vet -mod=readonly . && go test -mod=readonly -count=1 -timeout=3m .)
tar -xzf "$packages/dlock-go-0.3.0.tar.gz" --strip-components=1 -C "$project/dlock"
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
go run .
