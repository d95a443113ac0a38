//! A grant that replicas confirm before its answer (`dlock.replicas`), compared with an unconfirmed one, and with a client's own
//! confirmation: `SET`, and then `WAIT` until equally many replicas have the key.

use std::rc::Rc;
use std::time::{Duration, Instant};

use dlock_harness::{await_until, command, stat, Ask, Server, PATIENCE};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::replies::Pattern;
use crate::way::{way, Figure, Named, Opened, Way};

/// Grants in a sample, whatever the number of connections.
const GRANTS: usize = 2_000;

/// Long enough for a sample.
const LEASE_MS: u64 = 60_000;

/// Longer than every lease: confirmations need that.
const QUARANTINE_MS: u64 = 600_000;

/// Opens two servers with `replicas` replicas, one of which makes them confirm its answers, and connections that ask at once and
/// wait for each other.
pub fn open(replicas: usize, connections: usize) -> Opened {
    let [confirming, plain] = [replicas, 0].map(|wanted| Rc::new(Group::start(replicas, wanted)));
    let grants = |name, group: &Rc<Group>, steps: &[(&str, &str)]| -> Result<Named, Failure> {
        let lines = (0..connections).map(|_| Line::narrow(group.primary.port()));
        let step = |(line, reply): &(&str, &str)| ((*line).to_owned(), Pattern::new(reply));
        let grants = Grants {
            group: Rc::clone(group),
            lines: lines.collect::<Result<_, _>>()?,
            steps: steps.iter().map(step).collect(),
            turns: 0,
        };
        Ok(way(name, grants))
    };
    let ours = format!("DLOCK.ACQUIRE NAME owner {LEASE_MS}");
    let ours = [(&*ours, "*2\r\n:#\r\n:1\r\n")];
    let set = format!("SET NAME owner NX PX {LEASE_MS}");
    // More than half of all servers then have the key: as many replicas as dlock needs.
    let wait = format!("WAIT {} 0", replicas.div_ceil(2));
    Ok(vec![
        grants("dlock.replicas", &confirming, &ours)?,
        grants("dlock", &plain, &ours)?,
        grants(
            "SET, then WAIT",
            &plain,
            &[(&set, "+OK\r\n"), (&wait, ":#\r\n")],
        )?,
    ])
}

/// A primary and its replicas.
struct Group {
    primary: Server,
    _replicas: Vec<Server>,
    confirms: bool,
}

impl Group {
    /// Starts a group in which `wanted` replicas must confirm; 0: none.
    fn start(replicas: usize, wanted: usize) -> Group {
        let quarantine = if wanted > 0 { "200" } else { "0" };
        let settings = ["replicas", &wanted.to_string(), "quarantine-ms", quarantine];
        let server = || {
            let builder = Server::builder();
            let builder = settings
                .iter()
                .fold(builder, |builder, word| builder.module_argument(word));
            builder.start()
        };
        let primary = server();
        let replicas: Vec<Server> = (0..replicas).map(|_| server()).collect();
        for replica in &replicas {
            replica.replica_of(&primary);
        }
        await_until("all replicas count", PATIENCE, || {
            wanted == 0
                || (stat(&primary, "replicas_counting") == wanted as u64
                    && stat(&primary, "closed") == 0)
        });
        if wanted > 0 {
            let setting = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
            primary.connection().run(&setting);
        }
        Group {
            primary,
            _replicas: replicas,
            confirms: wanted > 0,
        }
    }
}

struct Grants {
    group: Rc<Group>,
    lines: Vec<Line>,
    // The commands of each connection, one after the other, and their answers; NAME is a lock of its own each time.
    steps: Vec<(String, Pattern)>,
    turns: usize,
}

impl Grants {
    /// Makes all connections ask, and waits for all answers.
    fn turn(&mut self) -> Result<Duration, Failure> {
        self.turns += 1;
        let turn = self.turns;
        let count = self.lines.len();
        let packed = |line: &str, at: usize| {
            command(&line.replace("NAME", &format!("grant:{turn}:{at}"))).get_packed_command()
        };
        let each = |line: &str| -> Vec<Vec<u8>> { (0..count).map(|at| packed(line, at)).collect() };
        let commands: Vec<_> = self.steps.iter().map(|(line, _)| each(line)).collect();
        let start = Instant::now();
        for (commands, (_, reply)) in commands.iter().zip(&self.steps) {
            for (line, command) in self.lines.iter_mut().zip(commands) {
                line.send(command)?;
            }
            for line in &mut self.lines {
                line.expect(reply, 1)?;
            }
        }
        Ok(start.elapsed())
    }
}

impl Way for Grants {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let primary = &self.group.primary;
        primary.connection().run("FLUSHALL");
        let before = stat(primary, "confirmed_total");
        let (mut took, turns) = (Duration::ZERO, GRANTS / self.lines.len());
        for _ in 0..turns {
            took += self.turn()?;
        }
        let grants = turns * self.lines.len();
        let confirmed = stat(&self.group.primary, "confirmed_total") - before;
        let wanted = if self.group.confirms {
            grants as u64
        } else {
            0
        };
        if confirmed != wanted {
            return Err(format!("{confirmed} of {grants} grants were confirmed").into());
        }
        // For many connections that ask at once: the time of all, divided by their number.
        Ok(vec![(
            "µs a grant",
            took.as_secs_f64() * 1e6 / grants as f64,
        )])
    }
}
