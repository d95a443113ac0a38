#!/usr/bin/env bash
# Builds the crate, has an empty project use it, and runs the cases and the tests against the newest and the oldest
# redis 1.x. `run.sh --package DIR` only builds the crate.
set -euo pipefail
cd "$(dirname "$0")"

newest=1.8.1
oldest=1.0.0 # that of Cargo.toml
export CARGO_TARGET_DIR=$DLOCK_CLIENT_TARGET
# What fails names its line without it.
export CARGO_PROFILE_DEV_DEBUG=0
cargo package --quiet --allow-dirty --no-verify
if [ "${1:-}" = --package ]; then
    mkdir -p "$2"
    cp "$DLOCK_CLIENT_TARGET"/package/dlock-redis-*.crate "$2"
    exit
fi

# The tests' own copy, beside the crate as it is packed: an empty project.
project=$DLOCK_CLIENT_TARGET/project
rm -rf "$project"
mkdir -p "$project/src"
tar -xzf "$DLOCK_CLIENT_TARGET"/package/dlock-redis-0.3.0.crate -C "$project"
cp -r tests examples "$project"
echo '#![doc = "Nothing."]' >"$project/src/lib.rs"
sed -e 's/^name = "dlock-redis"/name = "empty"/; s/^include = .*//; s/^readme = .*//' \
    -e 's|^\[dependencies\]|[dependencies]\ndlock-redis = { path = "dlock-redis-0.3.0" }|' Cargo.toml >"$project/Cargo.toml"
cp Cargo.lock "$project"
export DLOCK_CASES=$PWD/../cases/cases.json

case ${DLOCK_SERVER:-} in
Redis*) # once is enough for what does not depend on the server
    cargo clippy --quiet --all-targets -- --deny warnings
    RUSTDOCFLAGS='--deny warnings' cargo doc --quiet --no-deps
    cargo test --quiet --doc
    ;;
esac
cd "$project"
cargo update --quiet --package redis --precise "$newest"
cargo build --quiet --example process
cargo test --quiet --tests "$@"
[ -z "${DLOCK_PLANTED:-}" ] || "$OLDPWD/planted.sh" "$project"
case ${DLOCK_SERVER:-} in
Redis*)
    with=sentinel,tls-rustls
    cargo test --quiet --features "$with,dlock-redis/${with/,/,dlock-redis/}" --test servers
    cargo update --quiet --package redis --precise "$oldest"
    cargo test --quiet --test documented
    ;;
esac
