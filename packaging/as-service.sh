#!/usr/bin/env bash
# as-service.sh PROGRAM [ARGUMENT…]: runs a server as Debian's service of it would, as far as that can be had without systemd: as
# its user, and executing nothing but what the unit allows (NoExecPaths=/ and ExecPaths). As root, where file systems may be
# mounted.
set -euo pipefail

program=$1
service=$(basename "$program")
unit=/lib/systemd/system/$service.service
read -ra executable <<<"$(sed -n 's/^ExecPaths=//p' "$unit" | tr '\n' ' ')"

# What is a mount of its own keeps its rights when the rest of the file system loses them.
# shellcheck disable=SC2016
exec unshare --mount --propagation private bash -euc '
    user=$1 count=$2
    shift 2
    for path in "${@:1:count}" "$(command -v setpriv)"; do
        mount --bind "$path" "$path"
    done
    shift "$count"
    mount -o remount,bind,noexec /
    exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
' as-service "$(sed -n 's/^User=//p' "$unit")" "${#executable[@]}" "${executable[@]}" "$@"
