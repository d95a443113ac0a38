# A server that gives a lock. To be sourced by a script.
# shellcheck shell=bash

# takes_a_lock SERVER LINE [RUNNER…]: starts the server's program, by RUNNER, with this line in its configuration, on a port of
# its own, takes a lock there, is refused it for another, gives it back, and ends the server.
takes_a_lock() {
    local server=$1 line=$2 scratch socket pid reply
    shift 2
    scratch=$(mktemp -d)
    chmod 777 "$scratch"
    socket=$scratch/server.sock
    # A port of 0 is none: nobody else can be asked by mistake.
    cat >"$scratch/server.conf" <<END
port 0
unixsocket "$socket"
unixsocketperm 777
dir "$scratch"
save ""
$line
END
    "$@" "$server" "$scratch/server.conf" >"$scratch/server.log" 2>&1 &
    pid=$!
    ask() {
        redis-cli -s "$socket" "$@" 2>&1
    }
    local tries=0
    until [ "$(ask PING)" = PONG ]; do
        tries=$((tries + 1))
        if ! kill -0 "$pid" 2>/dev/null || [ "$tries" -gt 600 ]; then
            cat "$scratch/server.log" >&2
            echo "dlock: $server does not start with: $line" >&2
            kill "$pid" 2>/dev/null || true
            rm -rf "$scratch"
            return 1
        fi
        sleep 0.1
    done
    reply=$(ask DLOCK.ACQUIRE stock alice 60000 | sed -n 2p)/$(ask DLOCK.ACQUIRE stock bob)/$(ask DLOCK.RELEASE stock alice)
    ask SHUTDOWN NOSAVE >/dev/null || true
    wait "$pid" || true
    if [ "$reply" != 1//0 ]; then
        cat "$scratch/server.log" >&2
        echo "dlock: $server has answered $reply" >&2
        rm -rf "$scratch"
        return 1
    fi
    rm -rf "$scratch"
    echo "$("$server" --version | cut -d ' ' -f 1-3): a lock was taken, refused and given back"
}
