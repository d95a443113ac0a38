//! A line of the result: one figure beside another, and how far apart they may be.

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

/// What a row shows.
#[derive(Clone, Copy)]
pub enum Value {
    /// Of each round the ratio of two samples.
    Ratio(Source, Source),
    /// The samples as they are.
    Plain(Source),
}

/// A line of the result.
pub struct Row {
    /// Names it in the result file, for good.
    pub name: &'static str,
    /// What it is, in words.
    pub what: &'static str,
    /// Against what, in words; the unit where it is no ratio.
    pub against: &'static str,
    /// What is shown.
    pub value: Value,
    /// It must not be more than this; without it the row is only shown.
    pub bound: Option<f64>,
    /// What we would like beyond that.
    pub goal: Option<f64>,
    /// The largest increase over the committed result, as a part of it, that may be chance.
    pub tolerance: f64,
}

impl Row {
    /// The group that it is made of.
    pub fn group(&self) -> &'static str {
        match self.value {
            Value::Ratio(subject, _) | Value::Plain(subject) => subject.group,
        }
    }

    /// What the row shows in this run; none if it was not measured.
    pub fn spread(&self, records: &Records) -> Option<Spread> {
        let samples = |source: Source| records.samples(source.group, source.way, source.figure);
        match self.value {
            Value::Ratio(subject, against) => Spread::of_ratios(samples(subject), samples(against)),
            Value::Plain(subject) => Spread::of(samples(subject)),
        }
    }
}

/// All rows, in the order in which they are shown. `rows.txt` says what stands where.
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

    /// What is written in all Rust files of a directory and of those in it.
    fn sources(directory: &Path) -> String {
        let files = fs::read_dir(directory).expect("our sources");
        let paths = files.map(|file| file.expect("a file").path());
        paths
            .filter_map(|path| {
                if path.is_dir() {
                    return Some(sources(&path));
                }
                let is_source = path.extension().is_some_and(|end| end == "rs");
                is_source.then(|| fs::read_to_string(path).expect("a source"))
            })
            .collect()
    }

    /// A name that nobody measures under would be a row that is never shown.
    #[test]
    fn every_way_and_figure_is_in_the_code() {
        let sources = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/bench")));
        for row in ROWS.iter() {
            let (one, other) = match row.value {
                Value::Ratio(one, other) => (one, other),
                Value::Plain(one) => (one, one),
            };
            for name in [one.way, other.way, one.figure] {
                assert!(
                    sources.contains(&format!("\"{name}\"")),
                    "{}: {name}",
                    row.name
                );
            }
        }
    }
}
