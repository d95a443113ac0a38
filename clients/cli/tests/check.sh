#!/usr/bin/env bash
# check.sh DLOCK ADDRESS: runs the command line against a server.
set -euo pipefail
dlock=$1
export DLOCK_URL=redis://$2/
lock=cli:$$:$RANDOM
fail() { echo "$*" >&2; exit 1; }
ends() { # CODE COMMAND…
    local code=0
    "${@:2}" || code=$?
    [ "$code" = "$1" ] || fail "${*:2} ends with $code, not $1"
}
held() { # until it is (or, with !, is not) held
    local i
    for i in $(seq 300); do
        if [ "${1:-}" = ! ]; then
            "$dlock" who "$lock" >/dev/null || return 0
        else
            ! "$dlock" who "$lock" >/dev/null || return 0
        fi
        sleep 0.1
    done
    fail "gave up waiting until $lock is ${1:-} held"
}

ends 7 "$dlock" run "$lock" -- sh -c '[ -n "$DLOCK_TOKEN" ] && exit 7'
ends 69 "$dlock" run "$lock" -- /no/such/program
ends 64 "$dlock" run --wait 5s "$lock" -- true
ends 69 "$dlock" --url redis://127.0.0.1:1/ run --nonblock "$lock" -- true
ends 1 "$dlock" who "$lock"

"$dlock" run "$lock" -- sleep 60 & runner=$!
held
ends 1 "$dlock" run --nonblock "$lock" -- true
ends 9 "$dlock" run --wait 0.3 -E 9 "$lock" -- true
"$dlock" ls 'cli:*' | grep -q "^$lock" || fail 'it is not listed'
"$dlock" release "$lock" >/dev/null
ends 75 wait "$runner" # the command was ended

# The command is killed.
"$dlock" run "$lock" -- sh -c 'kill -9 $$' & runner=$!
ends 137 wait "$runner"
held !

# The runner is killed.
"$dlock" run "$lock" -- sleep 5 & runner=$!
held
kill -9 "$runner"
held !
ends 0 "$dlock" run --wait 10 "$lock" -- true
wait "$runner" 2>/dev/null || true

# What ends the runner ends the command.
"$dlock" run "$lock" -- sleep 60 & runner=$!
held
kill -TERM "$runner"
ends 143 wait "$runner"
"$dlock" top --once >/dev/null
# In a terminal it is drawn anew.
drawn=$(timeout 10 script -qec "timeout 2 $dlock top" /dev/null </dev/null || true)
[[ $drawn == *$'\e[H'*owner* ]] || fail 'top shows nothing'
"$dlock" man | cmp - "$(dirname "$0")/../dlock.1" || fail 'dlock.1 is not what `dlock man` writes'
echo 'the command line does what it says'
