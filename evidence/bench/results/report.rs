//! The output at the end.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use crate::results::outcome::{Line, Outcome};
use crate::results::spread::Spread;

/// Returns the report: first the ratios, then the machine, then all figures.
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    write!(
        text,
        "{}\n\n\
         Each ratio is the median over all rounds of the ratio within a round; a quarter of the rounds\n\
         lie below the first of the middle half, a quarter above the second.\n\n\
         {}\n\n{}\n",
        rows(outcome),
        outcome.machine,
        figures(outcome),
    )
    .expect("a String takes all");
    text
}

fn rows(outcome: &Outcome) -> Table {
    let mut table = table(&[
        "what",
        "against",
        "median",
        "middle half",
        "all",
        "bound",
        "",
        "goal",
    ]);
    for row in &outcome.rows {
        let spread = &row.spread;
        table.add_row([
            row.what.clone(),
            row.against.clone(),
            number(spread.median),
            range(spread.lower, spread.upper),
            range(spread.min, spread.max),
            row.bound.map_or(String::new(), number),
            verdict(row).to_owned(),
            row.goal.map_or(String::new(), number),
        ]);
    }
    align(&mut table, 2);
    table
}

fn verdict(row: &Line) -> &'static str {
    match row.passes() {
        Some(true) => "pass",
        Some(false) => "FAIL",
        None => "",
    }
}

fn figures(outcome: &Outcome) -> Table {
    let mut table = table(&[
        "group",
        "way",
        "figure",
        "median",
        "middle half",
        "all",
        "samples",
    ]);
    for figure in &outcome.figures {
        let Spread {
            median,
            lower,
            upper,
            min,
            max,
            samples,
        } = figure.spread;
        table.add_row([
            figure.group.clone(),
            figure.way.clone(),
            figure.figure.clone(),
            number(median),
            range(lower, upper),
            range(min, max),
            samples.to_string(),
        ]);
    }
    align(&mut table, 3);
    table
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    table
}

/// Aligns numbers to the right.
fn align(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Formats a number with three significant digits.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size > 0.0 && size < 0.01 => 5,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a range.
pub fn range(from: f64, to: f64) -> String {
    format!("{} – {}", number(from), number(to))
}
