#!/usr/bin/env bash
# Installs redis-py and pytest into a virtual environment of its own, and runs the tests.
set -euo pipefail
cd "$(dirname "$0")"

venv=$DLOCK_CLIENT_TARGET/venv
if ! "$venv/bin/python" -c 'import pytest, redis' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt
fi
export PYTHONDONTWRITEBYTECODE=1
exec "$venv/bin/python" -m pytest --quiet -p no:cacheprovider "$@" .
