#!/usr/bin/env bash
# Builds the package, checks it, installs it into empty environments with the newest and the oldest redis-py that it
# names, and runs the tests against what is installed there. `run.sh --package DIR` only builds it.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1

newest=8.1.0
oldest=5.0.0 # that of pyproject.toml
tools=$DLOCK_CLIENT_TARGET/tools
pip() { "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"; }

if ! cmp --silent requirements.txt "$tools/installed"; then
    python3 -m venv --clear "$tools"
    pip "$tools" --requirement requirements.txt "redis==$newest"
    cp requirements.txt "$tools/installed"
fi

# Built outside of the tree: nothing is left there.
source=$DLOCK_CLIENT_TARGET/source packages=$DLOCK_CLIENT_TARGET/packages
if [ "${1:-}" = --package ]; then packages=$2; fi
rm -rf "$source" "$DLOCK_CLIENT_TARGET/packages"
mkdir -p "$source" "$packages"
cp -r pyproject.toml README.md src "$source"
"$tools/bin/python" -m build --outdir "$packages" "$source" >"$DLOCK_CLIENT_TARGET/build.log" 2>&1 ||
    { cat "$DLOCK_CLIENT_TARGET/build.log"; exit 1; }
if [ "${1:-}" = --package ]; then exit; fi

"$tools/bin/ruff" check --quiet --no-cache .
"$tools/bin/ruff" format --quiet --no-cache --check src
"$tools/bin/mypy" --cache-dir "$DLOCK_CLIENT_TARGET/mypy"

install() { # VERSION
    local venv=$DLOCK_CLIENT_TARGET/redis-$1
    if [ ! -e "$venv/complete-2" ]; then
        python3 -m venv --clear "$venv"
        # The example with a metrics library is run, too.
        pip "$venv" "redis==$1" "$(grep pytest requirements.txt)" pytest-asyncio==1.5.0 opentelemetry-sdk==1.45.2
        touch "$venv/complete-2"
    fi
    pip "$venv" --force-reinstall --no-deps "$packages"/*.whl
}
run() { # VERSION ARGUMENTS…
    "$DLOCK_CLIENT_TARGET/redis-$1/bin/python" -m pytest --quiet -p no:cacheprovider "${@:2}"
}
# redis-py's own tests of its lock, from its source distribution. They are run, and not kept.
export DLOCK_REDIS_SOURCE=$DLOCK_CLIENT_TARGET/redis-$newest.source
if [ ! -e "$DLOCK_REDIS_SOURCE/tests" ]; then
    rm -rf "$DLOCK_REDIS_SOURCE" && mkdir "$DLOCK_REDIS_SOURCE"
    "$tools/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary redis \
        --dest "$DLOCK_REDIS_SOURCE.packed" "redis==$newest"
    tar xzf "$DLOCK_REDIS_SOURCE.packed/redis-$newest.tar.gz" --directory "$DLOCK_REDIS_SOURCE" --strip-components 1
fi
install "$newest"
# What needs the cluster runs beside what does not: they have no server in common, and mostly wait.
run "$newest" "$@" --ignore test_planted.py -k cluster . >"$DLOCK_CLIENT_TARGET/cluster.txt" 2>&1 &
cluster=$!
status=0
run "$newest" "$@" --ignore test_planted.py -k 'not cluster' . || status=$?
wait $cluster || status=$?
cat "$DLOCK_CLIENT_TARGET/cluster.txt"
if [ $status != 0 ]; then exit $status; fi
# Once is enough for the oldest library (what that does by itself, test_documented.py, is the newest's). That each case fails
# on a client with a fault takes two minutes more: DLOCK_PLANTED=1.
case ${DLOCK_SERVER:-} in
Redis*)
    install "$oldest"
    run "$oldest" -k 'single and threads' test_dlock.py
    [ -z "${DLOCK_PLANTED:-}" ] || run "$newest" test_planted.py
    ;;
esac
