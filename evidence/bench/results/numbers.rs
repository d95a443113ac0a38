//! The numbers for `make pictures`.

use crate::contending::contest::RATE;
use crate::contending::hot;
use crate::holding::pair;
use crate::plan::{HOT_LOCK, PAIR, PAIR_EVERYSEC};
use crate::results::outcome::Outcome;
use crate::results::report::number;
use crate::tools::locking::{CLIENT_27, COUNTED_HASH, DLOCK, PING, SET_DEL, SET_SCRIPT};
use crate::tools::percentile::P99;

/// The users' names of the ways to take and release a lock.
const PAIRS: [(&str, &str); 6] = [
    (CLIENT_27, "dlock, as its clients take it"),
    (DLOCK, "dlock, `ACQUIRE` + `RELEASE` alone"),
    (SET_DEL, "`SET NX PX` + `DEL` (checks no owner)"),
    (SET_SCRIPT, "`SET NX PX` + compare-and-delete"),
    (COUNTED_HASH, "re-entrant lock by scripts"),
    (PING, "two `PING`s, to compare"),
];

/// The users' names of the ways to wait.
const WAITS: [(&str, &str); 6] = [
    (hot::BLOCKING, "dlock"),
    (hot::POLLING_1MS, "`SET NX PX`, polled each ms"),
    (hot::PUBSUB, "scripts, publish/subscribe"),
    (hot::PYTHON_REDIS_LOCK, "python-redis-lock (`BLPOP`)"),
    (hot::REDIS_PY_100MS, "redis-py `Lock`, sleeps 100 ms"),
    (hot::REDIS_PY_1MS, "redis-py `Lock`, sleeps 1 ms"),
];

/// Returns the page: the CPU time of a pair, and the waits and hand-overs of a lock that many clients want.
pub fn numbers(outcome: &Outcome) -> String {
    let pairs = table("server CPU of a pair, µs", &PAIRS, |way| {
        let settings = [
            (PAIR, "in memory only"),
            (PAIR_EVERYSEC, "with an append-only file, everysec"),
        ];
        let cell = |(group, heading): (_, &str)| {
            let value = median(outcome, group, way, pair::CPU);
            (heading.to_owned(), value.map(|value| format!("{value:.2}")))
        };
        settings.map(cell).to_vec()
    });
    let by_clients = |way: &str, figure: &str, write: fn(f64) -> String| {
        let cells = ["2", "10", "50", "200", "500"].map(|clients| {
            let group = format!("{HOT_LOCK}{clients} clients, 1 ms");
            let value = median(outcome, &group, way, figure);
            (clients.to_owned(), value.map(write))
        });
        cells.to_vec()
    };
    let waits = table("wait p99, ms, by clients", &WAITS, |way| {
        by_clients(way, P99, |micros| number(micros / 1e3))
    });
    let rates = table("hand-overs a second, by clients", &WAITS, |way| {
        by_clients(way, RATE, |rate| format!("{rate:.0}"))
    });
    format!(
        "# The numbers behind the benchmark's pictures\n\n\
         {}. Medians of interleaved rounds. `make pictures` draws\n\
         [`pair.svg`](../pictures/pair.svg) and [`hot-lock.svg`](../pictures/hot-lock.svg) from these tables, and a full run of `make bench` writes them.\n\
         \n{pairs}\n{waits}\n{rates}",
        outcome.machine,
    )
}

/// Returns a table with a row for each way that has a figure. The cells name their column.
fn table(
    heading: &str,
    ways: &[(&str, &str)],
    cells: impl Fn(&str) -> Vec<(String, Option<String>)>,
) -> String {
    let columns: Vec<String> = cells("").into_iter().map(|cell| cell.0).collect();
    let mut table = format!("| {heading} | {} |\n", columns.join(" | "));
    table += &format!("|{}\n", "---|".repeat(columns.len() + 1));
    for (way, label) in ways {
        let row = cells(way);
        if row.iter().all(|cell| cell.1.is_none()) {
            continue;
        }
        table += &format!("| {label} |");
        for (_, value) in row {
            table += &value.map_or(" |".to_owned(), |value| format!(" {value} |"));
        }
        table.push('\n');
    }
    table
}

fn median(outcome: &Outcome, group: &str, way: &str, figure: &str) -> Option<f64> {
    outcome
        .figures
        .iter()
        .find(|known| (&*known.group, &*known.way, &*known.figure) == (group, way, figure))
        .map(|known| known.spread.median)
}

#[test]
fn a_way_without_figures_has_no_row() {
    let figures = |way: &str| {
        let value = (way == "known").then(|| "7".to_owned());
        vec![("2".to_owned(), value), ("10".to_owned(), None)]
    };
    assert_eq!(
        table(
            "waits",
            &[("known", "dlock"), ("unknown", "another")],
            figures
        ),
        "| waits | 2 | 10 |\n|---|---|---|\n| dlock | 7 | |\n"
    );
}
