#!/usr/bin/env bash
# Runs the cases and the tests against the crate as it is packed, with the newest and the oldest redis 1.x; `run.sh --cases` only
# the cases. `run.sh --install` builds it, checks it, and uses it in empty projects. `run.sh --package DIR` only builds it.
set -euo pipefail
cd "$(dirname "$0")"

newest=1.8.1
oldest=1.0.0 # that of Cargo.toml
export CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET
# What fails names its line without it.
export CARGO_PROFILE_DEV_DEBUG=0
crate=$DLOCK_CLIENT_TARGET/package/dlock-redis-0.6.0-dev.crate
cluster=(--features cluster,dlock-redis/cluster)
servers=(--features cluster,sentinel,tls-rustls,dlock-redis/cluster,dlock-redis/sentinel,dlock-redis/tls-rustls --test servers)

# An empty project with the tests' own copy, next to the crate as it is packed.
project() { # NAME VERSION
    local project=$DLOCK_CLIENT_TARGET/$1
    rm -rf "$project"
    mkdir -p "$project/src"
    # -m: in the package all files are of one old day, by which cargo would take what it built before for theirs.
    tar -xzmf "$crate" -C "$project"
    cp -r tests examples "$project"
    echo '#![doc = "Nothing."]' >"$project/src/lib.rs"
    sed -e 's/^name = "dlock-redis"/name = "empty"/; s/^include = .*//; s/^readme = .*//' \
        -e 's|^\[dependencies\]|[dependencies]\ndlock-redis = { path = "dlock-redis-0.6.0-dev" }|' Cargo.toml >"$project/Cargo.toml"
    cp Cargo.lock "$project"
    (cd "$project" && cargo update --quiet --package redis --precise "$2")
}
inside() { # NAME COMMAND…
    (cd "$DLOCK_CLIENT_TARGET/$1" && "${@:2}")
}
case ${1:-} in
--package | --install) cargo package --quiet --allow-dirty --no-verify ;;&
--package)
    mkdir -p "$2"
    cp "$DLOCK_CLIENT_TARGET"/package/dlock-redis-*.crate "$2"
    exit
    ;;
--install)
    project newest "$newest"
    project oldest "$oldest"
    cargo clippy --quiet --all-targets -- --deny warnings
    cargo clippy --quiet --all-targets --features cluster,sentinel,tls-rustls -- --deny warnings
    RUSTDOCFLAGS='--deny warnings' cargo doc --quiet --no-deps
    cargo test --quiet --doc
    inside newest cargo build --quiet "${cluster[@]}" --tests --example process
    inside newest cargo build --quiet "${servers[@]}"
    inside oldest cargo build --quiet --test documented
    inside oldest cargo build --quiet "${cluster[@]}" --test faults
    inside oldest cargo build --quiet "${servers[@]}"
    ./programs.sh "$DLOCK_CLIENT_TARGET/programs" "$crate"
    exit
    ;;
esac

export DLOCK_CASES=$PWD/../cases/cases.json
# The tests wait most of the time.
export RUST_TEST_THREADS=8
if [ "${1:-}" = --cases ]; then
    inside newest cargo test --quiet "${cluster[@]}" --test cases
    exit
fi
inside newest cargo test --quiet "${cluster[@]}" --tests
inside newest cargo test --quiet "${servers[@]}"
inside oldest cargo test --quiet --test documented
# Newer versions seldom send a command again to the same node.
inside oldest cargo test --quiet "${cluster[@]}" --test faults -- a_release_whose_reply_is_lost
./programs.sh "$DLOCK_CLIENT_TARGET/programs" "$crate" "$DLOCK_SINGLE" >"$DLOCK_CLIENT_SEEN/programs"
if [ -n "${DLOCK_PLANTED:-}" ]; then
    project planted "$newest"
    # What is built there is nobody else's, and stays: the crates that it needs are compiled once.
    CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET/planted-target ./planted.sh "$DLOCK_CLIENT_TARGET/planted"
fi
