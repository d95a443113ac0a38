//! Figures and the table of them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use dlock_evidence::page::{self, fill};
use serde::{Deserialize, Serialize};

use crate::control::verdict_of;
use crate::history::History;
use crate::judge::Verdict;
use crate::run::Plan;

/// One run of a cell of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub server: String,
    pub version: String,
    pub mode: String,
    pub fault: String,
    pub setting: String,
    pub seed: u64,
    pub verdict: Verdict,
    /// Answers by command and kind.
    pub answers: BTreeMap<String, u64>,
    /// The broken promises.
    pub faults: Vec<String>,
    /// When and where it was played.
    #[serde(default)]
    pub made: String,
}

impl Cell {
    pub fn new(plan: &Plan, version: String, history: &History) -> Cell {
        let verdict = verdict_of(plan, history);
        let mut faults = verdict.never();
        faults.extend(plan.failed_controls(history, &verdict));
        if plan.promises_one_owner() && verdict.overlaps > 0 {
            let (times, seconds) = (verdict.overlaps, verdict.overlap_s);
            faults.push(format!("two owners at once, {times} times, {seconds:.1} s"));
        }
        if plan.promises_no_loss() && verdict.grants_lost > 0 {
            faults.push(format!("{} grants were lost", verdict.grants_lost));
        }
        Cell {
            server: plan.server.clone(),
            version,
            mode: plan.mode_name(),
            fault: plan.fault.name().into(),
            setting: plan.setting.name.into(),
            seed: plan.seed,
            verdict,
            answers: history.answers.clone(),
            faults,
            made: String::new(),
        }
    }

    /// Returns its place in the table.
    fn place(&self) -> [&str; 4] {
        [&self.mode, &self.server, &self.fault, &self.setting]
    }

    /// Returns true if it is a run of this plan's cell.
    pub fn is_of(&self, plan: &Plan) -> bool {
        let (mode, fault) = (plan.mode_name(), plan.fault.name());
        self.place()
            == [
                mode.as_str(),
                plan.server.as_str(),
                fault,
                plan.setting.name,
            ]
    }

    /// Returns a line about it for the terminal.
    pub fn line(&self) -> String {
        let verdict = &self.verdict;
        format!(
            "{} | {} | {} | {}: {} rounds, {} promotions, {} grants, {} lost, overlaps {} ({:.1} s), {:.1} s at most without grants{}",
            self.server,
            self.mode,
            self.fault,
            self.setting,
            verdict.rounds,
            verdict.promotions,
            verdict.grants,
            verdict.grants_lost,
            verdict.overlaps,
            verdict.overlap_s,
            verdict.silences_s.last().copied().unwrap_or(0.0),
            if self.faults.is_empty() { String::new() } else { format!(" — NOT AS PROMISED: {}", self.faults.join("; ")) },
        )
    }
}

