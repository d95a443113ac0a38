//! The effect of steps of the wall clock on locks: how many owners are granted a lock while another still believes in its lease,
//! and how long a dead owner's lock is kept.
//!
//! A lease ends by the wall clock of the server, so a server whose clock is put forward ends it early, and one whose clock is put
//! back ends it late. Twenty workers take ten locks while the clock of the primary, of its replicas or of all three is stepped
//! once, or strobes to and fro. In the cases with replicas the primary dies a moment later and one of them takes over. The
//! workers believe by their own clock, which does not step.

mod table;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use clap::Parser;
use dlock_evidence::lanes::in_lanes;
use dlock_evidence::page;
use dlock_evidence::setting::{Setting, QUARANTINE_MS};
use dlock_harness::redis::Value;
use dlock_harness::workers::{Workers, LEASE_MS};
use dlock_harness::{Ask, Clock, Made, Server};

use crate::table::Row;

/// How long workers work before the step, how long after it the primary dies, and how long they are observed.
const BEFORE: Duration = Duration::from_millis(2_000);
const THEN: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(QUARANTINE_MS + 3_000);

/// How often the clock turns when it strobes, and for how long.
const TURN: Duration = Duration::from_millis(150);
const STROBE: Duration = Duration::from_millis(3_000);

/// The command line.
#[derive(Parser)]
struct Options {
    /// Cases that run at a time
    #[arg(long, default_value_t = 3)]
    lanes: usize,
    /// Where the table goes
    #[arg(long, default_value = "target/clocks")]
    results: std::path::PathBuf,
}

/// The server whose clock steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The primary, which lives on.
    Primary,
    /// The replicas: one of them takes over.
    Replicas,
    /// All servers: one of the replicas takes over.
    All,
}

/// The motion of the clock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Motion {
    /// Steps the clock once, by this many milliseconds.
    Step(i64),
    /// Sets the clock ahead by this many milliseconds and right again, in turn; in the end it is right.
    Strobe(i64),
}

const MOTIONS: [Motion; 8] = [
    Motion::Step(1_000),
    Motion::Step(-1_000),
    Motion::Step(30_000),
    Motion::Step(-30_000),
    Motion::Step(3_600_000),
    Motion::Step(-3_600_000),
    Motion::Strobe(1_000),
    Motion::Strobe(30_000),
];

/// One case.
#[derive(Clone, Copy)]
struct Case {
    setting: Setting,
    whose: Whose,
    motion: Motion,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for whose in [Whose::Primary, Whose::Replicas, Whose::All] {
            for motion in MOTIONS {
                for setting in [Setting::Nothing, Setting::Replicas] {
                    all.push(Case {
                        setting,
                        whose,
                        motion,
                    });
                }
            }
        }
        all
    }

    /// Returns by how much the clock is ahead at most.
    fn ahead_ms(self) -> i64 {
        match self.motion {
            Motion::Step(ms) | Motion::Strobe(ms) => ms,
        }
    }

    /// Returns true if a server with a fast clock ends leases early: two owners must be seen.
    fn must_let_in_two(self) -> bool {
        let outruns = self.ahead_ms() >= LEASE_MS as i64;
        // A strobing clock may or may not be right again when a replica takes over.
        outruns && !(self.whose != Whose::Primary && matches!(self.motion, Motion::Strobe(_)))
    }

    fn play(self) -> Row {
        let ([mut primary, new, other], clocks) = self.start();
        let workers = Workers::start(primary.port());
        sleep(BEFORE);
        let mut dead = primary.connection();
        dead.ask::<Value>(&format!("DLOCK.ACQUIRE left dead {LEASE_MS}"));
        let left = Instant::now();
        let touched = match self.whose {
            Whose::Primary => &clocks[..1],
            Whose::Replicas => &clocks[1..],
            Whose::All => &clocks[..],
        };
        let strobes = AtomicBool::new(true);
        let (seen, free) = thread::scope(|scope| {
            match self.motion {
                Motion::Step(ms) => touched.iter().for_each(|clock| clock.put_ahead(ms)),
                Motion::Strobe(ms) => {
                    let strobes = &strobes;
                    scope.spawn(move || strobe(touched, ms, strobes));
                }
            }
            let mut since = Instant::now();
            let now = if self.whose == Whose::Primary {
                &primary
            } else {
                sleep(THEN);
                primary.kill9();
                since = Instant::now();
                new.connection().ask::<String>("REPLICAOF NO ONE");
                other.replica_of(&new);
                workers.turn_to(new.port());
                &new
            };
            let free = watch(now, left);
            strobes.store(false, Ordering::Relaxed);
            (workers.end(since), free)
        });
        Row {
            case: self,
            seen,
            free,
        }
    }

    /// Starts a primary and two replicas, each with a clock of its own, and waits until they are in sync.
    fn start(self) -> ([Server; 3], [Clock; 3]) {
        let [one, two, three] = [(); 3].map(|()| Clock::of(self.setting.builder()));
        let servers = [one.0, two.0, three.0];
        self.setting.join(&servers);
        (servers, [one.1, two.1, three.1])
    }
}

/// Turns clocks to and fro. In the end they are right.
fn strobe(clocks: &[Clock], ms: i64, goes_on: &AtomicBool) {
    let begun = Instant::now();
    let mut is_ahead = false;
    while goes_on.load(Ordering::Relaxed) && begun.elapsed() < STROBE {
        is_ahead = !is_ahead;
        for clock in clocks {
            clock.put_ahead(if is_ahead { ms } else { 0 });
        }
        sleep(TURN);
    }
    for clock in clocks {
        clock.put_ahead(0);
    }
}

/// Observes the server for a while. Returns when the lock of the dead owner was free, counted from its grant, if it was.
fn watch(server: &Server, since: Instant) -> Option<Duration> {
    let begun = Instant::now();
    let mut connection = server.connection();
    let mut free = None;
    while begun.elapsed() < AFTER {
        let held: Value = connection.ask("DLOCK.HELD left");
        if free.is_none() && held == Value::Nil {
            free = Some(since.elapsed());
        }
        sleep(Duration::from_millis(10));
    }
    free
}

fn main() -> ExitCode {
    let options = Options::parse();
    let (made, cases) = (Made::now(), Case::all());
    let rows = in_lanes(options.lanes, &cases, |case| {
        let row = case.play();
        println!("{row}");
        row
    });
    table::keep(&rows, &made, &options.results).expect("the table can be written");
    let wrong = rows.iter().filter(|row| {
        // A clock that is put back ends no lease early.
        let (case, twice) = (row.case, row.seen.twice);
        case.ahead_ms() < 0 && twice > 0 || case.must_let_in_two() && twice == 0
    });
    let wrong: Vec<String> = wrong.map(Row::to_string).collect();
    page::verdict(&wrong)
}
