#!/usr/bin/env bash
# run.sh DIRECTORY SECONDS SEED [TOPIC…]: integration tests, a file each, on a server under valgrind's memcheck, then random
# commands by a seed for that time. Fails if the server or the module reads or writes memory that it does not own, or decides on
# uninitialised memory, except for the server's own faults in server.supp; first it shows that it would notice. Memcheck's output
# goes to DIRECTORY/memcheck.*, that of the tests to DIRECTORY/*.log.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

directory=$1
seconds=$2
seed=$3
shift 3
# The tests that open, block, kill, restore, replicate and reload.
topics=(basics waiting blocked undelivered confirmed many tickets ephemeral sessions observers removal persistence replication keys payloads scripts words
    conversations)
# The conversations that also do so.
export DLOCK_SCENARIO=${DLOCK_SCENARIO:-removal,ephemeral,sessions,waiting,log,scripts}
[ $# -gt 0 ] || set -- "${topics[@]}"
# Masses would take hours, and the server's stalls mean nothing here. A server that ends itself reads all memory for its report.
skipped=(--skip cannot_follow --skip stall --skip a_hundred_thousand --skip a_large_keyspace --skip a_thousand_die)
server=$(command -v "${DLOCK_REDIS_SERVER:-redis-server}")

fail() {
    printf 'dlock: %s\n' "$@" >&2
    exit 1
}

command -v valgrind >/dev/null || "$here/../apt.sh" valgrind libc6-dbg

mkdir -p "$directory"
rm -f "$directory"/memcheck.*
# The tests run this in place of the server. With `--quiet` memcheck prints its findings only. The server's allocator is jemalloc, in
# the program itself or in a library.
cat >"$directory/server" <<END
#!/bin/sh
case \$1 in --version) exec '$server' --version ;; esac
exec valgrind --quiet --soname-synonyms='somalloc=*jemalloc*' --suppressions='$here/server.supp' --num-callers=40 \\
    --log-file='$directory/memcheck.%p' '$server' "\$@"
END
chmod +x "$directory/server"

# Memcheck's findings, if any.
found() {
    find "$directory" -name 'memcheck.*' -size +0
}

# Planted faults: the rest means nothing unless these are found.
cc -O1 -shared -fPIC -o "$directory/planted.so" "$here/planted.c"
plant() {
    "$directory/server" --port 0 --unixsocket "$directory/socket" --save '' --loadmodule "$directory/planted.so" \
        >"$directory/planted.log" &
    local pid=$!
    until redis-cli -s "$directory/socket" ping >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || fail "the server did not start under valgrind; see $directory/planted.log"
        sleep 0.1
    done
    redis-cli -s "$directory/socket" "$1" >/dev/null
    redis-cli -s "$directory/socket" shutdown nosave >/dev/null 2>&1 || true
    wait "$pid" || true
    grep -q "$2" "$directory/memcheck.$pid" || fail "memcheck did not see what $1 does"
    rm "$directory/memcheck.$pid"
}
plant planted.freed 'Invalid read'
plant planted.unwritten 'uninitialised'
[ -z "$(found)" ] || fail 'memcheck finds fault with the server alone:' "$(found | xargs cat)"
echo 'dlock: planted faults are seen'

export DLOCK_REDIS_SERVER=$directory/server DLOCK_RANDOM_SECONDS=$seconds DLOCK_RANDOM_SEED=$seed
passed=0
failed=()
for topic in "$@" random; do
    begin=$SECONDS
    log=$directory/$topic.log
    cargo test --quiet --test servers "::$topic::" -- "${skipped[@]}" >"$log" 2>&1 || true
    count=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log")
    [ "${count:-0}" -gt 0 ] || fail "$topic has not run: see $log"
    passed=$((passed + count))
    # Each name stands alone on a line at the end.
    mapfile -t names < <(sed -n '/^failures:$/,$s/^    \([a-z_0-9:]*\)$/\1/p' "$log" | sort -u)
    failed+=("${names[@]+"${names[@]}"}")
    echo "dlock: $topic, $((SECONDS - begin)) s"
    if [ -n "$(found)" ]; then
        found | xargs cat >&2
        fail "memcheck has found something in $topic"
    fi
done

# The server is some thirty times slower than usual: a test that relies on a lease fails, and skips its rest. But many failures
# have another cause.
[ ${#failed[@]} -eq 0 ] || printf 'dlock: too slow for this: %s\n' "${failed[@]}"
[ "$passed" -gt $((4 * ${#failed[@]})) ] || fail "too many tests fail: see $directory/*.log"
echo "dlock: memcheck has found nothing in $passed tests; $SECONDS s"
