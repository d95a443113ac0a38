//! A server that loses its newest writes.

use std::fmt;
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_evidence::lanes::in_lanes;
use dlock_evidence::setting::QUARANTINE_MS;
use dlock_harness::workers::{Seen, Workers};
use dlock_harness::{Ask, Server};

use crate::cuts::size;

/// How long workers work, how long before the end the disk stores nothing more, and how long they are observed.
const BEFORE: Duration = Duration::from_millis(3_500);
const LOST: Duration = Duration::from_millis(1_000);
const AFTER: Duration = Duration::from_millis(QUARANTINE_MS + 2_500);

/// How the server stores its data, and what it loses of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    /// Each answer is on the disk before it is sent, so no answered grant is lost.
    Always,
    /// The last second.
    EverySecond,
    /// Everything that the system had not written: here the whole run.
    No,
    /// Everything since the RDB was saved, a second ago.
    Rdb,
}

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    disk: Disk,
    has_quarantine: bool,
}

/// The observations of a case.
pub struct Row {
    pub case: Case,
    pub seen: Seen,
}

impl Case {
    /// Returns true if no two owners may believe in a lock.
    pub fn promises_one_owner(self) -> bool {
        self.disk == Disk::Always || self.has_quarantine
    }

    /// Returns true if two owners must be seen: otherwise the run could not detect them.
    pub fn must_let_in_two(self) -> bool {
        matches!(self.disk, Disk::No) && !self.has_quarantine
    }

    fn play(self) -> Row {
        let (aof, fsync) = match self.disk {
            Disk::Always => ("yes", "always"),
            Disk::EverySecond => ("yes", "everysec"),
            Disk::No => ("yes", "no"),
            Disk::Rdb => ("no", "no"),
        };
        let mut server = Server::builder()
            .config("appendonly", aof)
            .config("appendfsync", fsync)
            .start();
        if self.has_quarantine {
            // In the file it applies from the restart on: the first start has none.
            let set = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
            server.connection().ask::<String>(&set);
            server.connection().ask::<String>("CONFIG REWRITE");
            server.restart();
            sleep(Duration::from_millis(QUARANTINE_MS));
        }
        let begun = (self.disk == Disk::No).then(|| size(&server.aof()));
        let workers = Workers::start(server.port());
        sleep(BEFORE - LOST);
        let kept = match self.disk {
            Disk::Always => None,
            Disk::EverySecond => Some(size(&server.aof())),
            Disk::No => begun,
            Disk::Rdb => {
                server.connection().ask::<String>("SAVE");
                None
            }
        };
        sleep(LOST);
        server.kill9();
        let died = Instant::now();
        if let Some(kept) = kept {
            let file = File::options().write(true).open(server.aof());
            let cut = file.and_then(|file| file.set_len(kept as u64));
            cut.expect("the AOF can be cut");
        }
        server.restart();
        sleep(AFTER);
        Row {
            case: self,
            seen: workers.end(died),
        }
    }
}

impl Row {
    /// Returns the name of the case.
    pub fn name(&self) -> String {
        let (keeps, loses) = match self.case.disk {
            Disk::Always => ("AOF, `appendfsync always`", "nothing that was answered"),
            Disk::EverySecond => ("AOF, `appendfsync everysec`", "the last second"),
            Disk::No => ("AOF, `appendfsync no`", "all of the run, 3.5 s"),
            Disk::Rdb => ("RDB", "all since it was saved, 1 s before"),
        };
        let quarantine = match self.case.has_quarantine {
            true => format!("a quarantine of {:.0} s", QUARANTINE_MS as f64 / 1000.0),
            false => "no quarantine".to_owned(),
        };
        format!("{keeps} | {loses} | {quarantine}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (twice, gap) = (self.seen.two_owners(), self.seen.gap.as_secs_f64());
        write!(f, "| {} | {twice} | {gap:.1} s |", self.name())
    }
}

/// Plays all cases, `lanes` at a time.
pub fn play(lanes: usize) -> Vec<Row> {
    let disks = [Disk::Always, Disk::EverySecond, Disk::No, Disk::Rdb];
    let case = |disk, has_quarantine| Case {
        disk,
        has_quarantine,
    };
    let cases = disks.map(|disk| [case(disk, false), case(disk, true)]);
    in_lanes(lanes, cases.as_flattened(), |case| case.play())
}
