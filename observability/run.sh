#!/usr/bin/env bash
# run.sh DIRECTORY [EXPORTER…]: fetches Prometheus and its exporter for Redis into DIRECTORY, where they are missing,
# and runs the tests of the script, the dashboard and the alerts with them. Each becomes DIRECTORY/NAME/server.
set -euo pipefail
# shellcheck source=integration/debian.sh
. "$(dirname "$0")/../integration/debian.sh"

# Debian's, of several releases: versions 1.45, 1.69 and (in November 2026) 1.86.
all=(exporter-bookworm exporter-trixie exporter-sid)

fetch() {
    case $1 in
    prometheus) from_own "$1" prometheus ;;
    exporter) from_own "$1" prometheus-redis-exporter ;;
    exporter-*) from_debian "$1" prometheus-redis-exporter "${1#exporter-}" ;;
    *)
        echo "run.sh: $1 is none of: prometheus exporter ${all[*]}" >&2
        return 1
        ;;
    esac
}

if ! command -v apt-get >/dev/null; then
    echo 'dlock: the dashboard is not tested here: Prometheus and its exporter are fetched by apt-get, which is missing'
    exit
fi

directory=$1
shift
[ $# -gt 0 ] || set -- "${all[@]}"
mkdir -p "$directory"
for name in prometheus "$@"; do
    if ! "$directory/$name/server" --version >/dev/null 2>&1; then
        echo "dlock: fetching $name"
        (cd "$directory" && rm -rf "${name:?}" && fetch "$name")
    fi
done

promtool=$directory/prometheus/root/usr/bin/promtool
[ -x "$promtool" ] || promtool=promtool
"$promtool" check rules "$(dirname "$0")/alerts.yml"
"$promtool" test rules "$(dirname "$0")/alerts_test.yml"

export DLOCK_PROMETHEUS=$directory/prometheus/server DLOCK_EXPORTERS
DLOCK_EXPORTERS=$(printf "$directory/%s/server\n" "$@")
cargo test --test servers seeing::observability:: -- --include-ignored
