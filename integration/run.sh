#!/usr/bin/env bash
# run.sh MODULE PORT [or-next]: a server with the module, in the foreground, on the loopback interface only.
# With `or-next` (the user has not asked for this very port) the next free port is used if this one is taken.
set -euo pipefail

module=$1
port=$2
or_next=${3:-}
server=${DLOCK_REDIS_SERVER:-redis-server}

is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

next_free() {
    local port=$1
    while is_taken "$port"; do
        port=$((port + 1))
    done
    echo "$port"
}

if is_taken "$port"; then
    # Some systems start a redis-server of their own as soon as the package is installed.
    free=$(next_free "$port")
    if [ -z "$or_next" ]; then
        printf 'dlock: another server has port %s; it was left alone. Choose a free one:\n\n' "$port" >&2
        printf '    make run PORT=%s\n\n' "$free" >&2
        exit 1
    fi
    printf '\ndlock: another server has port %s; it was left alone, and port %s is used.\n' "$port" "$free"
    port=$free
fi

cat <<END

Starting a server with dlock on port $port; Ctrl-C ends it. In another terminal, type:

    redis-cli -p $port DLOCK.ACQUIRE stock alice 60000
    redis-cli -p $port DLOCK.ACQUIRE stock bob 60000 BLOCK 0

and in a third, to hand the lock from alice to bob:

    redis-cli -p $port DLOCK.RELEASE stock alice

END

# Nothing is saved: this server is for trying dlock.
exec "$server" --port "$port" --bind 127.0.0.1 --save '' --dir "$(dirname "$module")" --loadmodule "$module"
