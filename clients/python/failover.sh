#!/usr/bin/env bash
# Runs the program of a run of failovers: `failover.sh threads` or `failover.sh asyncio`. `failover.sh --install` builds and
# installs what it needs, and prints only what has failed.
set -euo pipefail
cd "$(dirname "$0")"
venv=$DLOCK_CLIENT_TARGET/failover
[ "${1:-}" = --install ] || exec "$venv/bin/python" failover.py "$@"

mkdir -p "$DLOCK_CLIENT_TARGET"
log=$DLOCK_CLIENT_TARGET/failover.log
exec 3>&2 >"$log" 2>&1
trap '[ $? -eq 0 ] || cat "$log" >&3' EXIT
rm -rf "$DLOCK_CLIENT_TARGET/failover-packages"
./run.sh --package "$DLOCK_CLIENT_TARGET/failover-packages"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$DLOCK_CLIENT_TARGET"/failover-packages/*.whl
