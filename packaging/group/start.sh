#!/bin/sh
# start.sh server|sentinel: one node of a group: a primary and two replicas that grant only what replicas have confirmed, and a
# Sentinel beside each. All nodes are started alike, at first and again; who is primary is what most Sentinels say.
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

run_server() {
    until primary=$(primary) && [ -n "$primary" ]; do
        echo 'dlock: no majority of the Sentinels says who is primary; asking again'
        sleep 1
    done
    # Written anew at each start: what Sentinel has changed in it is of the last time.
    {
        cat "${DLOCK_CONF:-/etc/dlock/group.conf}"
        echo "dir $data"
        echo "port $(port "$DLOCK_SELF")"
        echo "replica-announce-ip $(host "$DLOCK_SELF")"
        echo "replica-announce-port $(port "$DLOCK_SELF")"
        with_password requirepass
        with_password masterauth
        if [ "$primary" != "$(host "$DLOCK_SELF") $(port "$DLOCK_SELF")" ]; then
            echo "replicaof $primary"
        fi
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

case ${1:-} in
server) run_server ;;
sentinel) run_sentinel ;;
*)
    echo "start.sh server|sentinel" >&2
    exit 2
    ;;
esac
