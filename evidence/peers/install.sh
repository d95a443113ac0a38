#!/usr/bin/env bash
# install.sh DIRECTORY: installs the services that `make bench-peers` compares, in the versions that this file and the files next
# to it name. Tools come by apt-get. The services go into DIRECTORY: etcd by Go, the rest by Maven. It names and leaves out those
# that it cannot get.
set -euo pipefail

# A build of PostgreSQL for embedding, by https://github.com/zonkyio/embedded-postgres-binaries.
POSTGRES=18.4.0

mkdir -p "$1"
# Maven takes a relative one from where its project is.
directory=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)

has() {
    command -v "$1" >/dev/null 2>&1
}

missing() {
    has protoc || echo protobuf-compiler
    # The imports of etcd's client.
    [ -e /usr/include/google/protobuf/descriptor.proto ] || echo libprotobuf-dev
    has strace || echo strace
    has javac || echo default-jdk-headless
    has mvn || echo maven
    has go || echo golang-go
    has xz || echo xz-utils
}

left_out() {
    echo "dlock: $*: left out" >&2
}

# Word splitting is wanted: the function prints names of packages.
# shellcheck disable=SC2046
set -- $(missing)
[ $# -eq 0 ] || "$here/../../integration/apt.sh" "$@" || left_out "what needs $*"

has protoc || {
    echo 'dlock: there is no protoc, which the client of etcd is built with' >&2
    exit 1
}

# is_done NAME FILE…: succeeds if NAME was installed as these files say.
is_done() {
    [ -e "$directory/$1.done" ] && cat "${@:2}" | cmp -s - "$directory/$1.done"
}

# Libraries of a project, without those for its tests.
libraries() {
    rm -rf "$directory/$1/lib" &&
        mvn -q -B -f "$here/$1/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$directory/$1/lib"
}

install_etcd() {
    export GOMODCACHE=$directory/go/modules GOCACHE=$directory/go/cache GOFLAGS='-modcacherw -buildvcs=false -mod=readonly'
    cd "$here/etcd" && go build -o "$directory/etcd" .
}

install_postgres() {
    local machine artifact
    case $(uname -sm) in
    'Linux x86_64') machine=linux-amd64 ;;
    'Linux aarch64') machine=linux-arm64v8 ;;
    *) return 1 ;;
    esac
    artifact=embedded-postgres-binaries-$machine
    rm -rf "$directory/postgres"
    mkdir -p "$directory/postgres"
    cd "$directory/postgres" &&
        mvn -q -B dependency:copy -Dartifact="io.zonky.test.postgres:$artifact:$POSTGRES" -DoutputDirectory="$PWD" &&
        jar xf ./*.jar &&
        tar xJf ./*.txz &&
        rm -r META-INF ./*.jar ./*.txz
}

install_java() {
    libraries java && mkdir -p "$directory/java/classes"
}

install_zookeeper() {
    libraries zookeeper
}

# install NAME FILE…
install() {
    is_done "$@" && return
    echo "dlock: installing $1" >&2
    # In an `if` a failing command does not end a function, hence the `&&` above.
    if ("install_$1"); then
        cat "${@:2}" >"$directory/$1.done"
    else
        left_out "$1"
    fi
}

install etcd "$here"/etcd/go.mod "$here"/etcd/main.go
install postgres "$here/install.sh"
install zookeeper "$here/zookeeper/pom.xml"
install java "$here/java/pom.xml"

javac -cp "$directory/java/lib/*" -d "$directory/java/classes" "$here"/java/src/main/java/*.java || left_out 'Redisson: the Java program'