/// Returns the figures of all runs in a directory.
pub fn kept(directory: &Path) -> io::Result<Vec<Cell>> {
    match fs::read(directory.join("figures.json")) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Adds runs to the figures, each replacing one of its cell and seed, and writes the table again.
pub fn keep(directory: &Path, runs: Vec<Cell>) -> io::Result<()> {
    let mut cells = kept(directory)?;
    for run in runs {
        cells.retain(|old| old.place() != run.place() || old.seed != run.seed);
        cells.push(run);
    }
    cells.sort_by(|one, other| (one.place(), one.seed).cmp(&(other.place(), other.seed)));
    let figures = serde_json::to_string_pretty(&cells)? + "\n";
    page::keep(directory, "figures.json", &figures)?;
    page::keep(directory, "table.md", &table(&cells))
}

/// Returns the table as Markdown: a line per cell, with all of its runs.
pub fn table(runs: &[Cell]) -> String {
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        match cells.iter_mut().find(|cell| cell.place() == run.place()) {
            Some(cell) => cell.verdict.add(run.verdict.clone()),
            None => cells.push(run.clone()),
        }
    }
    let mut made: Vec<&str> = runs.iter().map(|run| &*run.made).collect();
    made.sort_unstable();
    made.dedup();
    let mut lines = Vec::new();
    for cell in cells {
        let verdict = &cell.verdict;
        let never = [
            verdict.tokens_fallen,
            verdict.tokens_twice,
            verdict.writes_late,
            verdict.wakeups_lost,
            verdict.overtaken,
            verdict.hung,
            verdict.logs_unread,
            verdict.left.len(),
            verdict.died.len(),
        ];
        let silences = &verdict.silences_s;
        let median = silences.get(silences.len() / 2).copied().unwrap_or(0.0);
        let most = silences.last().copied().unwrap_or(0.0);
        lines.push(format!(
            "| {} | {} | {} | {} | {} | {} | {} | {:.1} ({}) | {} | {} | {} | {median:.1}, {most:.1} | {} |",
            cell.mode,
            cell.version,
            cell.fault,
            cell.setting,
            verdict.rounds,
            verdict.promotions,
            verdict.grants,
            verdict.overlap_s,
            verdict.overlaps,
            verdict.grants_lost,
            verdict.writes,
            never.iter().sum::<usize>(),
            verdict.unanswered,
        ));
    }
    let (made, rows) = (made.join("; "), lines.join("\n"));
    fill(
        include_str!("table.txt"),
        &[("made", &made), ("rows", &rows)],
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::history::{End, SECOND};
    use crate::judge::planted::{belief, round};
    use crate::run::{Length, Mode};
    use crate::setting::{Setting, ALL, NOTHING, QUARANTINE, RECOMMENDED};

    pub fn plan(fault: Fault, setting: Setting) -> Plan {
        Plan {
            mode: Mode::Sentinel,
            replicas: 2,
            server: "redis".into(),
            program: "redis-server".into(),
            fault,
            setting,
            seed: 1,
            end: Length {
                rounds: 15,
                at_most: std::time::Duration::from_secs(600),
            },
            planted: None,
        }
    }

    /// Returns a cell without its controls.
    fn cell(fault: Fault, setting: Setting, history: &History) -> Cell {
        let mut cell = Cell::new(&plan(fault, setting), "Redis".into(), history);
        cell.faults.retain(|fault| !fault.starts_with("CONTROL"));
        cell
    }

    #[test]
    fn two_owners_are_a_finding_where_one_is_promised() {
        let history = History {
            beliefs: vec![belief("k", "a", 1, 0, 3), belief("k", "b", 2, 1, 4)],
            ..History::default()
        };
        let found = |fault, setting| cell(fault, setting, &history).faults;
        for fault in [
            Fault::Kill,
            Fault::LagThenKill,
            Fault::Stop,
            Fault::Partition,
        ] {
            assert_eq!(found(fault, RECOMMENDED).len(), 1);
            assert_eq!(found(fault, NOTHING).len(), 0);
        }
        for setting in ALL.iter().filter(|setting| setting.mistake.is_none()) {
            assert_eq!(found(Fault::Migrate, *setting).len(), 1);
        }
        assert_eq!(found(Fault::Kill, QUARANTINE).len(), 1);
        assert_eq!(found(Fault::Stop, QUARANTINE).len(), 0);
    }

    #[test]
    fn a_lost_grant_is_a_finding_where_none_can_be_lost() {
        let mut history = History {
            beliefs: vec![belief("k", "a", 1, 0, 3)],
            ..History::default()
        };
        history.beliefs[0].end = End::Lost;
        assert_eq!(cell(Fault::Kill, RECOMMENDED, &history).faults.len(), 0);
        for fault in [Fault::Migrate, Fault::MoveAtOnce, Fault::Failover] {
            assert_eq!(cell(fault, NOTHING, &history).faults.len(), 1);
        }
    }

    #[test]
    fn runs_of_a_cell_are_kept_side_by_side_and_are_one_line_of_the_table() {
        let directory = tempfile::tempdir().expect("a directory in the temporary one");
        let mut history = History {
            beliefs: vec![belief(crate::client::PULSES[0], "a", 1, 0, 3)],
            rounds: vec![round(1, 2)],
            ..History::default()
        };
        let mut put = |seed: u64, fault: Fault, until: u64| {
            history.beliefs[0].until = until * SECOND;
            let run = Cell {
                seed,
                ..cell(fault, NOTHING, &history)
            };
            keep(directory.path(), vec![run]).expect("it can be written");
        };
        put(1, Fault::Kill, 3);
        put(2, Fault::Kill, 4);
        put(2, Fault::Kill, 5);
        put(1, Fault::Stop, 3);
        let runs = kept(directory.path()).expect("it can be read");
        assert_eq!(runs.len(), 3);
        assert!(
            runs[1].is_of(&plan(Fault::Kill, NOTHING))
                || runs[0].is_of(&plan(Fault::Kill, NOTHING))
        );
        let table = fs::read_to_string(directory.path().join("table.md")).expect("it is there");
        let lines: Vec<&str> = table
            .lines()
            .filter(|line| line.contains("Redis"))
            .collect();
        assert_eq!(lines.len(), 2, "{table}");
        let kills = lines.iter().find(|line| line.contains("kill -9"));
        let kills = kills.expect("there is a line for it");
        assert!(kills.contains("| nothing | 2 | 2 | 2 |"), "{kills}");
    }
}
