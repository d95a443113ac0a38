#!/usr/bin/env bash
# Runs the tests against the package as it is installed; `run.sh --cases` only the cases. `run.sh --install` builds it, checks
# it, and installs it into an empty project. `run.sh --package DIR` only builds it, and `run.sh --project DIR` builds it and installs it into
# an empty project there. PHP, Composer, PHPUnit and the libraries are the distribution's: nothing else is downloaded.
set -euo pipefail
cd "$(dirname "$0")"

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

install_missing() {
    # Word splitting is wanted: these are names of packages.
    # shellcheck disable=SC2046
    set -- $(missing "$@")
    [ $# -eq 0 ] || ../../integration/apt.sh "$@"
}

target=$DLOCK_CLIENT_TARGET project=$DLOCK_CLIENT_TARGET/project
export COMPOSER_HOME=$target/composer COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_DISABLE_NETWORK=1
quietly() { "$@" >"$target/build.log" 2>&1 || { cat "$target/build.log"; exit 1; }; }

build() { # DIRECTORY
    # Outside of the tree: nothing is left there.
    local source=$target/source packages
    rm -rf "$source"
    mkdir -p "$source" "$1"
    packages=$(cd "$1" && pwd)
    cp -r composer.json README.md src ../../LICENSE "$source"
    quietly composer validate --no-interaction --no-check-publish --no-check-version --strict "$source/composer.json"
    quietly composer archive --no-interaction --working-dir="$source" --format=zip --dir="$packages" --file=dlock-redis-0.6.0-dev
}

# Installs the package into an empty project.
require() { # DIRECTORY PACKAGES
    rm -rf "$1"
    mkdir -p "$1"
    cat >"$1/composer.json" <<JSON
{
    "require": {"dlock/redis": "0.6.0-dev"},
    "repositories": [{"type": "artifact", "url": "$2"}, {"packagist": false}],
    "config": {"platform-check": true}
}
JSON
    quietly composer install --no-interaction --no-progress --working-dir="$1"
}

case ${1:-} in
--package)
    install_missing --package
    build "$2"
    exit
    ;;
--project)
    install_missing
    rm -rf "$2-packages"
    build "$2-packages"
    require "$2" "$2-packages"
    exit
    ;;
--install)
    install_missing
    rm -rf "$target/packages"
    build "$target/packages"
    find src tests -name '*.php' -print0 | xargs -0 -n 1 php -l | { grep -v '^No syntax errors' || true; } >"$target/lint.txt"
    [ ! -s "$target/lint.txt" ] || { cat "$target/lint.txt"; exit 1; }
    require "$project" "$target/packages"
    exit
    ;;
esac

export DLOCK_AUTOLOAD=$project/vendor/autoload.php

tests() { # NAME ARGUMENTS…: in the background
    local name=$1
    shift
    (phpunit --no-configuration --bootstrap tests/bootstrap.php --do-not-cache-result "$@" >"$DLOCK_CLIENT_SEEN/$name" 2>&1) &
    started+=("$! $name")
}
await() {
    local failed=() one
    for one in "${started[@]}"; do
        if ! wait "${one%% *}"; then
            failed+=("${one#* }")
        else
            echo "${one#* }: $(grep '^OK' "$DLOCK_CLIENT_SEEN/${one#* }" || tail -n 1 "$DLOCK_CLIENT_SEEN/${one#* }")"
        fi
    done
    started=()
    for one in "${failed[@]}"; do
        echo "$one failed:"
        cat "$DLOCK_CLIENT_SEEN/$one"
    done
    [ ${#failed[@]} -eq 0 ] || exit 1
}
started=()

# These tests stall servers, change their settings, or let others take over: no other test may need the servers meanwhile.
for place in single cluster pair; do
    DLOCK_PART=frozen-$place tests "cases-$place" tests/CasesTest.php
done
await
[ "${1:-}" = --cases ] || tests faults --filter '/::test\w+Over/' tests/LocksTest.php
# The rest waits most of the time, so side by side.
for part in 0 1 2; do
    DLOCK_PART=$part/3 tests "cases-$part" tests/CasesTest.php
done
await
[ "${1:-}" != --cases ] || exit 0
tests locks-1 --filter '/::test(?!\w+Over)[A-C]/' tests/LocksTest.php
tests locks-2 --filter '/::test(?!\w+Over)[D-J]/' tests/LocksTest.php
tests locks-3 --filter '/::testK/' tests/LocksTest.php
tests locks-4 --filter '/::test(?!\w+Over)[L-Z]/' tests/LocksTest.php
tests frameworks --filter '/(Symfony|Laravel|Laravel13)Test::/' tests
tests more --filter '/(Election|Quorum|Examples|FakeLocks|Installed|Tls|Trouble)Test::/' tests
await
# That each case fails on a client with a fault takes two minutes more.
[ -z "${DLOCK_PLANTED:-}" ] || { tests planted tests/PlantedTest.php && await; }
