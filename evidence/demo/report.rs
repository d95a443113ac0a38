//! The output at the end.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use crate::shop::Outcome;

const HEADER: [&str; 11] = [
    "", "orders", "lost", "min ms", "mean ms", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "max ms",
    "orders/s",
];

/// Returns a table with one row for each run.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(HEADER);
    for outcome in outcomes {
        let latency = |quantile| outcome.latencies.value_at_quantile(quantile) as f64;
        table.add_row([
            outcome.way.name.to_owned(),
            outcome.orders.to_string(),
            outcome.lost.to_string(),
            millis(outcome.latencies.min() as f64),
            millis(outcome.latencies.mean()),
            millis(latency(0.5)),
            millis(latency(0.9)),
            millis(latency(0.95)),
            millis(latency(0.99)),
            millis(outcome.latencies.max() as f64),
            format!("{:.0}", outcome.rate()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Explains the numbers of a run, where they need it.
pub fn remark(outcome: &Outcome) -> Option<String> {
    let name = outcome.way.name;
    let fenced = match (outcome.frozen, outcome.fenced) {
        (0, 0) => String::new(),
        (frozen, fenced) => format!(
            " {frozen} times a customer froze past its lease, {fenced} writes were fenced and their orders placed again."
        ),
    };
    let end = match (outcome.way.promises, outcome.lost) {
        (false, 0) => return None,
        (false, lost) => format!(
            "{lost} of {} orders left no trace in the stock.",
            outcome.orders
        ),
        (true, 0) if outcome.is_as_promised() => "the stock ended at exactly 0.".to_owned(),
        (true, 0) => "WRONG, a frozen customer has written.".to_owned(),
        (true, left) => format!("WRONG, the stock ended at {left} and not at 0."),
    };
    Some(format!("{name}: {end}{fenced}"))
}

fn millis(micros: f64) -> String {
    format!("{:.1}", micros / 1_000.0)
}
