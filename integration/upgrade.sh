#!/usr/bin/env bash
# upgrade.sh DIRECTORY COMMIT: builds the module of this commit from the project's own history, and updates a running system from
# it to the present module (tests/survival/upgrade.rs). Needs a repository with its history.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$2
mkdir -p "$1/$commit"
directory=$(cd "$1/$commit" && pwd -P)
export DLOCK_OLD_MODULE=$directory/libdlock.so

if ! [ -e "$DLOCK_OLD_MODULE" ]; then
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        echo "dlock: there is no commit $commit here: make upgrade needs a clone with its whole history" >&2
        exit 1
    fi
    echo "dlock: building the module of $commit"
    rm -rf "$directory/source"
    mkdir "$directory/source"
    git archive "$commit" | tar -x -C "$directory/source"
    (cd "$directory/source" && CARGO_TARGET_DIR="$directory/target" cargo build --quiet --release --package dlock)
    cp "$directory/target/release/libdlock.so" "$DLOCK_OLD_MODULE"
    rm -rf "$directory/source" "$directory/target"
fi

cargo test --test servers survival::upgrade:: -- --ignored
