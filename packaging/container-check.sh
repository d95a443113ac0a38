#!/usr/bin/env bash
# container-check.sh: builds the container, once for Redis and once for Valkey, and has each give a lock. Needs podman or docker, and
# a registry of images.
set -euo pipefail
cd "$(dirname "$0")/.."

for engine in podman docker; do
    # The program may be there without its daemon.
    if "$engine" info >/dev/null 2>&1; then
        break
    fi
    engine=
done
if [ -z "$engine" ]; then
    echo 'dlock: neither podman nor docker works here' >&2
    exit 1
fi

container=
trap '[ -z "$container" ] || "$engine" rm --force "$container" >/dev/null' EXIT

ask() {
    "$engine" exec "$container" dlock-cli "$@" 2>&1
}
for server in redis valkey; do
    "$engine" build -f packaging/Containerfile --build-arg "SERVER=$server" -t "dlock-check-$server" .
    container=$("$engine" run --detach "dlock-check-$server")
    for _ in $(seq 300); do
        [ "$(ask PING)" != PONG ] || break
        sleep 0.1
    done
    reply=$(ask DLOCK.ACQUIRE stock alice 60000 | sed -n 2p)/$(ask DLOCK.ACQUIRE stock bob)
    "$engine" exec "$container" dlock who stock | grep alice
    reply=$reply/$(ask DLOCK.RELEASE stock alice)
    if [ "$reply" != 1//0 ]; then
        "$engine" logs "$container" >&2
        echo "dlock: the container of $server has answered $reply" >&2
        exit 1
    fi
    "$engine" rm --force "$container" >/dev/null
    container=
    echo "$engine: the container of $server was built; a lock was taken, refused and given back"
done
