#!/usr/bin/env bash
# test-servers.sh DIRECTORY [NAME…]: the integration tests against each server that servers.sh fetched there, or those named.
set -euo pipefail

directory=$1
shift
names=" $* "
failed=()
tested=0

for server in "$directory"/*/server; do
    [ -x "$server" ] || continue
    name=$(basename "$(dirname "$server")")
    [ $# -eq 0 ] || [[ $names == *" $name "* ]] || continue
    echo "=== $name ==="
    tested=$((tested + 1))
    DLOCK_REDIS_SERVER=$server cargo test --test servers --no-fail-fast || failed+=("$name")
done

if [ "$tested" -eq 0 ] || [ "$tested" -lt $# ]; then
    echo "dlock: $tested servers in $directory${*:+ of these: $*}; run 'make servers' first" >&2
    exit 1
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all of $tested servers passed"
