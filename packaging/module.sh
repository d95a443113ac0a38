#!/usr/bin/env bash
# module.sh SOURCE TARGET FILE: builds the module of these sources with the project's own profile, in the directory TARGET, as
# FILE. The same sources and the same compiler give the same bytes, whatever the directories are called.
set -euo pipefail

mkdir -p "$2"
source=$(cd "$1" && pwd -P)
target=$(cd "$2" && pwd -P)

# A user who has set these has done so for faster builds.
unset "${!CARGO_PROFILE_RELEASE_@}" RUSTFLAGS
export CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$target

# Names of directories would be kept for backtraces. The flags are not part of the names of symbols, as RUSTFLAGS would be to
# older versions of cargo: they are added by a wrapper.
wrapper=$target/rustc
cat >"$wrapper.new" <<'END'
#!/bin/sh
compiler=$1
shift
exec "$compiler" "$@" --remap-path-prefix "$DLOCK_CARGO=/cargo" --remap-path-prefix "$DLOCK_RUST=/rust" \
    --remap-path-prefix "$DLOCK_SOURCE=/dlock" --remap-path-prefix "$DLOCK_TARGET=/target"
END
chmod +x "$wrapper.new"
# With another one, cargo would rebuild everything.
cmp -s "$wrapper.new" "$wrapper" || cp "$wrapper.new" "$wrapper"
export RUSTC_WRAPPER=$wrapper DLOCK_SOURCE=$source DLOCK_TARGET=$target
DLOCK_CARGO=$(cd "${CARGO_HOME:-$HOME/.cargo}" && pwd -P)
DLOCK_RUST=$(rustc --print sysroot)
export DLOCK_CARGO DLOCK_RUST
# The bindings have a file in C. Its flags are quoted, as this asks for.
export CC_SHELL_ESCAPED_FLAGS=1 CFLAGS="'-ffile-prefix-map=$DLOCK_CARGO=/cargo'"

(cd "$source" && cargo build --quiet --locked --release --package dlock)
# Redis 7.0 and later load nothing that may not be executed.
install -m 755 "$target/release/libdlock.so" "$3"
