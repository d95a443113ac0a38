#!/usr/bin/env bash
# Runs the tests against the package as it is installed; `run.sh --cases` only the cases. `run.sh --install` builds it, checks
# it, and installs it into empty environments with the newest and the oldest redis-py that it names. `run.sh --package DIR`
# only builds it.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1

newest=8.1.0
oldest=5.0.0 # that of pyproject.toml
tools=$DLOCK_CLIENT_TARGET/tools
# redis-py's own tests of its lock, from its source distribution. They are run, and not kept.
export DLOCK_REDIS_SOURCE=$DLOCK_CLIENT_TARGET/redis-$newest.source
pip() { "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"; }

build() { # DIRECTORY
    if ! cmp --silent requirements.txt "$tools/installed"; then
        python3 -m venv --clear "$tools"
        pip "$tools" --requirement requirements.txt "redis==$newest"
        cp requirements.txt "$tools/installed"
    fi
    # Outside of the tree: nothing is left there.
    local source=$DLOCK_CLIENT_TARGET/source
    rm -rf "$source"
    mkdir -p "$source" "$1"
    cp -r pyproject.toml README.md src "$source"
    "$tools/bin/python" -m build --outdir "$1" "$source" >"$DLOCK_CLIENT_TARGET/build.log" 2>&1 ||
        { cat "$DLOCK_CLIENT_TARGET/build.log"; exit 1; }
}
install() { # VERSION
    local venv=$DLOCK_CLIENT_TARGET/redis-$1
    if [ ! -e "$venv/complete-3" ]; then
        python3 -m venv --clear "$venv"
        # The run includes the example with a metrics library.
        pip "$venv" "redis==$1" "$(grep pytest requirements.txt)" pytest-asyncio==1.5.0 pytest-xdist==3.8.0 \
            opentelemetry-sdk==1.45.2
        touch "$venv/complete-3"
    fi
    pip "$venv" --force-reinstall --no-deps "$DLOCK_CLIENT_TARGET"/packages/*.whl
}
case ${1:-} in
# Debian's Python has no venv of its own.
--package | --install) python3 -c 'import ensurepip' 2>/dev/null || ../../integration/apt.sh python3-venv ;;&
--package)
    build "$2"
    exit
    ;;
--install)
    rm -rf "$DLOCK_CLIENT_TARGET/packages"
    build "$DLOCK_CLIENT_TARGET/packages"
    "$tools/bin/ruff" check --quiet --no-cache .
    "$tools/bin/ruff" format --quiet --no-cache --check src
    "$tools/bin/mypy" --cache-dir "$DLOCK_CLIENT_TARGET/mypy"
    python3 ../lines.py >/dev/null # which finds files of any client that import each other
    if [ ! -e "$DLOCK_REDIS_SOURCE/tests" ]; then
        rm -rf "$DLOCK_REDIS_SOURCE" && mkdir "$DLOCK_REDIS_SOURCE"
        "$tools/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary redis \
            --dest "$DLOCK_REDIS_SOURCE.packed" "redis==$newest"
        tar xzf "$DLOCK_REDIS_SOURCE.packed/redis-$newest.tar.gz" --directory "$DLOCK_REDIS_SOURCE" --strip-components 1
    fi
    install "$newest"
    install "$oldest"
    # An empty environment, with the package and what it needs: programs of users are run there (test_installed.py).
    python3 -m venv --clear "$DLOCK_CLIENT_TARGET/alone"
    pip "$DLOCK_CLIENT_TARGET/alone" "$DLOCK_CLIENT_TARGET"/packages/*.whl
    exit
    ;;
esac
export DLOCK_ALONE=$DLOCK_CLIENT_TARGET/alone/bin/python DLOCK_MYPY=$tools/bin/mypy
all=(--ignore test_planted.py .)
[ "${1:-}" != --cases ] || all=(test_cases.py)

run() { # VERSION ARGUMENTS…
    "$DLOCK_CLIENT_TARGET/redis-$1/bin/python" -m pytest --quiet -p no:cacheprovider "${@:2}" ||
        [ $? -eq 5 ] # nothing was chosen
}
started=() failed=()
start() { # NAME COMMAND…: alongside the others
    local name=$1
    shift
    ("$@" >"$DLOCK_CLIENT_SEEN/$name" 2>&1) &
    started+=("$! $name")
}
await() {
    local one
    for one in "${started[@]}"; do
        if wait "${one%% *}"; then
            echo "${one#* }: $(tail -n 1 "$DLOCK_CLIENT_SEEN/${one#* }")"
        else
            failed+=("${one#* }")
        fi
    done
    started=()
}

# Some tests need a server for themselves, or stop it. The others wait most of the time, so side by side (conftest.py).
for part in cluster pair; do
    DLOCK_PART=$part start $part run "$newest" "${all[@]}"
done
beside=("${started[@]}") started=()
DLOCK_PART=single start single run "$newest" "${all[@]}"
await
DLOCK_PART=rest start rest run "$newest" --numprocesses 5 --dist worksteal "${all[@]}"
if [ "${1:-}" != --cases ]; then
    # What the library does by itself (test_documented.py) is the newest's.
    DLOCK_PART=rest start oldest run "$oldest" -k threads test_dlock.py
    DLOCK_PART=cluster start oldest-cluster run "$oldest" -k closed_client test_dlock.py
fi
started+=("${beside[@]}")
await
# That each case fails on a client with a fault takes two minutes more.
if [ "${1:-}" != --cases ] && [ -n "${DLOCK_PLANTED:-}" ]; then
    start planted run "$newest" test_planted.py
    await
fi
for one in "${failed[@]}"; do
    echo "$one failed:"
    tail -n 500 "$DLOCK_CLIENT_SEEN/$one"
done
[ ${#failed[@]} -eq 0 ]
