#!/usr/bin/env bash
# dist.sh DIRECTORY: the archive of the sources, the module built from that archive, and their SHA-256 sums. The archive is of
# the last commit; where there is no repository, of what is there. Who does it again gets the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=packaging/source.sh
. packaging/source.sh

if ! tar --version | grep -q GNU || [ "$(uname)" != Linux ]; then
    echo 'dlock: make dist needs Linux and GNU tar' >&2
    exit 1
fi

mkdir -p "$1"
directory=$(cd "$1" && pwd -P)
name=dlock-$(version)
module=$name-linux-$(uname -m).so
time=$(epoch)

rm -rf "$directory/source"
mkdir -p "$directory/source/$name"
if in_repository; then
    [ -z "$(git status --porcelain)" ] || echo 'dlock: what is not committed is not in the archive' >&2
    git archive HEAD | tar -x -C "$directory/source/$name"
else
    # Not what was built there, nor what is being made.
    tar -c --exclude=./target --exclude=./fuzz/target --exclude="./${directory#"$(pwd -P)/"}" . | tar -x -C "$directory/source/$name"
fi

# Names in the order of bytes, one time, the same owner everywhere, and nothing of this machine's umask.
LC_ALL=C tar --sort=name --format=gnu --mtime="@$time" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    -c -C "$directory/source" "$name" | gzip -9 -n >"$directory/$name.tar.gz"

# What is built is what is in the archive.
rm -rf "$directory/source"
mkdir "$directory/source"
tar -xzf "$directory/$name.tar.gz" -C "$directory/source"
packaging/module.sh "$directory/source/$name" "$directory/build" "$directory/$module"

cd "$directory"
sha256sum "$name.tar.gz" "$module" >SHA256SUMS
cat SHA256SUMS
