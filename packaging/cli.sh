#!/usr/bin/env bash
# cli.sh DIRECTORY: builds the command line as DIRECTORY/dlock, with its manual page next to it (dlock.1) and what completes its
# words in shells (completion/). On Linux it is static: it runs on any distribution. Where rustup is not at hand, and elsewhere, it
# needs the system's libc.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1"
directory=$(cd "$1" && pwd -P)
cargo=$(cd "${CARGO_HOME:-$HOME/.cargo}" && pwd -P)
# Names of directories would be kept for backtraces.
export RUSTFLAGS="--remap-path-prefix $cargo=/cargo --remap-path-prefix $PWD=/dlock --remap-path-prefix $directory=/target"
options=(--quiet --locked --release --package dlock-cli --target-dir "$directory/build" --config 'profile.release.strip="symbols"')
built=$directory/build/release/dlock
if [ "$(uname)" = Linux ] && command -v rustup >/dev/null; then
    static=$(uname -m)-unknown-linux-musl
    if ! rustup target list --installed | grep -q "^$static$"; then
        echo "dlock: adding Rust's target $static, by rustup"
        rustup target add "$static"
    fi
    # The C of the cryptography asks nothing of a libc.
    export "CC_${static//-/_}=cc"
    options+=(--target "$static")
    built=$directory/build/$static/release/dlock
fi
echo 'dlock: compiling the command line; the first time takes some minutes'
cargo build "${options[@]}"
install -m 755 "$built" "$directory/dlock"
"$directory/dlock" man >"$directory/dlock.1"
mkdir -p "$directory/completion"
"$directory/dlock" complete bash >"$directory/completion/dlock"
"$directory/dlock" complete zsh >"$directory/completion/_dlock"
"$directory/dlock" complete fish >"$directory/completion/dlock.fish"
