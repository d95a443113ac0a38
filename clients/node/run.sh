#!/usr/bin/env bash
# Builds the package, checks it, installs it into empty projects with the newest and the oldest libraries that it names,
# and runs the tests against what is installed there. `run.sh --package DIR` only builds it.
set -euo pipefail
cd "$(dirname "$0")"

target=$DLOCK_CLIENT_TARGET
packages=${2:-$target/packages}
npm() { command npm "$@" --loglevel=error; }

# Built outside of the tree: nothing is left there.
mkdir -p "$target/source" "$packages"
rm -rf "$target/source/src" "$target/source/cjs"
cp -r build.mjs eslint.config.mjs README.md package.json package-lock.json .npmrc src "$target/source"
(
    cd "$target/source"
    if ! cmp --silent package-lock.json installed; then
        npm ci >&2
        cp package-lock.json installed
    fi
    node build.mjs
    npm pack --silent --pack-destination "$packages" >&2
)
if [ "${1:-}" = --package ]; then exit; fi

cp -r examples test "$target/source"
(cd "$target/source" && node_modules/.bin/eslint .)

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
    tar -xzf "$packages"/dlock-redis-*.tgz -C "$project/node_modules/dlock-redis" --strip-components 1
    cp -r examples test README.md ../cases/cases.json "$project"
}
run() { # PROJECT FILES AND OPTIONS…
    (cd "$target/$1" && DLOCK_CASES=$target/$1/cases.json NODE_NO_WARNINGS=1 \
        timeout 600 node --test --test-concurrency=1 --test-reporter=dot --test-reporter-destination=stdout \
        --test-reporter=spec --test-reporter-destination="$target/$1.log" "${@:2}") ||
        { sed -n '/failing tests/,$p' "$target/$1.log"; return 1; }
}

project newest ioredis@6.0.0 redis@6.3.1 @opentelemetry/api@1.9.0 @opentelemetry/sdk-metrics@2.2.0
tsc=$target/source/node_modules
(cd "$target/newest" && "$tsc/.bin/tsc" --noEmit --strict --module node16 --target es2022 --lib es2022,esnext.disposable \
    --skipLibCheck --typeRoots "$tsc/@types" --types node test/types.mts test/types.cts)
run newest test/*.test.mjs "$@"
# Once is enough for the oldest libraries. That each case fails on a client with a fault takes two minutes more: DLOCK_PLANTED=1.
case ${DLOCK_SERVER:-} in
Redis*)
    project oldest ioredis@5.0.0 redis@5.0.0
    run oldest --test-name-pattern 'counts_to|cancelled_wait|cut_|no_write|hold_over|wrong_password|slow_path' \
        test/named.test.mjs test/cases.test.mjs
    [ -z "${DLOCK_PLANTED:-}" ] || run newest test/planted.mjs
    ;;
esac
