#!/bin/sh
# start.sh server|sentinel: one node of a group: a primary and two replicas that grant only what replicas have confirmed, and a
# Sentinel next to each. All nodes are started alike, at first and again; who is primary is what most Sentinels say.
#
# start.sh leave: before this node's server is ended. It waits, for a minute at most, until the group can do without the node. If it is
# the primary, another one takes over, and no hold is lost.
# start.sh ready: succeeds if this node is in its place, and all replicas that the primary has count.
#
#   DLOCK_NODES      the nodes, the same on each: "dlock-0 dlock-1 dlock-2", also name:port. The first one is the first primary
#   DLOCK_SELF       which of them this is
#   DLOCK_PASSWORD   for clients, replicas and Sentinels alike; none if it is empty
#   DLOCK_DATA       where the node keeps its data: /data
#   DLOCK_CONF       the settings of every server: /etc/dlock/group.conf
#   DLOCK_DOWN_MS    after how many milliseconds a primary that does not answer is taken for dead: 5000
#   DLOCK_SERVER, DLOCK_CLI   the programs: redis-server, redis-cli
#
# A node's Sentinel listens 20,000 above its port.
set -eu

data=${DLOCK_DATA:-/data}
server=${DLOCK_SERVER:-redis-server}
cli=${DLOCK_CLI:-redis-cli}
password=${DLOCK_PASSWORD:-}

host() { echo "${1%:*}"; }
port() { case $1 in *:*) echo "${1##*:}" ;; *) echo 6379 ;; esac; }
sentinel_port() { echo $(($(port "$1") + 20000)); }
# The two lines would be an error with nothing behind them.
with_password() { [ -z "$password" ] || printf "$1 %s\n" "$password"; }

# What one Sentinel says: a name and a port.
told_by() {
    REDISCLI_AUTH=$password timeout 2 "$cli" -h "$(host "$1")" -p "$(sentinel_port "$1")" \
        SENTINEL get-master-addr-by-name dlock 2>/dev/null | paste -s -d ' ' -
}

# What most of them say; nothing if they do not agree, or do not answer.
primary() {
    nodes=0
    said=
    for node in $DLOCK_NODES; do
        nodes=$((nodes + 1))
        said="$said$(told_by "$node" || true)
"
    done
    echo "$said" | grep -E '^[^ ]+ [0-9]+$' | sort | uniq -c | sort -rn | head -n 1 |
        awk -v nodes="$nodes" '$1 > nodes / 2 { print $2, $3 }'
}

await_primary() {
    until primary=$(primary) && [ -n "$primary" ]; do
        echo 'dlock: no majority of the Sentinels says who is primary; asking again'
        sleep 1
    done
}

is_this() { [ "$1" = "$(host "$DLOCK_SELF") $(port "$DLOCK_SELF")" ]; }

# Succeeds if a replica runs that has followed a primary since its own start: it can take over.
has_successor() {
    for node in $DLOCK_NODES; do
        if [ "$node" != "$DLOCK_SELF" ] && ask "$node" INFO replication | awk '
            /^role:slave/ { replica = 1 } /^master_link_down_since_seconds:-1/ { new = 1 } END { exit !(replica && !new) }'; then
            return 0
        fi
    done
    return 1
}

# A primary that crashed and is back at once would be closed for dlock.quarantine-ms, and all holds would end. So it stays away until
# a replica has taken over, and for some ten seconds longer than the failure detection.
await_takeover() {
    end=$(($(date +%s) + ${DLOCK_DOWN_MS:-5000} / 1000 + 10))
    while is_this "$primary" && has_successor && [ "$(date +%s)" -lt "$end" ]; do
        [ -n "${waits:-}" ] || echo 'dlock: this was the primary; waiting until a replica takes over'
        waits=1
        sleep 1
        await_primary
    done
}

run_server() {
    await_primary
    await_takeover
    # Rewritten at each start: what Sentinel has changed in it is of the last time.
    {
        cat "${DLOCK_CONF:-/etc/dlock/group.conf}"
        echo "dir $data"
        echo "port $(port "$DLOCK_SELF")"
        echo "replica-announce-ip $(host "$DLOCK_SELF")"
        echo "replica-announce-port $(port "$DLOCK_SELF")"
        with_password requirepass
        with_password masterauth
        is_this "$primary" || echo "replicaof $primary"
    } >"$data/server.conf"
    echo "dlock: the primary is $primary, this is $DLOCK_SELF"
    exec "$server" "$data/server.conf"
}

run_sentinel() {
    mkdir -p "$data"
    # What it has learnt since it was started first is in this file: it must outlive a restart.
    if [ ! -s "$data/sentinel.conf" ]; then
        set -- $DLOCK_NODES
        {
            echo "port $(sentinel_port "$DLOCK_SELF")"
            echo "dir $data"
            echo 'protected-mode no'
            echo 'sentinel resolve-hostnames yes'
            echo 'sentinel announce-hostnames yes'
            echo "sentinel announce-ip $(host "$DLOCK_SELF")"
            echo "sentinel announce-port $(sentinel_port "$DLOCK_SELF")"
            echo "sentinel monitor dlock $(host "$1") $(port "$1") $(($# / 2 + 1))"
            echo "sentinel down-after-milliseconds dlock ${DLOCK_DOWN_MS:-5000}"
            echo "sentinel failover-timeout dlock 30000"
            with_password requirepass
            with_password 'sentinel auth-pass dlock'
        } >"$data/sentinel.conf"
    fi
    exec "$server" "$data/sentinel.conf" --sentinel
}

