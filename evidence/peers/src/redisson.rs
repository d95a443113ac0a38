//! Redisson's locks, and dlock's from Java: a program of its own, since they are Java.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dlock_harness::{spawn, Server};

use crate::cell::{self, Figures, Load, Turn};
use crate::failure::Failure;
use crate::machine::tree;

/// A kind of lock: its name in the program and in the tables. Redisson's first, then dlock's for this purpose.
pub const KINDS: [(&str, &str); 10] = [
    ("rlock", "Redisson RLock"),
    ("acquire", "dlock by Lettuce, ACQUIRE"),
    ("rfair", "Redisson fair lock"),
    ("fairacquire", "dlock by Lettuce, FAIRACQUIRE"),
    ("rwrite", "Redisson read-write lock, one writer in four"),
    ("shared", "dlock by Lettuce, SHARED, one writer in four"),
    ("rsemaphore", "Redisson semaphore of 1"),
    ("limit", "dlock by Lettuce, LIMIT 1"),
    ("rmulti", "Redisson multi-lock of 3"),
    ("macquire", "dlock by Lettuce, MACQUIRE of 3"),
];

/// The outcome of a run of the program.
pub struct Run {
    /// Every turn.
    pub turns: Vec<Turn>,
    /// The fencing token of each (0 if there is none).
    pub tokens: Vec<u64>,
    /// Clients that still waited 10 s after the last request; granted and released are when the program gave up.
    pub waiting: Vec<Turn>,
    /// The server's processor time.
    pub cpu_us: f64,
}

/// The program, built.
#[derive(Clone)]
pub struct Driver {
    classpath: String,
}

impl Driver {
    /// Finds the program that `install.sh` has built below this directory.
    pub fn find(directory: &Path) -> Result<Driver, Failure> {
        let directory = directory.join("java");
        let classes = directory.join("classes");
        if !classes.join("Peers.class").exists() {
            return Err("the Java driver was not built (it takes a JDK and Maven)".into());
        }
        let libraries: PathBuf = directory.join("lib").join("*");
        Ok(Driver {
            classpath: format!("{}:{}", classes.display(), libraries.display()),
        })
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new("java");
        command
            .args(["-Xmx1000m", "-cp", &self.classpath, "Peers"])
            .args(words);
        command.stdin(Stdio::null());
        command
    }

    /// Runs clients that are threads of one program, all for one lock.
    pub fn contend(&self, server: &Server, kind: &str, load: Load) -> Result<Figures, Failure> {
        let run = self.run(server, kind, load, &[])?;
        match run.waiting.len() {
            0 => Ok(cell::figures(&run.turns, load, run.cpu_us)),
            some => {
                Err(format!("{some} clients still waited 10 s after the last had asked").into())
            }
        }
    }

    /// Runs clients, and returns the whole outcome. `more` has a semaphore's limit, and the permits of its clients in turn.
    pub fn run(
        &self,
        server: &Server,
        kind: &str,
        load: Load,
        more: &[String],
    ) -> Result<Run, Failure> {
        let words = [
            "contend".to_owned(),
            kind.to_owned(),
            server.port().to_string(),
            load.clients.to_string(),
            load.work.as_micros().to_string(),
            load.duration.as_millis().to_string(),
        ];
        // The program sends nothing while it warms up: the server's expenses are those between its two lines.
        let mut command = self.command(&words);
        command.args(more).stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(output).lines();
        let mut next = || lines.next().transpose();
        let processes = [server.pid()];
        let mut before = None;
        let mut after = None;
        let (mut turns, mut tokens, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(line) = next()? {
            match line.as_str() {
                "begin" => before = Some(tree::cpu_us(&processes)),
                "end" => after = Some(tree::cpu_us(&processes)),
                line if line.starts_with("waits ") => waiting.push(parse(&line[6..])?.0),
                line => {
                    let (turn, token) = parse(line)?;
                    turns.push(turn);
                    tokens.push(token);
                }
            }
        }
        if !child.wait()?.success() {
            return Err("the Java program failed".into());
        }
        let (Some(before), Some(after)) = (before, after) else {
            return Err("the Java program did not begin".into());
        };
        Ok(Run {
            turns,
            tokens,
            waiting,
            cpu_us: after - before,
        })
    }

    /// Kills a program that holds a Redisson lock, with SIGKILL, while another waits for it. Redisson's watchdog sets how long a
    /// holder counts as alive.
    pub fn kill_holder(&self, server: &Server, watchdog: Duration) -> Result<Figures, Failure> {
        let start = |mode: &str| {
            let words = [
                mode.to_owned(),
                server.port().to_string(),
                watchdog.as_millis().to_string(),
            ];
            let mut command = self.command(&words);
            command.stdout(Stdio::piped());
            let mut child = spawn(command)?;
            let output = child.stdout.take().ok_or("no output")?;
            Ok::<_, Failure>((child, BufReader::new(output).lines()))
        };
        let (mut holder, mut said) = start("hold")?;
        if !matches!(said.next(), Some(Ok(line)) if line == "held") {
            return Err("the holder did not get the lock".into());
        }
        let (mut waiter, mut said) = start("wait")?;
        if !matches!(said.next(), Some(Ok(line)) if line == "asking") {
            return Err("nobody waits".into());
        }
        std::thread::sleep(Duration::from_secs(1));
        let killed = Instant::now();
        holder.kill()?;
        holder.wait()?;
        let granted = matches!(said.next(), Some(Ok(line)) if line == "granted");
        let after = killed.elapsed();
        waiter.kill()?;
        waiter.wait()?;
        if !granted {
            return Err("the next did not get the lock".into());
        }
        Ok(vec![(cell::NEXT, after.as_secs_f64())])
    }
}

/// Reads a line of the program: client; asked, granted, released, in nanoseconds; token.
fn parse(line: &str) -> Result<(Turn, u64), Failure> {
    let mut words = line.split_whitespace();
    let mut number =
        || -> Result<u64, Failure> { Ok(words.next().ok_or("a word is missing")?.parse()?) };
    let turn = Turn {
        client: usize::try_from(number()?)?,
        asked: Duration::from_nanos(number()?),
        granted: Duration::from_nanos(number()?),
        released: Duration::from_nanos(number()?),
    };
    Ok((turn, number()?))
}
