//! What came of a run, and how it is kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cell::Figures;
use crate::failure::Failure;

/// What came of a run.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Model of the processor, and how many of them.
    pub cpu: String,
    /// Operating system.
    pub kernel: String,
    /// The load before the run.
    pub load: String,
    /// Whether it was the quick run.
    pub quick: bool,
    /// The median time of a small synchronized write, in microseconds.
    pub fsync_us: f64,
    /// What was compared.
    pub versions: Vec<String>,
    /// What was measured.
    pub cells: Vec<Cell>,
    /// What was not, and why.
    pub left_out: Vec<String>,
}

/// Figures of a service in one situation.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    /// What the service promises, in words; for the Java program its own group.
    pub group: String,
    /// Service.
    pub service: String,
    /// Situation.
    pub cell: String,
    /// Figures by name; the median of the rounds.
    pub figures: BTreeMap<String, f64>,
}

impl Outcome {
    /// An empty one, for this machine.
    pub fn new(quick: bool, fsync_us: f64, versions: Vec<String>) -> Outcome {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let model = model.map_or("unknown", |rest| rest.trim_start_matches(['\t', ' ', ':']));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Outcome {
            cpu: format!("{model}, {cores} cores"),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
            quick,
            fsync_us,
            versions,
            cells: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds the median of each figure over the rounds.
    pub fn add(&mut self, group: &str, service: &str, cell: &str, rounds: &[Figures]) {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in rounds.iter().flatten() {
            samples.entry((*name).to_owned()).or_default().push(*value);
        }
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let figures = samples
            .into_iter()
            .map(|(name, values)| (name, median(values)))
            .collect();
        self.cells.push(Cell {
            group: group.to_owned(),
            service: service.to_owned(),
            cell: cell.to_owned(),
            figures,
        });
    }

    /// A figure.
    pub fn get(&self, group: &str, service: &str, cell: &str, figure: &str) -> Option<f64> {
        let is_it = |known: &&Cell| {
            (&*known.group, &*known.service, &*known.cell) == (group, service, cell)
        };
        self.cells.iter().find(is_it)?.figures.get(figure).copied()
    }

    /// The services of a group, in the order in which they were measured.
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
            "{{\"cpu\":{},\"kernel\":{},\"load\":{},\"quick\":{},\"fsync_us\":{},\n\"versions\":{},\n\"left_out\":{},\n\"cells\":[\n{}]}}\n",
            serde_json::to_string(&self.cpu)?,
            serde_json::to_string(&self.kernel)?,
            serde_json::to_string(&self.load)?,
            self.quick,
            self.fsync_us,
            serde_json::to_string(&self.versions)?,
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