# Asks a node's server.
ask() {
    node=$1
    shift
    REDISCLI_AUTH=$password timeout 2 "$cli" -h "$(host "$node")" -p "$(port "$node")" "$@" 2>/dev/null | tr -d '\r'
}

is_primary() { ask "$DLOCK_SELF" ROLE | head -n 1 | grep -q '^master$'; }

# is_ready LEAST: succeeds if the server is the primary, or follows it, and all replicas that the primary has count, at least LEAST
# of them. One that was started again joins by a full copy, and counts dlock.quarantine-ms later.
is_ready() {
    primary=$DLOCK_SELF
    if ! is_primary; then
        primary=$(ask "$DLOCK_SELF" INFO replication | awk -F: '
            /^master_host:/ { host = substr($0, 13) } /^master_port:/ { port = $2 } /^master_link_status:up/ { up = 1 }
            END { if (up) print host ":" port }')
        [ -n "$primary" ] || return 1
    fi
    ask "$primary" INFO dlock | awk -F: -v least="$1" '{ of[$1] = $2 } END {
        counting = of["dlock_replicas_counting"]
        exit !(counting >= least && counting >= of["dlock_replicas_needed"] && counting == of["dlock_replicas_connected"] &&
            of["dlock_closed"] == 0)
    }'
}

# The other nodes whose Sentinel answers.
others() {
    for node in $DLOCK_NODES; do
        [ "$node" = "$DLOCK_SELF" ] || [ -z "$(told_by "$node")" ] || echo "$node"
    done
}

# sentinel NODE WORD…: has a node's Sentinel do something.
sentinel() {
    by=$1
    shift
    REDISCLI_AUTH=$password timeout 2 "$cli" -h "$(host "$by")" -p "$(sentinel_port "$by")" SENTINEL "$@" 2>/dev/null |
        grep -q '^OK$'
}

# Waits until all count: without that, the end of one more node would stop grants, or close the next primary. Then, at the primary,
# has another node take over without losing a write: all others join it with what they have, and count at once.
leave() {
    # shellcheck disable=SC2086
    set -- $DLOCK_NODES
    tries=0
    until is_ready $(($# - 1)); do
        tries=$((tries + 1))
        # Nobody is left: the whole group ends.
        [ -n "$(others)" ] || return 0
        [ "$tries" -lt 120 ] || break
        sleep 0.5
    done
    is_primary || return 0
    # Sentinel refuses for some seconds after the start of a replica.
    for by in $(others) $(others) $(others); do
        # Valkey 9 knows a way of its own. Elsewhere nothing may be written meanwhile, not even a heartbeat to the replicas.
        if ! sentinel "$by" FAILOVER dlock COORDINATED; then
            every=$(ask "$DLOCK_SELF" CONFIG GET repl-ping-replica-period | tail -n 1)
            ask "$DLOCK_SELF" CONFIG SET repl-ping-replica-period 3600 >/dev/null
            ask "$DLOCK_SELF" CLIENT PAUSE 3000 WRITE >/dev/null
            sentinel "$by" FAILOVER dlock || {
                ask "$DLOCK_SELF" CLIENT UNPAUSE >/dev/null
                ask "$DLOCK_SELF" CONFIG SET repl-ping-replica-period "$every" >/dev/null
                sleep 3
                continue
            }
        fi
        tries=0
        until next=$(told_by "$by") && [ -n "$next" ] && ! is_this "$next"; do
            tries=$((tries + 1))
            # Nothing has changed. The next one may do it.
            if [ "$tries" -ge 100 ]; then
                [ -z "${every:-}" ] || ask "$DLOCK_SELF" CONFIG SET repl-ping-replica-period "$every" >/dev/null
                continue 2
            fi
            sleep 0.1
        done
        # Sentinel would say that ten seconds later.
        # shellcheck disable=SC2086
        ask "$DLOCK_SELF" REPLICAOF $next >/dev/null
        if [ -n "${every:-}" ]; then
            # A replica that is paused confirms nothing.
            ask "$DLOCK_SELF" CLIENT UNPAUSE >/dev/null
            ask "$DLOCK_SELF" CONFIG SET repl-ping-replica-period "$every" >/dev/null
        fi
        echo "dlock: handed over to $next"
        return 0
    done
    return 1
}

case ${1:-} in
server) run_server ;;
sentinel) run_sentinel ;;
ready) is_ready 1 ;;
leave) leave ;;
*)
    echo "start.sh server|sentinel|ready|leave" >&2
    exit 2
    ;;
esac
