#!/usr/bin/env bash
# apt.sh PACKAGE…: installs Debian's packages, as root or by sudo. Concurrent runs wait for each other: apt-get's own update fails
# while another one runs.
set -euo pipefail

missing() {
    printf 'dlock: %s\n' "missing: $*" "$why" "    apt-get install $*" >&2
    exit 1
}

why='there is no apt-get here, so install them yourself; on Debian it would be:'
command -v apt-get >/dev/null || missing "$@"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    why='become root, or install them yourself:'
    command -v sudo >/dev/null || missing "$@"
    as_root=(sudo)
fi
# No process that a package starts keeps this lock: it is closed for them.
exec 9<"${BASH_SOURCE[0]}"
flock 9
echo "dlock: installing $*" >&2
# A fresh machine has no package lists yet. ("${a[@]+…}": an empty array is unset to older bashes.)
${as_root[@]+"${as_root[@]}"} apt-get -o DPkg::Lock::Timeout=120 update -qq 9<&-
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends "$@" >/dev/null 9<&-
