#!/usr/bin/env bash
# run.sh TARGET [OPTION…] SERVER…: builds the judge in TARGET, runs its tests, and then itself with the options.
set -euo pipefail

mkdir -p "$1"
target=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
# So that it can be removed like anything else.
export GOMODCACHE=$target/go/modules GOCACHE=$target/go/cache GOFLAGS='-modcacherw -buildvcs=false -mod=readonly'

command -v go >/dev/null || "$here/../../integration/apt.sh" golang-go
version=$(go env GOVERSION)
minor=$(sed -n 's/^go1\.\([0-9]*\).*/\1/p' <<<"$version")
[ "${minor:-0}" -ge 23 ] || {
    echo "dlock: Go ${version#go} is too old: the judge needs 1.23 or later (https://go.dev/dl)" >&2
    exit 1
}

(
    cd "$here"
    unformatted=$(gofmt -l .)
    [ -z "$unformatted" ] || { echo "dlock: not as gofmt has it: $unformatted" >&2; exit 1; }
    go vet ./...
    go test ./... | { grep -v 'no test files' || true; }
    go build -o "$target/judge" .
)
exec "$target/judge" "$@"
