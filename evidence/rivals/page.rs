//! The page: a row for each lock and fault, the worst first.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::{fs, io};

use dlock_evidence::group::{DOWN_AFTER_MS, REPL_TIMEOUT};
use dlock_integration::belief::{Micros, SECOND};
use dlock_integration::Made;

use crate::contestant::{Contestant, Fault, CLIENTS, LEASE_MS, LOCKS, LONG_MS, SHORT_MS, WAIT_MS};
use crate::scene::{AFTER, QUARANTINE_MS};
use crate::seen::Seen;

/// The observations of a lock under a fault.
pub struct Row {
    pub contestant: Contestant,
    pub fault: Fault,
    pub seen: Seen,
    /// Faults whose time does not count.
    pub tilted: usize,
    /// Faults after which no replica was promoted, although no Sentinel was in TILT.
    pub without_effect: usize,
}

impl Row {
    /// Returns the reasons why this row says less than it seems to.
    pub fn failed_controls(&self, rounds: usize) -> Vec<String> {
        let mut failed = Vec::new();
        if self.without_effect > 0 {
            failed.push(format!("{} faults had no effect", self.without_effect));
        }
        let played = self.seen.gaps.len() + self.tilted;
        if played != rounds {
            failed.push(format!("{played} faults, not {rounds}"));
        }
        if self.seen.grants < 10 {
            failed.push(format!("only {} grants", self.seen.grants));
        }
        failed
    }
}

fn seconds(micros: Micros) -> f64 {
    micros as f64 / SECOND as f64
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = &self.seen;
        let twice = match seen.twice {
            0 => "none | –".to_owned(),
            twice => format!("**{twice}** | {:.1} s", seconds(seen.longest)),
        };
        let fault = match (self.contestant, self.fault) {
            (Contestant::Redlock, Fault::Cut) => "cut off (one master)".to_owned(),
            (Contestant::Redlock, fault) => format!("{fault} (one master)"),
            (_, fault) => fault.to_string(),
        };
        let timed = seen.gaps.len();
        let gap = match timed {
            0 => "– | –".to_owned(),
            _ => format!(
                "{:.1} s | {:.1} s",
                seconds(seen.median_gap()),
                seconds(seen.longest_gap())
            ),
        };
        write!(
            f,
            "| {} | {fault} | {} | {twice} | {} | {gap} | {timed} of {} |",
            self.contestant,
            seen.grants,
            seen.lost,
            timed + self.tilted,
        )
    }
}

/// All rows of a run, and its conditions.
pub struct Page {
    pub rounds: usize,
    /// The number of reports on clients without a lock.
    pub reported: usize,
    pub made: Made,
    pub rows: Vec<Row>,
}

