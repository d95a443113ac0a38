//! The table: a row per case.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io, thread};

use dlock_integration::workers::{LEASE_MS, LOCKS, WORKERS};
use dlock_integration::Server;

use crate::{Motion, Setting, Whose, AFTER};

/// The observations of one case.
pub struct Row {
    pub setting: Setting,
    pub whose: Whose,
    pub motion: Motion,
    /// Owners that were granted a lock while another believed in its lease.
    pub twice: usize,
    /// The time for which both believed, over all locks.
    pub together: Duration,
    /// From the step, or from the primary's death, to the first grant after it.
    pub gap: Duration,
    /// From its grant until the lock of a dead owner was free. None: not within the observed time.
    pub free: Option<Duration>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Setting::Nothing => "nothing",
            Setting::Replicas => "`dlock.replicas 2`",
        })
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Primary => "the primary's",
            Whose::Replicas => "the replicas', of which one takes over",
            Whose::All => "everybody's, and a replica takes over",
        })
    }
}

impl fmt::Display for Motion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |ms: i64| match ms.abs() {
            3_600_000.. => format!("{} h", ms.abs() / 3_600_000),
            ms => format!("{} s", ms / 1_000),
        };
        match self {
            Motion::Step(ms) if *ms < 0 => write!(f, "−{}", length(*ms)),
            Motion::Step(ms) => write!(f, "+{}", length(*ms)),
            Motion::Strobe(ms) => write!(f, "to and fro by {}", length(*ms)),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let twice = match self.twice {
            0 => "none".to_owned(),
            twice => format!("**{twice} times, {:.1} s**", self.together.as_secs_f64()),
        };
        let gap = match self.gap {
            Duration::MAX => "none while it was watched".to_owned(),
            gap => format!("{:.1} s", gap.as_secs_f64()),
        };
        let free = match self.free {
            None => "not while it was watched".to_owned(),
            Some(free) => format!("{:.1} s", free.as_secs_f64()),
        };
        write!(
            f,
            "| {} | {} | {} | {twice} | {gap} | {free} |",
            self.whose, self.motion, self.setting
        )
    }
}

/// All rows of a run, and its machine.
pub struct Table {
    place: String,
    pub rows: Vec<Row>,
}

impl Table {
    /// Returns the table of a run on this machine.
    pub fn new(rows: Vec<Row>) -> Table {
        let server = Server::start();
        let place = format!(
            "{}, dlock {}, {}, {} cores, {}",
            server.version(),
            server.module_version().expect("the module is loaded"),
            said("date", &["-u", "+%F"]),
            thread::available_parallelism().map_or(1, usize::from),
            said("uname", &["-srm"])
        );
        Table { place, rows }
    }

    /// Writes the table to a directory.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let most = self.rows.iter().max_by_key(|row| row.together);
        let most = most.expect("there are rows");
        let mut text = format!(
            "Made by `make clocks`, on {}.\n\n\
             **At worst {} times an owner was let in beside another one, and they were together for {:.1} s** ({}, {}, {}). {WORKERS} workers \
             use {LOCKS} locks with leases of {LEASE_MS} ms, and believe in a lease by a clock that nobody touches. Together: over all locks. \
             First grant: from the step on, or from the primary's death. Free: when the lock of an owner that had died was free, \
             counted from its grant; it was watched for {:.0} s.\n\n\
             | whose clock | step | against lost grants | two owners | first grant | free after |\n|---|---|---|---|---|---|\n",
            self.place,
            most.twice,
            most.together.as_secs_f64(),
            most.whose,
            most.motion,
            most.setting,
            AFTER.as_secs_f64()
        );
        for row in &self.rows {
            writeln!(text, "{row}").expect("a String takes all");
        }
        fs::create_dir_all(directory)?;
        fs::write(directory.join("clocks.md"), text)
    }
}

/// Returns the output of a program.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
