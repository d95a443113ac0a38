#!/usr/bin/env bash
# install.sh DIRECTORY: what `make bench-peers` compares with. Servers come by apt-get, the Java libraries by Maven into DIRECTORY.
# What cannot be had is said, and left out of the comparison.
set -euo pipefail

mkdir -p "$1"
# Maven takes a relative one from where its project is.
directory=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)

has() {
    command -v "$1" >/dev/null 2>&1
}

missing() {
    has etcd || echo etcd-server
    has protoc || echo protobuf-compiler
    # What the client of etcd imports.
    [ -e /usr/include/google/protobuf/descriptor.proto ] || echo libprotobuf-dev
    has strace || echo strace
    has javac || echo default-jdk-headless
    has mvn || echo maven
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || echo postgresql
    [ -e /usr/share/java/zookeeper.jar ] || echo zookeeper
}

# Word splitting is wanted: the function prints names of packages.
# shellcheck disable=SC2046
set -- $(missing)
if [ $# -gt 0 ] && has apt-get; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    echo "dlock: installing $*"
    ${as_root[@]+"${as_root[@]}"} apt-get update -qq || true
    for package in "$@"; do
        # Debian's packages start their servers; here they are started by the benchmark, on ports of its own.
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
            apt-get install -qq -y --no-install-recommends "$package" >/dev/null ||
            echo "dlock: $package cannot be installed: it is left out" >&2
    done
elif [ $# -gt 0 ]; then
    echo "dlock: missing and left out: $*" >&2
fi

has protoc || {
    echo 'dlock: there is no protoc, which the client of etcd is built with' >&2
    exit 1
}

mkdir -p "$directory/classes"
if ! cmp -s "$here/java/pom.xml" "$directory/pom.xml"; then
    if mvn -q -B -f "$here/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$directory/lib"; then
        cp "$here/java/pom.xml" "$directory/pom.xml"
    else
        echo 'dlock: Maven cannot fetch Redisson: it is left out' >&2
        exit 0
    fi
fi
javac -cp "$directory/lib/*" -d "$directory/classes" "$here/java/src/main/java/Peers.java" ||
    echo 'dlock: the Java driver cannot be built: Redisson is left out' >&2
