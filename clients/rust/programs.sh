#!/usr/bin/env bash
# The README's programs as they are printed, in an empty project that has nothing but the dependencies printed there:
# `programs.sh DIRECTORY CRATE` builds them with each feature, and with none; `programs.sh DIRECTORY CRATE ADDRESS` runs them, those
# for a cluster and Sentinel excepted, at that server in place of the one at 6379.
set -euo pipefail
cd "$(dirname "$0")"
directory=$1 crate=$2 address=${3:-127.0.0.1:6379}

block() { # LANGUAGE NUMBER
    awk -v language="$1" -v number="$2" '/^```/ { inside = !inside && $0 == "```" language; count += inside; next }
        inside && count == number' README.md
}
rm -rf "$directory/source"
mkdir -p "$directory/source"
tar -xzmf "$crate" -C "$directory/source"
count=$(grep -c '^```rust$' README.md)
project() { # FEATURES
    local project=$directory/source/project
    rm -rf "$project"
    mkdir -p "$project/src/bin"
    printf '[package]\nname = "readme"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' >"$project/Cargo.toml"
    block toml 1 | sed -e 's|path = "|path = "../|' -e "s|\(dlock-redis = .*\) }|\1, features = [$1] }|" \
        -e "s|\"tokio-comp\"|\"tokio-comp\"${1:+, $(sed -e 's/cluster/cluster-async/; s/tls-rustls/tokio-rustls-comp/; s/tls-native-tls/tokio-native-tls-comp/' <<<"$1")}|" \
        >>"$project/Cargo.toml"
    for number in $(seq "$count"); do
        block rust "$number" | sed "s|127.0.0.1:6379/|$address/|" >"$project/src/bin/program$number.rs"
        for feature in cluster sentinel; do
            if ! [[ $1 = *$feature* ]] && grep -qs "redis::$feature" "$project/src/bin/program$number.rs"; then
                rm "$project/src/bin/program$number.rs"
            fi
        done
    done
    cp Cargo.lock "$project"
    cd "$project"
}
if [ -z "${3:-}" ]; then
    for features in '' '"cluster"' '"sentinel"' '"tls-rustls"' '"tls-native-tls"'; do
        echo "README's programs with features [$features]"
        (project "$features" && cargo build --quiet)
    done
    exit
fi
project ''
cargo build --quiet # without the time limit: a busy machine compiles for minutes
for program in src/bin/*.rs; do
    timeout 60 cargo run --quiet --bin "$(basename "$program" .rs)"
done
