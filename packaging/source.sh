# What a package is made of: its version, and the time that its files have. To be sourced by a script, at the top of the project.
# shellcheck shell=bash

# The version of the module.
version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}

# Is this the project's repository, not a directory within another one?
in_repository() {
    [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]
}

# The time of the last commit; of what was unpacked from an archive, the archive's. SOURCE_DATE_EPOCH overrules both.
epoch() {
    if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
        echo "$SOURCE_DATE_EPOCH"
    elif in_repository; then
        git log -1 --format=%ct
    else
        date -r Cargo.toml +%s
    fi
}
