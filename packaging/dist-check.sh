#!/usr/bin/env bash
# dist-check.sh DIRECTORY: makes the archive and the module twice, at two places, and fails if they differ in a byte, if the
# module names a directory of this machine, or if it gives no lock.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd -P)
# shellcheck source=packaging/lock.sh
. "$here/packaging/lock.sh"

mkdir -p "$1"
directory=$(cd "$1" && pwd -P)
rm -rf "${directory:?}"/*
# Once from a clone. Then from the archive that came of it, at a place with a longer name, with other permissions, by another
# user's settings.
git clone --quiet "$here" "$directory/one"
"$directory/one/packaging/dist.sh" "$directory/first"

mkdir -p "$directory/another place"
tar -xzf "$directory"/first/*.tar.gz -C "$directory/another place" --strip-components=1
(
    umask 077
    export TZ=Asia/Kathmandu LC_ALL=C.UTF-8
    "$directory/another place/packaging/dist.sh" "$directory/another place/dist"
)

(cd "$directory/another place/dist" && sha256sum --check --quiet SHA256SUMS)
for file in "$directory"/first/*.tar.gz "$directory"/first/*.so "$directory"/first/SHA256SUMS; do
    cmp "$file" "$directory/another place/dist/${file##*/}"
done
module=$(echo "$directory"/first/*.so)
for word in "$directory" "$here" "$HOME"; do
    if grep -aqF "$word" "$module"; then
        echo "dlock: the module names $word" >&2
        exit 1
    fi
done
takes_a_lock "${DLOCK_REDIS_SERVER:-redis-server}" <(echo "loadmodule $module")
echo 'two builds gave the same bytes'