impl Page {
    /// Writes the page to a directory.
    pub fn keep(mut self, directory: &Path) -> io::Result<()> {
        let rank = |row: &Row| {
            let seen = &row.seen;
            (seen.twice, seen.longest, seen.lost, seen.longest_gap())
        };
        self.rows.sort_by_key(|row| Reverse(rank(row)));
        fs::create_dir_all(directory)?;
        fs::write(directory.join("rivals.md"), self.text())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Rivals under the same chaos\n\nMade by `make rivals`: {}. Control: clients without any lock were reported {} times.\n\n",
            self.made,
            self.reported
        );
        let mut add = |line: fmt::Arguments| writeln!(text, "{line}").expect("a String takes all");
        if let Some(worst) = self.rows.first().filter(|row| row.seen.twice > 0) {
            add(format_args!(
                "**At worst, {} locks were granted while another client believed in them, for up to {:.1} s** ({}; the primary is {}).\n",
                worst.seen.twice,
                seconds(worst.seen.longest),
                worst.contestant,
                worst.fault
            ));
        }
        add(format_args!(
            "| lock | the primary is | grants | believed by two | longest | lost | no grants, median | at most | timed |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|"
        ));
        for row in &self.rows {
            add(format_args!("{row}"));
        }
        add(format_args!("\n## How to read it\n\n{}", self.meaning()));
        add(format_args!(
            "\n## Configuration\n\n{}",
            self.configuration()
        ));
        text
    }

    fn meaning(&self) -> String {
        format!(
            "Each row is {} faults.\n\n\
             - **believed by two**: grants of a lock in which another client still believed. A client believes from the answer that grants \
             the lock until it begins to give it back, or until its lease ends by its own clock. *Longest* is the longest such time together.\n\
             - **lost**: the lock was gone when its holder gave it back, although its lease had not ended.\n\
             - **no grants**: the longest time in which one of the two groups of clients was granted nothing, from a fault to the next. *Median* and *at most* \
             are over the faults that are *timed*: in the others a Sentinel was in TILT, its answer to a machine too busy to run its \
             timer, in which it promotes nobody.",
            self.rounds
        )
    }

    fn configuration(&self) -> String {
        let after = AFTER.as_secs();
        let drop_s = f64::from(DOWN_AFTER_MS as u32) / 1_000.0;
        format!(
            "- **Load**: two groups of {CLIENTS} clients, {LOCKS} locks, waits of at most {WAIT_MS} ms. Nine of ten holds last up to \
             {SHORT_MS} ms, the tenth one second to {} s. The lease is {} s where a lock has one, so no hold outlives its lease.\n\
             - **Servers**: one primary, two replicas, three Sentinels (quorum 2, `down-after-milliseconds {DOWN_AFTER_MS}`, \
             `failover-timeout {}`). `repl-timeout {REPL_TIMEOUT}` and `repl-ping-replica-period 1`; no RDB, no AOF. Clients reach all of \
             them through TCP proxies, which hold back what a cut separates.\n\
             - **Killed**: SIGKILL; {after} s after the promotion the server comes back empty, as a replica. **Stopped for good**: SIGSTOP; \
             {after} s after the promotion it is killed, and comes back in the same way.\n\
             - **Stalls past detection**: SIGSTOP until a replica says that it is the primary, and no longer.\n\
             - **Cut off with one replica**: the primary, a replica and one group of clients on one side; the other replica, the Sentinels \
             and the other group on the other, until {after} s after the promotion.\n\
             - **Redisson**: the settings are the defaults (watchdog 30 s, `checkLockSyncedSlaves` on, `slavesSyncTimeout` 1 s) except for \
             the sizes of connection pools, and a `NatMapper` for the proxies. Clients call `tryLock({WAIT_MS} ms)`, so the watchdog renews.\n\
             - **redlock**: three masters without replicas, without persistence. The fault hits one of them, chosen at random: killed or \
             stopped for {:.0} s (longer than the lease, as the algorithm asks of a master that forgets), stalled for {:.1} s, or cut off \
             with one group for {:.0} s. redsync has its defaults and this lease; go-redis has `ContextTimeoutEnabled` and no retries; a \
             release takes at most 1 s.\n\
             - **`SET NX PX` and `WAIT 1`**: a poll every 20 ms; the client believes only if `WAIT 1 1000` finds a replica. It asks the \
             Sentinels again after an error or silence of 2 s, and so do the clients of dlock.\n\
             - **dlock**: `ACQUIRE … BLOCK {WAIT_MS}`. With `dlock.replicas 2`, one replica confirms each grant, and \
             `dlock.quarantine-ms {QUARANTINE_MS}`. Without it, everything is default.",
            LONG_MS / 1_000,
            LEASE_MS / 1_000,
            2 * DOWN_AFTER_MS,
            drop_s + AFTER.as_secs_f64(),
            drop_s + 1.5,
            drop_s + AFTER.as_secs_f64(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Driver;

    fn row(contestant: Contestant, twice: usize) -> Row {
        Row {
            contestant,
            fault: Fault::Cut,
            seen: Seen {
                grants: 100,
                twice,
                longest: SECOND * 3 / 2,
                gaps: vec![1],
                ..Seen::default()
            },
            tilted: 0,
            without_effect: 0,
        }
    }

    #[test]
    fn the_worst_stands_first() {
        let directory = tempfile::tempdir().unwrap();
        let page = Page {
            rounds: 1,
            reported: 7,
            made: Made::default(),
            rows: vec![row(Contestant::Dlock, 0), row(Contestant::SetWait, 3)],
        };
        page.keep(directory.path()).unwrap();
        let text = fs::read_to_string(directory.path().join("rivals.md")).unwrap();
        assert!(text.contains("**At worst, 3 locks were granted"), "{text}");
        let place = |name: Contestant| text.find(&format!("\n| {name} | cut")).unwrap();
        assert!(place(Contestant::SetWait) < place(Contestant::Dlock));
    }

    #[test]
    fn a_row_that_says_nothing_fails() {
        let good = row(Contestant::Nothing(Driver::Here), 0);
        assert_eq!(good.failed_controls(1), Vec::<String>::new());
        assert_eq!(good.failed_controls(2).len(), 1);
        let mut bad = row(Contestant::Dlock, 0);
        (bad.seen.grants, bad.without_effect) = (2, 1);
        assert_eq!(bad.failed_controls(1).len(), 2);
    }
}
