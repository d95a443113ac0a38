#!/usr/bin/env bash
# check.sh MODULE DIRECTORY: holds compose.yaml and kubernetes.yaml against their schemas, as far as these can be had, and
# runs the group that they describe: start.sh six times on this machine, a lock, kill -9 of the primary and its start, the same lock
# at the next one, and the old primary back as a replica. Then an update as Kubernetes does it, one node after the other, while a
# program holds a lock and takes others: none is lost, and a lock is granted at least every 3 seconds (on a busy machine set
# DLOCK_LONGEST_MS to more milliseconds). No container is run. DLOCK_REDIS_SERVER is the server: redis-server.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
module=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd -P)

if [ ! -x "$directory/venv/bin/check-jsonschema" ]; then
    python3 -m venv "$directory/venv" && "$directory/venv/bin/pip" install --quiet check-jsonschema kubernetes-validate || {
        echo 'dlock: the descriptions are not checked: python3, its venv and the validators cannot be had' >&2
        rm -rf "$directory/venv"
    }
fi
if [ -d "$directory/venv" ]; then
    "$directory/venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec "$here/compose.yaml"
    "$directory/venv/bin/kubernetes-validate" --strict "$here/kubernetes.yaml"
    # What Compose mounts is there.
    grep -oE '^ *- \.[^:]*|\[\.\.[^:]*' "$here/compose.yaml" | sed 's/^[^.]*//' | while read -r file; do
        [ -e "$here/$file" ] || {
            echo "dlock: compose.yaml mounts $file, which is not there" >&2
            exit 1
        }
    done
fi

# Three free ports of the loopback interface whose Sentinels' are free, too, and none that the system gives to who asks for any.
is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
ports=()
while [ "${#ports[@]}" -lt 3 ]; do
    port=$((10000 + RANDOM % 2000))
    if [[ " ${ports[*]} " != *" $port "* ]] && is_free "$port" && is_free "$((port + 20000))"; then
        ports+=("$port")
    fi
done
run=$directory/run
rm -rf "$run"
export DLOCK_NODES="127.0.0.1:${ports[0]} 127.0.0.1:${ports[1]} 127.0.0.1:${ports[2]}"
export DLOCK_PASSWORD=secret DLOCK_DOWN_MS=5000 DLOCK_CONF=$run/group.conf REDISCLI_AUTH=secret
export DLOCK_SERVER=${DLOCK_REDIS_SERVER:-redis-server}
mkdir -p "$run"
# Shorter leases, and so a shorter quarantine: the update waits for three of them.
sed "s|^loadmodule .*|loadmodule $module|; s|^bind .*|bind 127.0.0.1|; s|^dlock.quarantine-ms .*|dlock.quarantine-ms 15000|" \
    "$here/group.conf" >"$DLOCK_CONF"
lease=10000

declare -A pids
node() { # node NUMBER server|sentinel
    mkdir -p "$run/$2-$1"
    DLOCK_SELF=127.0.0.1:${ports[$1]} DLOCK_DATA=$run/$2-$1 timeout 400 "$here/start.sh" "$2" >>"$run/$2-$1.log" 2>&1 &
    pids[$2-$1]=$!
}
of() { # of NUMBER ready|leave
    DLOCK_SELF=127.0.0.1:${ports[$1]} "$here/start.sh" "$2"
}
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT
ask() { # ask NUMBER WORD…
    redis-cli -h 127.0.0.1 -p "${ports[$1]}" "${@:2}" 2>&1
}
await() { # await WHAT COMMAND…
    local what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 600 ]; then
            tail -n 5 "$run"/*.log >&2
            echo "dlock: in vain: $what" >&2
            exit 1
        fi
        sleep 0.1
    done
}
role() { [ "$(ask "$1" ROLE | head -n 1)" = "$2" ]; }
counts() { ask "$1" INFO dlock | grep -q "^dlock_replicas_counting:$2"; }
ends() { ! kill -0 "$1" 2>/dev/null; }
takes() { [[ $(ask "$1" DLOCK.ACQUIRE "$2" "$3" $lease HOLDS 1 | tr '\n' ' ') =~ ^[0-9]{16}\ 1\ $ ]]; }

for number in 0 1 2; do node "$number" sentinel; done
for number in 0 1 2; do node "$number" server; done
await 'the first node is the primary' role 0 master
await 'both others follow it' bash -c "redis-cli -h 127.0.0.1 -p ${ports[0]} INFO replication | grep -q '^connected_slaves:2'"
await 'it grants a lock' takes 0 stock alice
token=$(ask 0 DLOCK.HELD stock | head -n 1)
for number in 0 1 2; do
    await "Sentinel $number knows the others" bash -c "redis-cli -h 127.0.0.1 -p $((ports[number] + 20000)) \
        SENTINEL MASTER dlock | paste -s -d ' ' - | grep -q 'num-slaves 2 num-other-sentinels 2'"
done

ask 0 DLOCK.RENEW stock alice 15000 >/dev/null
# The server is a child of `timeout`, and has its own process id in its INFO.
kill -9 "$(ask 0 INFO server | sed -n 's/^process_id:\([0-9]*\).*/\1/p')"
# It is started again at once, as a container is. Were it the primary again, it would be closed.
await 'the server has ended' ends "${pids[server-0]}"
node 0 server
promoted() { role 1 master || role 2 master; }
await 'another node takes over' promoted
new=1
! role 2 master || new=2
[ "$(ask "$new" DLOCK.HELD stock | head -n 1)" = "$token" ] || {
    echo 'dlock: the grant was lost' >&2
    exit 1
}
await 'the new primary grants another lock' takes "$new" other bob
[ "$(ask "$new" DLOCK.RENEW stock alice $lease TOKEN "$token")" = $lease ] || {
    echo 'dlock: the hold was lost' >&2
    exit 1
}
await 'the old one is back' role 0 slave
await 'and both others count again' counts "$new" '[12]'
for number in 0 1 2; do await "node $number is ready" of "$number" ready; done
echo "a group of three: a lock was taken, its primary was killed, node $new took over with the lock and granted another; the old one follows"

