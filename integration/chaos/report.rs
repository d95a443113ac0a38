//! Figures and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::history::History;
use crate::judge::{judge, Verdict};
use crate::run::Plan;

/// A cell of the table.
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
    /// What is not as promised.
    pub faults: Vec<String>,
}

impl Cell {
    pub fn new(plan: &Plan, version: String, history: &History) -> Cell {
        let verdict = judge(history);
        let mut faults = verdict.never();
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
            mode: plan.mode.name().into(),
            fault: plan.fault.name().into(),
            setting: plan.setting.name.into(),
            seed: plan.seed,
            verdict,
            answers: history.answers.clone(),
            faults,
        }
    }

    fn is_of(&self, other: &Cell) -> bool {
        let place = |cell: &Cell| {
            [
                cell.server.clone(),
                cell.mode.clone(),
                cell.fault.clone(),
                cell.setting.clone(),
            ]
        };
        place(self) == place(other)
    }

    /// A line for who watches.
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

/// Puts a cell into the figures, in the place of one that was there, and writes the table anew.
pub fn keep(directory: &Path, cell: Cell) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let path = directory.join("figures.json");
    let mut cells: Vec<Cell> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(_) => Vec::new(),
    };
    cells.retain(|old| !old.is_of(&cell));
    cells.push(cell);
    let order = |cell: &Cell| {
        (
            cell.mode.clone(),
            cell.server.clone(),
            cell.fault.clone(),
            cell.setting.clone(),
        )
    };
    cells.sort_by_key(order);
    fs::write(path, serde_json::to_string_pretty(&cells)? + "\n")?;
    fs::write(directory.join("table.md"), table(&cells))
}

/// The table as Markdown.
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::from(
        "Made by `make chaos`; `figures.json` has the figures. A round is one fault or one move. Overlap: seconds in which \
         more owners believed in a lock than it allows, over all locks. Lost: grants whose owner was told before its \
         lease was over that it held nothing. Never: tokens that fell or came twice, guarded writes that landed late, \
         lost wake-ups, tickets that were overtaken. Silence: the longest time without any grant in a round, median and most.\n\n\
         | mode | server | fault | against lost grants | rounds | new primaries | grants | overlap, s (times) | lost | guarded writes | never | silence, s | calls without an answer |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells {
        let verdict = &cell.verdict;
        let never = [
            verdict.tokens_fallen,
            verdict.tokens_twice,
            verdict.writes_late,
            verdict.wakeups_lost,
            verdict.overtaken,
        ];
        let silences = &verdict.silences_s;
        let median = silences.get(silences.len() / 2).copied().unwrap_or(0.0);
        let most = silences.last().copied().unwrap_or(0.0);
        writeln!(
            text,
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
        )
        .expect("a String takes all");
    }
    text
}
