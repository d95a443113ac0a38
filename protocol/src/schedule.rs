//! Schedules as files: they break weaker rules, and not the right one.

use crate::action::Action;
use crate::conduct::Conduct;
use crate::system::{Orderly, Setup, World};
use crate::walk;

/// One file of `schedules/`.
#[derive(Debug)]
pub struct Schedule {
    /// The events, in words.
    pub text: String,
    pub replicas: u8,
    /// The settings under which it gives two owners; under all others it does not.
    pub breaks: Vec<String>,
    /// The clauses without which it does.
    pub faults: Vec<String>,
    /// Whether the world has replicas that follow replicas, or that restart from an older RDB.
    pub chains: bool,
    pub older_replica: bool,
    /// Whether its failovers are orderly, but the old primary may come back before all follow the new one.
    pub orderly: bool,
    pub steps: Vec<Action>,
}

impl Schedule {
    /// Returns these servers and clients, in a world with all events that the schedule needs.
    #[must_use]
    pub fn setup(&self, conduct: Conduct) -> Setup {
        let mut world = World::any(self.replicas);
        if self.orderly {
            let orderly = World::orderly(self.replicas, true).orderly;
            world.orderly = orderly.map(|orderly| Orderly {
                heals_late: false,
                ..orderly
            });
        }
        let world = World {
            chains: self.chains,
            older_replica: self.older_replica,
            ..world
        };
        Setup { conduct, world }
    }

    /// Returns true if it gives two owners among these servers and clients.
    #[must_use]
    pub fn breaks(&self, conduct: Conduct) -> bool {
        walk::breaks(&self.setup(conduct), &self.steps)
    }
}

/// Reads a file: `# …` is text, `replicas n`, `world: chains older-replica orderly`, `breaks: name …`, `faults: name …`, and steps,
/// one a line.
///
/// # Errors
/// The first other line.
pub fn parse(file: &str) -> Result<Schedule, String> {
    let mut schedule = Schedule {
        text: String::new(),
        replicas: 0,
        breaks: Vec::new(),
        faults: Vec::new(),
        chains: false,
        older_replica: false,
        orderly: false,
        steps: Vec::new(),
    };
    let names = |names: &str| names.split_whitespace().map(str::to_owned).collect();
    for line in file.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(text) = line.strip_prefix('#') {
            schedule.text.push_str(text);
        } else if let Some(n) = line.strip_prefix("replicas ") {
            schedule.replicas = n.parse().map_err(|_| line.to_owned())?;
        } else if let Some(world) = line.strip_prefix("world:") {
            schedule.chains = world.contains("chains");
            schedule.older_replica = world.contains("older-replica");
            schedule.orderly = world.contains("orderly");
        } else if let Some(list) = line.strip_prefix("breaks:") {
            schedule.breaks = names(list);
        } else if let Some(list) = line.strip_prefix("faults:") {
            schedule.faults = names(list);
        } else {
            schedule.steps.push(Action::parse(line).ok_or(line)?);
        }
    }
    Ok(schedule)
}

/// Reads the files of `schedules/` in their order, each with its name.
///
/// # Errors
/// A file that cannot be read, or a line that is no step.
pub fn all() -> Result<Vec<(String, Schedule)>, String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/schedules");
    let mut paths = Vec::new();
    for file in std::fs::read_dir(directory).map_err(|error| error.to_string())? {
        paths.push(file.map_err(|error| error.to_string())?.path());
    }
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok((
            name.clone(),
            parse(&text).map_err(|line| format!("{name}: {line}"))?,
        ))
    };
    paths.iter().map(read).collect()
}