# A program that asks the Sentinels for the primary, as clients do. It renews its hold and takes another lock, again and again, and
# writes down the longest time in milliseconds in which it got none, and whether its hold was lost.
now() { echo $((${EPOCHREALTIME/./} / 1000)); }
program() {
    local turn=0 longest=0 last renewed at said
    last=$(now)
    renewed=$last
    while [ ! -e "$run/over" ]; do
        turn=$((turn + 1))
        at=$(timeout 0.5 redis-cli -h 127.0.0.1 -p $((ports[turn % 3] + 20000)) SENTINEL get-master-addr-by-name dlock 2>/dev/null | tail -n 1) || true
        said=$(timeout 0.5 redis-cli -h 127.0.0.1 -p "${at:-1}" DLOCK.RENEW job program $lease TOKEN "$job" 2>&1 || true)
        if [ "$said" = $lease ]; then renewed=$(now); fi
        if [[ $said == NOTHELD* ]] || [ $(($(now) - renewed)) -gt $lease ]; then echo lost >"$run/lost"; fi
        if [[ $(timeout 0.5 redis-cli -h 127.0.0.1 -p "${at:-1}" DLOCK.ACQUIRE "turn:$turn" program 1000 2>&1 | tr '\n' ' ') =~ ^[0-9]{16}\ 1\ $ ]]; then
            [ $(($(now) - last)) -le "$longest" ] || longest=$(($(now) - last))
            last=$(now)
        fi
        echo "$longest $turn" >"$run/longest.new"
        mv "$run/longest.new" "$run/longest"
        sleep 0.02
    done
}
await 'the program has its lock' takes "$new" job program
job=$(ask "$new" DLOCK.HELD job | head -n 1)
program &
pids[program]=$!
for number in 2 1 0; do
    # As Kubernetes ends a pod: its Sentinel at once, its server after `leave`.
    kill "${pids[sentinel-$number]}"
    of "$number" leave
    kill "${pids[server-$number]}"
    for what in sentinel server; do
        await "$what $number has ended" ends "${pids[$what-$number]}"
        node "$number" "$what"
    done
    await "node $number is back" role "$number" slave
    ! of "$number" ready || {
        echo "dlock: node $number is ready before it counts" >&2
        exit 1
    }
    await "node $number is ready" of "$number" ready
done
touch "$run/over"
wait "${pids[program]}"
unset 'pids[program]'
[ ! -e "$run/lost" ] || {
    echo 'dlock: the update lost a hold' >&2
    exit 1
}
read -r longest turns <"$run/longest"
echo "an update of three nodes, one after the other: no hold was lost, and in $turns turns a lock was granted at least every $longest ms"
[ "$longest" -le "${DLOCK_LONGEST_MS:-3000}" ] || {
    echo "dlock: for more than ${DLOCK_LONGEST_MS:-3000} ms (DLOCK_LONGEST_MS) no lock was granted" >&2
    exit 1
}
