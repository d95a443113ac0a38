#!/usr/bin/env bash
# Runs the tests against the package as it is installed; `run.sh --cases` only the cases. `run.sh --install` builds it, checks
# it, and installs it into empty projects with the newest and the oldest libraries that it names. `run.sh --package DIR` only
# builds it.
set -euo pipefail
cd "$(dirname "$0")"

target=$DLOCK_CLIENT_TARGET
npm() { command npm "$@" --loglevel=error; }

build() { # DIRECTORY
    # Outside of the tree: nothing is left there.
    mkdir -p "$target/source" "$1"
    rm -rf "$target/source/src" "$target/source/cjs"
    cp -r build.mjs eslint.config.mjs README.md package.json package-lock.json .npmrc src "$target/source"
    (
        cd "$target/source"
        if ! cmp --silent package-lock.json installed; then
            npm ci >&2
            cp package-lock.json installed
        fi
        node build.mjs
        npm pack --silent --pack-destination "$1" >&2
    )
}

# A project with the package and these libraries, and with the tests and what they read.
project() { # NAME LIBRARY…
    local project=$target/$1
    mkdir -p "$project"
    if [ "$(cat "$project/installed" 2>/dev/null)" != "${*:2}" ]; then
        rm -rf "$project/node_modules" "$project/package-lock.json"
        cp .npmrc "$project"
        echo '{ "private": true }' >"$project/package.json"
        (cd "$project" && npm install --save-exact "${@:2}" >&2)
        echo "${*:2}" >"$project/installed"
    fi
    rm -rf "$project/node_modules/dlock-redis" "$project/test" "$project/examples"
    mkdir -p "$project/node_modules/dlock-redis"
    tar -xzf "$target"/packages/dlock-redis-*.tgz -C "$project/node_modules/dlock-redis" --strip-components 1
    cp -r examples test README.md ../cases/*.json "$project"
}
look() {
    cp -r examples test "$target/source"
    cd "$target/source"
    node_modules/.bin/eslint .
    local tsc=$PWD/node_modules
    cd "$target/newest"
    "$tsc/.bin/tsc" --noEmit --strict --module node16 --target es2022 --lib es2022,esnext.disposable \
        --skipLibCheck --typeRoots "$tsc/@types" --types node test/types.mts test/types.cts
    # An older compiler and an older way to find types, which many programs have.
    cd "$target/older"
    node_modules/.bin/tsc --noEmit --strict --module commonjs --moduleResolution node10 --target es2022 \
        --lib es2022,esnext.disposable --skipLibCheck --types node --esModuleInterop test/types.node10.ts
}
case ${1:-} in
--package)
    build "$2"
    exit
    ;;
--install)
    rm -rf "$target/packages"
    build "$target/packages"
    project newest ioredis@6.0.0 redis@6.3.1 @opentelemetry/api@1.9.0 @opentelemetry/sdk-metrics@2.2.0 \
        @nestjs/common@12.5.1 @nestjs/core@12.5.1 reflect-metadata@0.2.2 rxjs@7.8.2
    project oldest ioredis@5.0.0 redis@5.0.0
    project older ioredis@5.4.0 redis@6.0.0 typescript@5.4.5 @types/node@20.19.25
    look
    exit
    ;;
esac
run() { # PROJECT PART FILES AND OPTIONS…
    cd "$target/$1"
    DLOCK_PART=$2 DLOCK_CASES=$PWD/cases.json NODE_NO_WARNINGS=1 \
        timeout 600 node --test --test-concurrency=2 --test-reporter=spec "${@:3}"
}
started=() failed=()
start() { # NAME COMMAND…: in the background
    local name=$1
    shift
    ("$@" >"$DLOCK_CLIENT_SEEN/$name" 2>&1) &
    started+=("$! $name")
}
await() {
    local one
    for one in "${started[@]}"; do
        local seen=$DLOCK_CLIENT_SEEN/${one#* }
        if wait "${one%% *}"; then
            echo "${one#* }: passed $(sed -n 's/^ℹ pass //p' "$seen")"
        else
            failed+=("$seen")
        fi
    done
    started=()
}

# What stops servers, or moves them about: see isOf in test/stage.mjs.
parts=(test/cases.test.mjs test/connect.test.mjs test/named.test.mjs) rest=(test/*.test.mjs)
[ "${1:-}" != --cases ] || parts=(test/cases.test.mjs) rest=(test/cases.test.mjs)
start nodes run newest nodes --test-concurrency=1 "${parts[@]}"
beside=("${started[@]}") started=()
start single run newest single --test-concurrency=1 "${parts[@]}"
await
start many run newest many --test-concurrency=1 "${parts[@]}"
started+=("${beside[@]}")
await
start rest run newest rest "${rest[@]}"
if [ "${1:-}" != --cases ]; then
    start oldest run oldest rest --test-name-pattern 'counts_to|cancelled_wait|cut_|no_write|wrong_password|slow_path' \
        "${parts[@]}"
fi
await
if [ "${1:-}" != --cases ]; then
    start oldest-nodes run oldest nodes --test-concurrency=1 --test-name-pattern 'hold_over|a_silent_sentinel' \
        test/cases.test.mjs test/connect.test.mjs
    await
    start older-nodes run older nodes --test-name-pattern 'a_(sentinel_promotes|silent_sentinel).* .node-redis.$' \
        test/connect.test.mjs
    await
    # That each case fails on a client with a fault takes two minutes more.
    [ -z "${DLOCK_PLANTED:-}" ] || start planted run newest planted test/planted.mjs
    await
fi
for seen in "${failed[@]}"; do
    echo "${seen##*/} failed:"
    sed -n '/failing tests/,$p' "$seen" | grep . || cat "$seen"
done
[ ${#failed[@]} -eq 0 ]
