//! The outcome of a run, as stored in a file.

use std::fs;
use std::path::Path;

use dlock_harness::Made;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::results::row::{Row, Value, ROWS};
use crate::results::series::Records;
use crate::results::spread::Spread;

/// The outcome of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// When and where it was made.
    pub machine: Made,
    /// Whether it was the quick run.
    pub quick: bool,
    /// The rows that were measured.
    pub rows: Vec<Line>,
    /// All figures; none in a file that has only the rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Absolute>,
}

/// The outcome of a row.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    /// The row's name.
    pub name: String,
    /// The subject, in words.
    pub what: String,
    /// The object of comparison; the unit where the row is no ratio.
    pub against: String,
    /// Whether it is a ratio.
    pub is_ratio: bool,
    /// The measured values.
    pub spread: Spread,
    /// The most that it may be.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bound: Option<f64>,
    /// The goal beyond the bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub goal: Option<f64>,
    /// The smallest relative increase that counts as a change.
    pub tolerance: f64,
}

/// The outcome of a figure.
#[derive(Debug, Serialize, Deserialize)]
pub struct Absolute {
    /// Group.
    pub group: String,
    /// Way.
    pub way: String,
    /// Figure, with its unit.
    pub figure: String,
    /// The measured values.
    pub spread: Spread,
}

impl Outcome {
    /// Collects all rows and figures of a run.
    pub fn new(machine: Made, quick: bool, records: &Records) -> Outcome {
        let figures = records.iter().filter_map(|series| {
            Some(Absolute {
                group: series.group.to_owned(),
                way: series.way.clone(),
                figure: series.figure.to_owned(),
                spread: Spread::of(&series.samples)?,
            })
        });
        Outcome {
            machine,
            quick,
            rows: ROWS
                .iter()
                .filter_map(|row| Line::new(row, records))
                .collect(),
            figures: figures.collect(),
        }
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Outcome, Failure> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Writes a file.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        Ok(fs::write(path, self.text()? + "\n")?)
    }

    /// Returns the text of the file.
    pub fn text(&self) -> Result<String, Failure> {
        let figures = match &self.figures[..] {
            [] => String::new(),
            all => format!(",\n\"figures\":[\n{}]", one_a_line(all)?),
        };
        Ok(format!(
            "{{\"machine\":{},\n\"quick\":{},\n\"rows\":[\n{}]{figures}}}",
            serde_json::to_string(&self.machine)?,
            self.quick,
            one_a_line(&self.rows)?,
        ))
    }
}

/// Writes one item a line, so that a difference of two results is readable.
fn one_a_line(items: &[impl Serialize]) -> Result<String, Failure> {
    let lines: Vec<String> = items
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    Ok(lines.join(",\n"))
}

impl Line {
    fn new(row: &Row, records: &Records) -> Option<Line> {
        Some(Line {
            name: row.name.to_owned(),
            what: row.what.to_owned(),
            against: row.against.to_owned(),
            is_ratio: matches!(row.value, Value::Ratio(..)),
            spread: row.spread(records)?,
            bound: row.bound,
            goal: row.goal,
            tolerance: row.tolerance,
        })
    }

    /// Returns whether it keeps its bound, if it has one.
    pub fn passes(&self) -> Option<bool> {
        self.bound.map(|bound| self.spread.median <= bound)
    }
}
