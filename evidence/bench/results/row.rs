//! A line of the result: one figure compared with another, and the bound of their ratio.

use std::sync::LazyLock;

use crate::results::series::Records;
use crate::results::spread::Spread;

/// A figure of a run.
#[derive(Clone, Copy)]
pub struct Source {
    /// Group.
    pub group: &'static str,
    /// Way.
    pub way: &'static str,
    /// Figure.
    pub figure: &'static str,
}

/// The value of a row.
#[derive(Clone, Copy)]
pub enum Value {
    /// The ratio of two samples in each round.
    Ratio(Source, Source),
    /// The samples unchanged.
    Plain(Source),
}

/// A line of the result.
pub struct Row {
    /// Its name in the result file, which must not change.
    pub name: &'static str,
    /// The subject, in words.
    pub what: &'static str,
    /// The object of comparison, in words; the unit where the row is no ratio.
    pub against: &'static str,
    /// The value.
    pub value: Value,
    /// The most that it may be; a row without a bound is only shown.
    pub bound: Option<f64>,
    /// The goal beyond the bound.
    pub goal: Option<f64>,
    /// The largest relative increase over the committed result that may be chance.
    pub tolerance: f64,
}

impl Row {
    /// Returns the group of its figures.
    pub fn group(&self) -> &'static str {
        match self.value {
            Value::Ratio(subject, _) | Value::Plain(subject) => subject.group,
        }
    }

    /// Returns the row's value in this run; none if it was not measured.
    pub fn spread(&self, records: &Records) -> Option<Spread> {
        let samples = |source: Source| records.samples(source.group, source.way, source.figure);
        match self.value {
            Value::Ratio(subject, against) => Spread::of_ratios(samples(subject), samples(against)),
            Value::Plain(subject) => Spread::of(samples(subject)),
        }
    }
}

/// All rows, in the order of the output. `rows.txt` explains its columns.
pub static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let (mut group, mut head, mut rows) = ("", "", Vec::new());
    let lines = include_str!("rows.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix("        ") {
            rows.push(read(group, head, rest).unwrap_or_else(|| panic!("no row: {head}")));
        } else if line.starts_with(' ') {
            head = line.trim();
        } else {
            group = line;
        }
    }
    rows
});

fn read(group: &'static str, head: &'static str, rest: &'static str) -> Option<Row> {
    let (name, what) = head.split_once(" | ")?;
    let mut cells = rest.split(" | ");
    let (figure, ways, limits) = (cells.next()?, cells.next()?, cells.next()?);
    let source = |way| Source { group, way, figure };
    let limit = |name| {
        let mut limits = limits.split(", ");
        limits.find_map(|limit| limit.strip_prefix(name)?.parse().ok())
    };
    let (value, beside) = match ways.split_once(" ÷ ") {
        Some((way, beside)) => (Value::Ratio(source(way), source(beside)), Some(beside)),
        None => (Value::Plain(source(ways)), None),
    };
    Some(Row {
        name,
        what,
        against: cells.next().or(beside)?,
        value,
        bound: limit("bound "),
        goal: limit("goal "),
        tolerance: limit("tolerance ")?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Returns the text of all files in a directory and below it, except the rows.
    fn sources(directory: &Path) -> String {
        let files = fs::read_dir(directory).expect("our sources");
        let paths = files.map(|file| file.expect("a file").path());
        paths
            .filter_map(|path| {
                if path.is_dir() {
                    return Some(sources(&path));
                }
                let is_rows = path.ends_with("rows.txt");
                (!is_rows).then(|| fs::read_to_string(path).unwrap_or_default())
            })
            .collect()
    }

    /// A row with a name that no way has would never be shown.
    #[test]
    fn every_way_and_figure_is_in_the_code() {
        let sources = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/bench")));
        for row in ROWS.iter() {
            let (one, other) = match row.value {
                Value::Ratio(one, other) => (one, other),
                Value::Plain(one) => (one, one),
            };
            for name in [one.way, other.way, one.figure] {
                let is_there = sources.contains(&format!("\"{name}\""))
                    || sources.contains(&format!("\n    {name}\n"));
                assert!(is_there, "{}: {name}", row.name);
            }
        }
    }
}
