#!/bin/sh
# Runs the server with the clocks next to this file: `Clock` links here from a directory with the library and the clocks' file.
here=$(dirname "$0")
exec env LD_PRELOAD="$here/clock.so" DLOCK_CLOCK="$here/clock" "${DLOCK_REDIS_SERVER:-redis-server}" "$@"
