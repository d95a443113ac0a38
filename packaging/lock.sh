# A server that gives a lock. To be sourced by a script.
# shellcheck shell=bash

# takes_a_lock SERVER CONFIG [RUNNER…]: starts the server's program, by RUNNER, with the lines of the file CONFIG and a port of its
# own. Takes a lock there, is refused it for another, releases it. Has the server rewrite its configuration, as Sentinel does with
# each change of role, starts it again, and does the same. Then it ends the server.
takes_a_lock() {
    local server=$1 config=$2 scratch socket pid reply run lines
    shift 2
    scratch=$(mktemp -d)
    chmod 777 "$scratch"
    socket=$scratch/server.sock
    # A port of 0 is none: nobody else can be asked by mistake. What comes later in the file wins.
    cat "$config" - >"$scratch/server.conf" <<END
port 0
unixsocket "$socket"
unixsocketperm 777
dir "$scratch"
daemonize no
pidfile ""
logfile ""
save ""
END
    # The server is another user.
    chmod 666 "$scratch/server.conf"
    ask() {
        redis-cli -s "$socket" "$@" 2>&1
    }
    unhappy() {
        cat "$scratch/server.log" >&2
        echo "dlock: $server $*" >&2
        kill "$pid" 2>/dev/null || true
        rm -rf "$scratch"
    }
    for run in first second; do
        "$@" "$server" "$scratch/server.conf" >"$scratch/server.log" 2>&1 &
        pid=$!
        local tries=0
        until [ "$(ask PING)" = PONG ]; do
            tries=$((tries + 1))
            if ! kill -0 "$pid" 2>/dev/null || [ "$tries" -gt 600 ]; then
                unhappy "does not start for the $run time, with: $(grep -E '^ *(include|loadmodule)' "$scratch/server.conf")"
                return 1
            fi
            sleep 0.1
        done
        reply=$(ask DLOCK.ACQUIRE stock alice 60000 | sed -n 2p)/$(ask DLOCK.ACQUIRE stock bob)/$(ask DLOCK.RELEASE stock alice)
        reply+=/$(ask CONFIG REWRITE)
        ask SHUTDOWN NOSAVE >/dev/null || true
        wait "$pid" || true
        lines=$(grep -c '^loadmodule ' "$scratch/server.conf")
        if [ "$reply/$lines" != 1//0/OK/1 ]; then
            unhappy "has answered $reply, and has $lines lines that load a module"
            return 1
        fi
    done
    rm -rf "$scratch"
    echo "$("$server" --version | cut -d ' ' -f 1-3): a lock was taken, refused and given back, and again after CONFIG REWRITE and a restart"
}
