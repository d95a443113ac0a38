#!/usr/bin/env bash
# record.sh COMMIT DIRECTORY: has the module of this commit write the files that `formats.rs` reads. For what 0.1.0 wrote:
#     integration/tests/survival/formats/record.sh cd925ff integration/tests/survival/formats/0.1.0
# The server lives on the first day of 2024 meanwhile, so that its tokens are of the past wherever the tests run; its leases end
# in 2074.
set -euo pipefail
cd "$(dirname "$0")/../../../.."

commit=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)

scratch=$(mktemp -d)
trap 'git worktree remove --force "$scratch/source" 2>/dev/null || true; rm -rf "$scratch"' EXIT

back=$(($(date +%s) - $(date -d '2024-01-01 UTC' +%s)))
cc -shared -fPIC -o "$scratch/clock.so" integration/src/clock.c
# The clock's file has its step in microseconds, in eight bytes.
for bits in 0 8 16 24 32 40 48 56; do
    printf "\\x$(printf %02x $((-back * 1000000 >> bits & 255)))"
done >"$scratch/clock"
printf '#!/bin/sh\nexec env LD_PRELOAD=%s DLOCK_CLOCK=%s redis-server "$@"\n' \
    "$scratch/clock.so" "$scratch/clock" >"$scratch/server"
chmod +x "$scratch/server"

git worktree add --quiet --detach "$scratch/source" "$commit"
(cd "$scratch/source" && CARGO_TARGET_DIR="$scratch/target" cargo build --quiet --release --package dlock)

DLOCK_REDIS_SERVER=$scratch/server DLOCK_MODULE=$scratch/target/release/libdlock.so DLOCK_RECORD=$directory \
    cargo test --package dlock-integration --test survival -- --ignored --exact formats::record
