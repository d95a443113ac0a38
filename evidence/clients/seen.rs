//! What was seen in the rounds of a scene.

use std::fmt;

use dlock_evidence::page::lines;
use dlock_harness::belief::{overlap, Belief, Micros, Overlap, SECOND};

use crate::program::{Notes, Program};
use crate::servers::{Fault, Mode};

/// One round.
pub struct Round {
    /// From the fault to the promotion.
    takeover: Micros,
    promoted: Micros,
    notes: Vec<Notes>,
    overlap: Overlap,
}

impl Round {
    pub fn new(began: Micros, promoted: Micros, notes: Vec<Notes>) -> Round {
        let beliefs = notes.iter().flat_map(|notes| notes.beliefs.iter().cloned());
        let beliefs: Vec<Belief> = beliefs.collect();
        Round {
            takeover: promoted.saturating_sub(began),
            promoted,
            overlap: overlap(&beliefs),
            notes,
        }
    }

    fn beliefs(&self) -> usize {
        self.notes.iter().map(|notes| notes.beliefs.len()).sum()
    }

    /// Returns how long after the promotion this program was first granted its own lock, if it was.
    fn first_turn(&self, program: &Program) -> Option<Micros> {
        let notes = self.notes.iter().find(|notes| notes.program == program)?;
        Some(notes.first_turn_since(self.promoted)? - self.promoted)
    }

    fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.notes.iter().filter_map(Notes::wrong).collect();
        let silent = self
            .notes
            .iter()
            .filter(|notes| self.first_turn(notes.program).is_none());
        wrong.extend(
            silent.map(|notes| format!("{} got no lock after the promotion", notes.program.title)),
        );
        if self.overlap.times > 0 {
            wrong.push(format!("two believed in a lock: {:?}", self.overlap));
        }
        wrong
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promoted after {} s;", seconds(self.takeover))?;
        for notes in &self.notes {
            let first = self
                .first_turn(notes.program)
                .map_or("-".to_owned(), seconds);
            write!(f, " {} {first}", notes.program.title)?;
        }
        match self.wrong() {
            wrong if wrong.is_empty() => Ok(()),
            wrong => write!(f, "; {}", wrong.join("; ")),
        }
    }
}

fn seconds(time: Micros) -> String {
    format!("{:.1}", time as f64 / SECOND as f64)
}

/// All rounds of a scene.
pub struct Seen {
    mode: Mode,
    fault: Fault,
    rounds: Vec<Round>,
}

impl Seen {
    pub fn new(mode: Mode, fault: Fault, rounds: Vec<Round>) -> Seen {
        Seen {
            mode,
            fault,
            rounds,
        }
    }

    pub fn beliefs(&self) -> usize {
        self.rounds.iter().map(Round::beliefs).sum()
    }

    pub fn overlaps(&self) -> usize {
        self.rounds.iter().map(|round| round.overlap.times).sum()
    }

    /// Returns what is not as promised.
    pub fn wrong(&self) -> Vec<String> {
        let wrong = self.rounds.iter().flat_map(Round::wrong);
        wrong
            .map(|what| format!("{}, {}: {what}", self.mode, self.fault))
            .collect()
    }

    /// Returns the median and the longest of these times.
    fn times(&self, time: impl Fn(&Round) -> Option<Micros>) -> String {
        let mut times: Vec<Option<Micros>> = self.rounds.iter().map(time).collect();
        times.sort_by_key(|time| time.unwrap_or(Micros::MAX));
        let shown = |time: Option<Micros>| time.map_or("none".to_owned(), seconds);
        let (middle, longest) = (shown(times[times.len() / 2]), shown(times[times.len() - 1]));
        match middle == longest {
            true => middle,
            false => format!("{middle} ({longest})"),
        }
    }

    /// Returns the holds that this program kept through the rounds, and those that it had.
    fn kept(&self, program: &Program) -> (usize, usize) {
        let notes = self.rounds.iter().flat_map(|round| &round.notes);
        let own = notes.filter(|notes| notes.program == program);
        let kept = own.map(|notes| notes.kept).sum();
        (kept, self.rounds.len() * program.kept)
    }
}

/// Returns the table: a row for each program, a column for each scene.
pub fn table(programs: &[&Program], seen: &[Seen]) -> String {
    let row = |title: &str, cell: &dyn Fn(&Seen) -> String, last: String| {
        let cells: Vec<String> = seen.iter().map(cell).collect();
        format!("| {title} | {} | {last} |", cells.join(" | "))
    };
    let scene = |seen: &Seen| format!("{}, {}", seen.mode, seen.fault);
    let head = [
        row("", &scene, "kept holds".to_owned()),
        format!("|---|{}---|", "---|".repeat(seen.len())),
    ];
    let takeover = row(
        "*promotion after the fault*",
        &|seen| seen.times(|round| Some(round.takeover)),
        String::new(),
    );
    let rows = programs.iter().map(|program| {
        let (kept, had) = seen.iter().fold((0, 0), |(kept, had), seen| {
            let (more, all) = seen.kept(program);
            (kept + more, had + all)
        });
        let last = if had == 0 {
            "–".to_owned()
        } else {
            format!("{kept} of {had}")
        };
        row(
            program.title,
            &|seen| seen.times(|round| round.first_turn(program)),
            last,
        )
    });
    lines(head.into_iter().chain([takeover]).chain(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::PROGRAMS;

    fn round(lines: [&[&str]; 2]) -> Round {
        let noted = |program: usize, lines: &[&str]| {
            let mut notes = Notes::of(&PROGRAMS[program]);
            lines.iter().for_each(|line| notes.add(line));
            notes.end(9_000_000);
            notes
        };
        Round::new(
            1_000_000,
            3_000_000,
            vec![noted(4, lines[0]), noted(8, lines[1])],
        )
    }

    #[test]
    fn two_programs_that_believe_at_once_are_wrong() {
        let [go, php]: [&[&str]; 2] = [
            &[
                "have {t}turn:0 1 4000000",
                "free {t}turn:0 1 4500000",
                "have {t}own:go 2 4000000",
            ],
            &[
                "have {t}turn:0 3 4400000",
                "have {t}own:php 4 3500000",
                "end",
            ],
        ];
        let seen = Seen::new(Mode::Cluster, Fault::Kill, vec![round([go, php])]);
        assert_eq!(seen.overlaps(), 1);
        let wrong = seen.wrong();
        assert!(
            wrong
                .iter()
                .any(|what| what.contains("two believed in a lock")),
            "{wrong:?}"
        );
        let table = table(&[&PROGRAMS[4], &PROGRAMS[8]], &[seen]);
        assert_eq!(
            table.lines().skip(2).collect::<Vec<_>>(),
            [
                "| *promotion after the fault* | 2.0 |  |",
                "| Go | 1.0 | 0 of 10 |",
                "| PHP, phpredis | 0.5 | – |"
            ]
        );
    }

    #[test]
    fn a_program_without_a_turn_is_wrong() {
        let none = ["end"];
        let round = round([&none, &none]);
        assert!(round
            .wrong()
            .iter()
            .any(|what| what == "PHP, phpredis got no lock after the promotion"));
    }
}
