#!/usr/bin/env bash
# Builds the package, checks it, installs it into an empty project, and runs the tests against what is installed there.
# `run.sh --package DIR` only builds it. PHP, Composer, PHPUnit and the libraries are the distribution's: nothing else is
# downloaded.
set -euo pipefail
cd "$(dirname "$0")"

fail() {
    printf 'dlock: %s\n' "$@" >&2
    exit 1
}

loaded() {
    command -v php >/dev/null && php -r "exit(extension_loaded('$1') ? 0 : 1);"
}

missing() {
    local share=/usr/share/php
    command -v php >/dev/null || echo php-cli
    command -v composer >/dev/null || echo composer
    loaded zip || echo php-zip
    [ "${1:-}" = --package ] && return
    command -v phpunit >/dev/null || echo phpunit
    loaded redis || echo php-redis
    [ -e $share/Predis/autoload.php ] || echo php-predis
    [ -e $share/Symfony/Component/Lock/autoload.php ] || echo php-symfony-lock
    [ -e $share/Illuminate/autoload.php ] || echo php-laravel-framework
}

# Word splitting is wanted: these are names of packages.
# shellcheck disable=SC2046
set_missing() { set -- $(missing "$@"); absent=("$@"); }
set_missing "$@"
if [ ${#absent[@]} -gt 0 ]; then
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "missing: ${absent[*]}" 'become root, or install them yourself:' \
            "    apt-get install ${absent[*]}"
        as_root=(sudo)
    fi
    command -v apt-get >/dev/null || fail "missing: ${absent[*]}, and there is no apt-get to install them"
    echo "dlock: installing ${absent[*]}"
    # Nobody else's installation is in the way for long.
    ${as_root[@]+"${as_root[@]}"} apt-get -o DPkg::Lock::Timeout=120 update -qq
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends "${absent[@]}" >/dev/null
fi

# Built outside of the tree: nothing is left there.
target=$DLOCK_CLIENT_TARGET source=$target/source packages=${2:-$target/packages}
export COMPOSER_HOME=$target/composer COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_DISABLE_NETWORK=1
quietly() { "$@" >"$target/build.log" 2>&1 || { cat "$target/build.log"; exit 1; }; }
rm -rf "$source" "$target/packages"
mkdir -p "$source" "$packages"
packages=$(cd "$packages" && pwd)
cp -r composer.json README.md src ../../LICENSE "$source"
quietly composer validate --no-interaction --no-check-publish --no-check-version --strict "$source/composer.json"
quietly composer archive --no-interaction --working-dir="$source" --format=zip --dir="$packages" --file=dlock-redis-0.3.0
if [ "${1:-}" = --package ]; then exit; fi

find src tests -name '*.php' -print0 | xargs -0 -n 1 php -l | { grep -v '^No syntax errors' || true; } >"$target/lint.txt"
[ ! -s "$target/lint.txt" ] || { cat "$target/lint.txt"; exit 1; }

project=$target/project
rm -rf "$project"
mkdir -p "$project"
cat >"$project/composer.json" <<JSON
{
    "require": {"dlock/redis": "0.3.0"},
    "repositories": [{"type": "artifact", "url": "$packages"}, {"packagist": false}],
    "config": {"platform-check": true}
}
JSON
quietly composer install --no-interaction --no-progress --working-dir="$project"
export DLOCK_AUTOLOAD=$project/vendor/autoload.php

tests() { # NAME ARGUMENTS…: in the background
    local name=$1
    shift
    mkdir -p "$target/seen"
    (phpunit --no-configuration --bootstrap tests/bootstrap.php --do-not-cache-result "$@" >"$target/seen/$name" 2>&1) &
    started+=("$! $name")
}
await() {
    local status=0 one
    for one in "${started[@]}"; do
        if ! wait "${one%% *}"; then
            status=1
            cat "$target/seen/${one#* }"
        else
            echo "${one#* }: $(grep '^OK' "$target/seen/${one#* }" || tail -n 1 "$target/seen/${one#* }")"
        fi
    done
    started=()
    [ $status -eq 0 ] || exit 1
}
started=()

# Servers stand still, or other ones take over: nobody else may need them meanwhile.
for place in single cluster pair; do
    DLOCK_PART=frozen-$place tests "cases-$place" tests/CasesTest.php
done
await
tests faults --filter '/::test\w+Over/' tests/LocksTest.php
# The rest waits most of the time, so side by side.
for part in 0 1 2; do
    DLOCK_PART=$part/3 tests "cases-$part" tests/CasesTest.php
done
await
tests locks-1 --filter '/::test(?!\w+Over)[A-C]/' tests/LocksTest.php
tests locks-2 --filter '/::test(?!\w+Over)[D-J]/' tests/LocksTest.php
tests locks-3 --filter '/::testK/' tests/LocksTest.php
tests locks-4 --filter '/::test(?!\w+Over)[L-Z]/' tests/LocksTest.php
tests frameworks --filter '/(Symfony|Laravel)Test::/' tests
tests more --filter '/(Election|Quorum|Examples|Tls)Test::/' tests
await
# That each case fails on a client with a fault takes two minutes more.
case ${DLOCK_SERVER:-} in
Redis*) [ -z "${DLOCK_PLANTED:-}" ] || { tests planted tests/PlantedTest.php && await; } ;;
esac
