//! The outcome of a run, and its file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dlock_harness::Made;
use serde::{Deserialize, Serialize};

use crate::cell::Figures;
use crate::failure::Failure;

/// The outcome of a run.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// When and where it was made.
    pub made: Made,
    /// Whether it was the quick run.
    pub quick: bool,
    /// The median time of a small synchronized write, in microseconds.
    pub fsync_us: f64,
    /// The measured cells.
    pub cells: Vec<Cell>,
    /// The cells that were left out, and why.
    pub left_out: Vec<String>,
    /// The rounds of cells that are not added yet.
    #[serde(skip)]
    samples: Vec<(Place, Vec<Figures>)>,
}

/// Group, service and situation.
type Place = (&'static str, &'static str, &'static str);

/// Figures of a service in one situation.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    /// The service's promise, in words; for the Java program its own group.
    pub group: String,
    /// Service.
    pub service: String,
    /// Situation.
    pub cell: String,
    /// Figures by name; the median of the rounds.
    pub figures: BTreeMap<String, f64>,
    /// The lowest and the highest of the rounds, where there were several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub ranges: BTreeMap<String, (f64, f64)>,
}

impl Outcome {
    /// Makes an empty outcome.
    pub fn new(quick: bool, fsync_us: f64, made: Made) -> Outcome {
        Outcome {
            made,
            quick,
            fsync_us,
            cells: Vec::new(),
            left_out: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Keeps a round of a cell until [`add_samples`](Outcome::add_samples).
    pub fn sample(&mut self, place: Place, figures: Figures) {
        match self.samples.iter_mut().find(|(known, _)| *known == place) {
            Some((_, rounds)) => rounds.push(figures),
            None => self.samples.push((place, vec![figures])),
        }
    }

    /// Adds the cells of all rounds that are kept.
    pub fn add_samples(&mut self) {
        for ((group, service, cell), rounds) in std::mem::take(&mut self.samples) {
            self.add(group, service, cell, &rounds);
        }
    }

    /// Adds the median of each figure over the rounds, and their spread.
    pub fn add(&mut self, group: &str, service: &str, cell: &str, rounds: &[Figures]) {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in rounds.iter().flatten() {
            samples.entry((*name).to_owned()).or_default().push(*value);
        }
        let (mut figures, mut ranges) = (BTreeMap::new(), BTreeMap::new());
        for (name, mut values) in samples {
            values.sort_by(f64::total_cmp);
            if let [lowest, .., highest] = values[..] {
                ranges.insert(name.clone(), (lowest, highest));
            }
            figures.insert(name, values[values.len() / 2]);
        }
        self.cells.push(Cell {
            group: group.to_owned(),
            service: service.to_owned(),
            cell: cell.to_owned(),
            figures,
            ranges,
        });
    }

    /// Adds a figure that is no median to the last cell.
    pub fn set(&mut self, figure: &str, value: f64) {
        let last = self.cells.last_mut().expect("a cell");
        last.figures.insert(figure.to_owned(), value);
    }

    /// Returns a cell.
    pub fn cell(&self, group: &str, service: &str, cell: &str) -> Option<&Cell> {
        let is_it = |known: &&Cell| {
            (&*known.group, &*known.service, &*known.cell) == (group, service, cell)
        };
        self.cells.iter().find(is_it)
    }

    /// Returns a figure.
    pub fn get(&self, group: &str, service: &str, cell: &str, figure: &str) -> Option<f64> {
        let cell = self.cell(group, service, cell)?;
        cell.figures.get(figure).copied()
    }

    /// Returns the services of a group, in the order of their measurement.
    pub fn services(&self, group: &str) -> Vec<&str> {
        let mut services: Vec<&str> = Vec::new();
        for cell in self.cells.iter().filter(|cell| cell.group == group) {
            if !services.contains(&cell.service.as_str()) {
                services.push(&cell.service);
            }
        }
        services
    }

    /// Writes a file.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let cells: Vec<String> = self
            .cells
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<_, _>>()?;
        let text = format!(
            "{{\"made\":{},\n\"quick\":{},\"fsync_us\":{},\n\"left_out\":{},\n\"cells\":[\n{}]}}\n",
            serde_json::to_string(&self.made)?,
            self.quick,
            self.fsync_us,
            serde_json::to_string(&self.left_out)?,
            cells.join(",\n"),
        );
        Ok(fs::write(path, text)?)
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Outcome, Failure> {
        Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
    }
}
