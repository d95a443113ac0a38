#!/usr/bin/env bash
# record.sh COMMIT DIRECTORY: has the module of this commit write the files that `formats.rs` reads. For what 0.1.0 wrote:
#     integration/tests/formats/record.sh cd925ff integration/tests/formats/0.1.0
# The server lives on the first day of 2024 meanwhile, so that its tokens are of the past wherever the tests run; its leases end
# in 2074.
set -euo pipefail
cd "$(dirname "$0")/../../.."

commit=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)

scratch=$(mktemp -d)
trap 'git worktree remove --force "$scratch/source" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# libfaketime does not get along with the server's allocator; this is all of it that is needed.
cat >"$scratch/clock.c" <<'C'
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec -= BACK;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
C
back=$(($(date +%s) - $(date -d '2024-01-01 UTC' +%s)))
cc -shared -fPIC -DBACK="$back" -o "$scratch/clock.so" "$scratch/clock.c"
printf '#!/bin/sh\nLD_PRELOAD=%s exec redis-server "$@"\n' "$scratch/clock.so" >"$scratch/server"
chmod +x "$scratch/server"

git worktree add --quiet --detach "$scratch/source" "$commit"
(cd "$scratch/source" && CARGO_TARGET_DIR="$scratch/target" cargo build --quiet --release --package dlock)

DLOCK_REDIS_SERVER=$scratch/server DLOCK_MODULE=$scratch/target/release/libdlock.so DLOCK_RECORD=$directory \
    cargo test --package dlock-integration --test formats -- --ignored --exact record
