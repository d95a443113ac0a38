//! The settings in the documentation: the program writes this part, and a test compares it.

use crate::settings::Setting;

/// The lines around the table.
pub const MARKS: (&str, &str) = (
    "<!-- table: make check-long WRITE=1 -->\n",
    "<!-- end of table -->\n",
);

/// The outcome of a search of one setting, for one number of replicas.
#[derive(Clone, Debug)]
pub struct Found {
    pub replicas: u8,
    pub how: How,
}

/// How two owners were found, or that they were not.
#[derive(Clone, Debug)]
pub enum How {
    /// By the walk: the steps it took, and the length after shortening.
    Walk(u64, usize),
    /// By the schedule of this name.
    Schedule(String),
    /// Not at all: the steps it took.
    Not(u64),
}

/// The head of the table.
pub const HEAD: &str = "| setting | failovers | two owners | looked at |\n|---|---|---|---|\n";

fn numbers(list: &[u8]) -> String {
    let words: Vec<String> = list.iter().map(u8::to_string).collect();
    words.join(", ")
}

/// Returns the first three columns as in the table, if the search finds the expected.
#[must_use]
pub fn promise(setting: &Setting) -> String {
    columns(setting, setting.breaks, setting.holds)
}

/// Returns the first three columns, where two owners were found for some numbers of replicas and none for others.
fn columns(setting: &Setting, found: &[u8], none: &[u8]) -> String {
    let result = match (found, none) {
        (found, []) => format!("possible, r = {}", numbers(found)),
        ([], none) => format!("none, r = {}", numbers(none)),
        (found, none) => format!(
            "possible, r = {}; none, r = {}",
            numbers(found),
            numbers(none)
        ),
    };
    format!("| {} | {} | {result} |", setting.text, setting.failovers)
}

/// Returns a row with the result of this search, whatever was expected.
#[must_use]
pub fn row(setting: &Setting, found: &[Found]) -> String {
    let those = |wanted: bool| -> Vec<u8> {
        let those = found
            .iter()
            .filter(|found| matches!(found.how, How::Not(_)) != wanted);
        those.map(|found| found.replicas).collect()
    };
    let columns = columns(setting, &those(true), &those(false));
    let cell = |found: &Found| match &found.how {
        How::Walk(steps, length) => {
            format!(
                "r = {}: {length} steps long, after {}",
                found.replicas,
                rounded(*steps)
            )
        }
        How::Schedule(name) => format!(
            "r = {}: [{name}](../../protocol/schedules/{name}.txt)",
            found.replicas
        ),
        How::Not(steps) => format!("r = {}: {}", found.replicas, rounded(*steps)),
    };
    let cells: Vec<String> = found.iter().map(cell).collect();
    format!("{columns} {} |\n", cells.join("; "))
}

fn rounded(steps: u64) -> String {
    match steps {
        0..=9_999 => steps.to_string(),
        10_000..=999_999 => format!("{} thousand", steps / 1_000),
        _ => format!("{} million", steps / 1_000_000),
    }
}

/// Returns the page with another table. None if it has no marks.
#[must_use]
pub fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS.0)?;
    let (_, after) = rest.split_once(MARKS.1)?;
    Some(format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1))
}

/// The lines around the table of schedules.
pub const SCHEDULES: (&str, &str) = (
    "<!-- table: the last column by `make schedules`, `make results` and `cargo run -p dlock-protocol -- --servers` -->\n",
    "<!-- end of table -->\n",
);

/// Returns the result of servers for a schedule, from the row that `make schedules` has written.
#[must_use]
pub fn on_servers(results: &str, schedule: &str) -> String {
    let row = results.lines().find_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, rule, changed] = cells[..] else {
            return None;
        };
        (name == schedule).then_some((rule, changed))
    });
    let Some((rule, changed)) = row else {
        return "not played".to_owned();
    };
    let on_all = |cell: &str, text: &str| cell.split(" / ").all(|seen| seen == text);
    let mut cell = match on_all(rule, "none") {
        true => "one owner".to_owned(),
        false => "**two owners** with all clauses".to_owned(),
    };
    let changed = changed.split(", ").filter_map(|text| {
        let (name, seen) = text.split_once("` ")?;
        let none = seen.split(" / ").filter(|seen| *seen == "none").count();
        let text = match none {
            0 => "two with",
            none if none < seen.split(" / ").count() => "two on some servers with",
            _ => "one also with",
        };
        Some((format!("{name}`"), text))
    });
    let changed: Vec<(String, &str)> = changed.collect();
    for text in ["two with", "two on some servers with", "one also with"] {
        let of = changed.iter().filter(|(_, what)| *what == text);
        let names: Vec<&str> = of.map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            cell += &format!("; {text} {}", names.join(", "));
        }
    }
    cell
}

/// Returns the page with another last column of the table of schedules. None if it has no marks.
#[must_use]
pub fn with_servers(page: &str, results: &str) -> Option<String> {
    let (before, rest) = page.split_once(SCHEDULES.0)?;
    let (table, after) = rest.split_once(SCHEDULES.1)?;
    let row = |line: &str| match line
        .strip_prefix("| [")
        .and_then(|rest| rest.split_once(']'))
    {
        Some((name, _)) => {
            let columns: Vec<&str> = line.split(" | ").take(2).collect();
            format!(
                "{} | {} |\n",
                columns.join(" | "),
                on_servers(results, name)
            )
        }
        None => format!("{line}\n"),
    };
    let table: String = table.lines().map(row).collect();
    Some(format!(
        "{before}{}{table}{}{after}",
        SCHEDULES.0, SCHEDULES.1
    ))
}
