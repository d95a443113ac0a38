#!/usr/bin/env bash
# run.sh SECONDS DIRECTORY [TARGET…]: runs each fuzz target for so long. What they build and find new goes to
# DIRECTORY, what makes one fail to DIRECTORY/found. Installs what is missing: a nightly compiler and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
directory=$2
shift 2
[ $# -gt 0 ] || set -- words effect value

fail() {
    printf 'dlock: %s\n' "$@" >&2
    exit 1
}

command -v rustup >/dev/null || fail 'the fuzzer needs a nightly compiler, and rustup to choose it (https://rustup.rs)'
command -v c++ >/dev/null || fail "the fuzzer needs a C++ compiler: install g++ or clang"
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo 'dlock: installing a nightly compiler'
    rustup toolchain install nightly --profile minimal
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo 'dlock: installing cargo-fuzz'
    CARGO_TARGET_DIR=$directory cargo install --quiet --locked cargo-fuzz
fi

# The fuzzer tells its own.
export CARGO_TARGET_DIR=$directory RUST_BACKTRACE=0
mkdir -p "$directory/found"
for target in "$@"; do
    # A conversation takes long to hold, and needs not be long.
    longest=4096
    [ "$target" != words ] || longest=1024
    corpus=$directory/corpus/$target
    mkdir -p "$corpus"
    dictionary=()
    [ ! -e "fuzz/$target.dict" ] || dictionary=(-dict="fuzz/$target.dict")
    echo "dlock: $target for $seconds s"
    log=$directory/$target.log
    # The code under test has no `unsafe`: there is nothing for a sanitizer to find. Anything that takes 10 s is also
    # a fault; so is 2 GB of memory, by the fuzzer's own default.
    if cargo +nightly fuzz run --sanitizer none "$target" "$corpus" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -max_len="$longest" -timeout=10 -artifact_prefix="$directory/found/$target-" ${dictionary[@]+"${dictionary[@]}"} >"$log" 2>&1; then
        grep '^Done' "$log"
    else
        grep -Ev '^#|^INFO|^Dictionary|NEW_FUNC|^ *(Finished|Running|#[0-9])' "$log" >&2 || true
        fail "$target failed; all that the fuzzer said is in $log"
    fi
done
