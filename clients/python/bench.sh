#!/usr/bin/env bash
# Installs the package next to the popular locks of Python, and measures them in one run.
set -euo pipefail
cd "$(dirname "$0")"
./run.sh --package "$DLOCK_CLIENT_TARGET/bench-packages"
venv=$DLOCK_CLIENT_TARGET/bench
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0 python-redis-lock==4.0.1
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$DLOCK_CLIENT_TARGET"/bench-packages/*.whl
exec "$venv/bin/python" bench.py
