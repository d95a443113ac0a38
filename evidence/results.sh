#!/usr/bin/env bash
# results.sh TARGET DIRECTORY: copies the results of the last full runs in TARGET that the documents show to DIRECTORY. The
# figures behind them stay there: they go with a release.
set -euo pipefail

show() {
    [ ! -e "$target/$1" ] || cp -v "$target/$1" "$directory/$2"
}

target=$1
directory=$2
show bench/full/bench.json bench.json
show bench/full/plots.md plots.md
show bench/servers/servers.md servers.md
show bench-peers/full/peers.md peers.md
show bench-peers/full/hand-overs.md hand-overs.md
show chaos/table.md chaos-table.md
show chaos/quorum.md quorum-table.md
show judge/judge.md judge.md
show schedules/schedules.md schedules.md
show clocks/clocks.md clocks.md
show disks/disks.md disks.md
show bench-clients/clients.md clients.md
show rivals/full/rivals.md rivals.md
show failover-clients/full/failover-clients.md failover-clients.md
