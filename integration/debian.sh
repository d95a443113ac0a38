# Programs from Debian's archive, side by side in the working directory, without installing them. To be sourced by a
# script; needs a Debian machine (from_own: any with apt-get), whose package tools and their configuration it uses.
# shellcheck shell=bash

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

# from_own NAME PACKAGE: a package's program from this machine's own release, which needs no further libraries.
from_own() {
    mkdir -p "$1/root/lists"
    (
        cd "$1/root"
        options=(-qq -o APT::Sandbox::User= -o Debug::NoLocking=1)
        # A fresh machine has no package lists yet.
        if ! apt-get "${options[@]}" download "$2" 2>/dev/null; then
            options+=(-o Dir::State::lists="$PWD/lists")
            apt-get "${options[@]}" update
            apt-get "${options[@]}" download "$2"
        fi
        dpkg-deb --extract ./*.deb .
        rm -r lists ./*.deb
    )
    write_server "$1" "exec '$PWD/$1/root/usr/bin/$2'"
}

# unpack_debs DIRECTORY PACKAGE SUITE [BASE]: the package and all its dependencies, from SUITE and, if missing there, from BASE.
# An apt of its own, for which nothing is installed, chooses them.
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

# The archive of this machine's packages.
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
