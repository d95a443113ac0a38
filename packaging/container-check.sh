#!/usr/bin/env bash
# container-check.sh: builds the container and has it give a lock. Needs podman or docker, and a registry of images.
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

"$engine" build -f packaging/Containerfile -t dlock-check .
container=$("$engine" run --detach dlock-check)
trap '"$engine" rm --force "$container" >/dev/null' EXIT

ask() {
    "$engine" exec "$container" redis-cli "$@" 2>&1
}
for _ in $(seq 300); do
    [ "$(ask PING)" != PONG ] || break
    sleep 0.1
done
reply=$(ask DLOCK.ACQUIRE stock alice 60000 | sed -n 2p)/$(ask DLOCK.ACQUIRE stock bob)/$(ask DLOCK.RELEASE stock alice)
if [ "$reply" != 1//0 ]; then
    "$engine" logs "$container" >&2
    echo "dlock: the container has answered $reply" >&2
    exit 1
fi
echo "$engine: the container was built; a lock was taken, refused and given back"
