#!/usr/bin/env bash
# run.sh SECONDS DIRECTORY [TARGET…]: runs the fuzz targets for so long, all at once. What they build and find new goes to
# DIRECTORY, what makes one fail to DIRECTORY/found. Installs a C++ compiler if it is missing: libFuzzer is written in C++.
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

command -v c++ >/dev/null || integration/apt.sh g++

# The counters by which libFuzzer sees where an input leads, and what it is compared with: any compiler adds them. The code under
# test has no `unsafe`: there is nothing for a sanitizer to find, which only a nightly compiler could add.
export RUSTFLAGS='--cfg fuzzing -Ccodegen-units=1 -Cdebug-assertions -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'
export RUST_BACKTRACE=0
host=$(rustc -vV | sed -n 's/^host: //p')
# With `--target`, build scripts are compiled without these flags.
cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$directory" --bins

mkdir -p "$directory/found"
fuzz() {
    # A conversation takes long to hold, and needs not be long.
    local target=$1 longest=4096 dictionary=()
    [ "$target" != words ] || longest=1024
    [ ! -e "fuzz/$target.dict" ] || dictionary=(-dict="fuzz/$target.dict")
    mkdir -p "$directory/corpus/$target"
    # Anything that takes 10 s is also a fault; so is 2 GB of memory, by the fuzzer's own default.
    "$directory/$host/release/$target" "$directory/corpus/$target" "fuzz/seeds/$target" -max_total_time="$seconds" \
        -max_len="$longest" -timeout=10 -artifact_prefix="$directory/found/$target-" ${dictionary[@]+"${dictionary[@]}"} \
        >"$directory/$target.log" 2>&1
}

pids=()
for target in "$@"; do
    fuzz "$target" &
    pids+=($!)
done
failed=()
for target in "$@"; do
    log=$directory/$target.log
    if wait "${pids[0]}"; then
        echo "dlock: $target: $(grep '^Done' "$log")"
    else
        failed+=("$target")
        grep -Ev '^#|^INFO|^Dictionary|NEW_FUNC' "$log" >&2 || true
        echo "dlock: $target failed; all that the fuzzer said is in $log. To try an input again:" \
            "$directory/$host/release/$target FILE" >&2
    fi
    pids=("${pids[@]:1}")
done
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}"
