#!/usr/bin/env bash
# Installs the package next to the popular locks of Python, and measures them in one run.
set -euo pipefail
cd "$(dirname "$0")"
./run.sh --package "$DLOCK_CLIENT_TARGET/bench-packages" >&2
venv=$DLOCK_CLIENT_TARGET/bench
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0 python-redis-lock==4.0.1 >&2
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$DLOCK_CLIENT_TARGET"/bench-packages/*.whl >&2
exec timeout 600 "$venv/bin/python" bench.py
