//! The output at the end.

use comfy_table::presets::UTF8_FULL;
use comfy_table::Table;

use crate::steps::{Outcome, Seen};

/// Returns a table with a row for each step.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL)
        .set_header(["", "a lock made of plain keys", "dlock"]);
    for outcome in outcomes {
        let step = outcome.step;
        let faults = outcome.faults();
        let name = match faults.is_empty() {
            true => step.name.to_owned(),
            false => format!("{}\n{}", step.name, faults.join("; ")),
        };
        let cell = |way: &str, seen: &Seen| format!("{way}\n{}", seen.text);
        table.add_row([
            name,
            cell(step.plain, &outcome.plain),
            cell(step.dlock, &outcome.dlock),
        ]);
    }
    table
}
