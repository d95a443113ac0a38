#!/usr/bin/env bash
# Installs the needs of building and testing besides Rust: a server, its client, a C compiler and libclang (the bindings to the
# module API are generated from C headers). Prints so and does nothing if all are there.
set -euo pipefail

server=${DLOCK_REDIS_SERVER:-redis-server}

fail() {
    printf 'dlock: %s\n' "$@" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Succeeds if any of these patterns matches a file.
exists() {
    compgen -G "$1" >/dev/null || { [ $# -gt 1 ] && shift && exists "$@"; }
}

# The compiler and the C library's headers, which are a package of their own.
has_compiler() {
    has cc && echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1
}

# The library, and the headers that only clang itself can supply.
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return
    case $(uname) in
    Darwin)
        exists '/Library/Developer/CommandLineTools/usr/lib/libclang.dylib' \
            '/Applications/Xcode.app/Contents/Developer/Toolchains/*/usr/lib/libclang.dylib' \
            '/opt/homebrew/opt/llvm/lib/libclang.dylib' '/usr/local/opt/llvm/lib/libclang.dylib'
        ;;
    *)
        # With or without a version in the name; libclang-cpp is another library.
        exists /usr/lib{/llvm-*/lib,64,,/*-linux-gnu}/libclang{.so,-[0-9]*.so}'*' &&
            exists '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' '/usr/lib*/clang/*/include/stddef.h'
        ;;
    esac
}

apt_packages() {
    has "$server" || echo redis-server
    has redis-cli || echo redis-tools
    has_compiler || echo gcc libc6-dev
    has_libclang || echo libclang-dev
}

brew_packages() {
    has "$server" && has redis-cli || echo redis
    has_libclang || echo llvm
}

install_by_brew() {
    echo "dlock: installing $*"
    brew install --quiet "$@"
}

has cargo || fail 'there is no cargo: install Rust 1.85 or later first (https://rustup.rs)'

# Word splitting is wanted: each function prints names of packages.
# shellcheck disable=SC2046
if has apt-get; then
    set -- $(apt_packages)
    [ $# -eq 0 ] || "$(dirname "$0")/apt.sh" "$@"
elif has brew; then
    set -- $(brew_packages)
    [ $# -eq 0 ] || install_by_brew "$@"
elif ! has "$server" || ! has redis-cli || ! has_compiler || ! has_libclang; then
    fail 'something is missing, and there is neither apt-get nor brew to install it.' \
        'Needed: redis-server and redis-cli (Redis 7.0 or later, or Valkey 8 or later: then set' \
        'DLOCK_REDIS_SERVER to the server), a C compiler, and libclang with its headers.'
fi

has "$server" || fail "there is no server named $server" 'DLOCK_REDIS_SERVER says which one to use.'

version=$("$server" --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
[ "${version:-0}" -ge 7 ] || fail "$server is version ${version:-unknown}, but Redis 7.0 or Valkey 8 is needed." \
    'Install a later one and name it: DLOCK_REDIS_SERVER=/path/to/redis-server make …'
