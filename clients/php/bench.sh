#!/usr/bin/env bash
# Installs the package next to the distribution's locks of Symfony and Laravel, and measures them in one run.
set -euo pipefail
cd "$(dirname "$0")"
./run.sh --project "$DLOCK_CLIENT_TARGET/bench" >&2
exec timeout 600 php -d display_errors=stderr bench.php
