//! A language's program: `clients/<language>/failover.sh`, and what it reports.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dlock_harness::belief::{now, Belief, End, Micros};
use dlock_harness::{spawn, until};

use crate::servers::Scene;

/// How long a program may take to end after its input has ended.
const ENDING: Duration = Duration::from_secs(8);

/// The holds that a program keeps from its beginning to its end. PHP's client keeps none: it has no background.
const KEPT: usize = 10;

/// A language's program with one of its libraries.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    pub language: &'static str,
    library: &'static str,
    /// The name in its locks.
    word: &'static str,
    /// The name in the table.
    pub title: &'static str,
    pub kept: usize,
}

const fn program(
    language: &'static str,
    library: &'static str,
    word: &'static str,
    title: &'static str,
) -> Program {
    Program {
        language,
        library,
        word,
        title,
        kept: KEPT,
    }
}

pub const PROGRAMS: [Program; 9] = [
    program("python", "threads", "python-threads", "Python, threads"),
    program("python", "asyncio", "python-asyncio", "Python, asyncio"),
    program("node", "ioredis", "node-ioredis", "Node, ioredis"),
    program("node", "node-redis", "node-node-redis", "Node, node-redis"),
    program("go", "go-redis", "go", "Go"),
    program("java", "Lettuce", "java-lettuce", "Java, Lettuce"),
    program("java", "Jedis", "java-jedis", "Java, Jedis"),
    program("rust", "redis", "rust", "Rust"),
    Program {
        kept: 0,
        ..program("php", "phpredis", "php", "PHP, phpredis")
    },
];

fn script(language: &str) -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients");
    clients.join(language).join("failover.sh")
}

fn command(language: &str, installed: &Path) -> Command {
    let target = installed.join(language);
    fs::create_dir_all(&target).expect("the directory can be made");
    let mut command = Command::new("bash");
    command.arg(script(language));
    command.env(
        "DLOCK_CLIENT_TARGET",
        target.canonicalize().expect("it is there"),
    );
    command
}

/// Builds and installs what a language's programs need.
pub fn install(language: &str, installed: &Path) {
    let done = command(language, installed).arg("--install").status();
    let is_done = done.expect("there is a bash").success();
    assert!(is_done, "the program of {language} could not be installed");
}

/// A running program.
pub struct Playing {
    program: &'static Program,
    child: Child,
    notes: Arc<Mutex<Notes>>,
    reader: JoinHandle<()>,
}

impl Playing {
    /// Starts a program. Its error output goes to a log.
    pub fn start(
        program: &'static Program,
        scene: &Scene,
        lease_ms: u64,
        installed: &Path,
        logs: &Path,
    ) -> Playing {
        fs::create_dir_all(logs).expect("the directory can be made");
        let log = logs.join(format!("{}.txt", program.word));
        let log = File::create(log).expect("the log can be written");
        let (variable, addresses) = scene.way();
        let mut command = command(program.language, installed);
        command
            .arg(program.library)
            .env(variable, addresses)
            .env("DLOCK_TAG", scene.tag())
            .env("DLOCK_LEASE_MS", lease_ms.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = spawn(command).expect("there is a bash");
        let output = child.stdout.take().expect("it is a pipe");
        let notes = Arc::new(Mutex::new(Notes::of(program)));
        let noting = notes.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                noting.lock().expect("no reader panics with it").add(&line);
            }
        });
        Playing {
            program,
            child,
            notes,
            reader,
        }
    }

    pub fn name(&self) -> &str {
        self.program.title
    }

    pub fn is_ready(&self) -> bool {
        self.noted(|notes| notes.is_ready)
    }

    /// Returns true if its own lock was granted to it since then.
    pub fn has_turned_since(&self, since: Micros) -> bool {
        self.noted(|notes| notes.first_turn_since(since).is_some())
    }

    fn noted<T>(&self, look: impl Fn(&Notes) -> T) -> T {
        look(&self.notes.lock().expect("no reader panics with it"))
    }

    /// Ends the program. Returns what it has reported.
    pub fn end(mut self) -> Notes {
        // From here on it may release what it holds without a report.
        let asked = now();
        drop(self.child.stdin.take());
        until(ENDING, || matches!(self.child.try_wait(), Ok(Some(_))));
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.reader.join().expect("every line is understood");
        let notes = Arc::into_inner(self.notes).expect("the reader has ended");
        let mut notes = notes.into_inner().expect("no reader panics with it");
        notes.end(asked);
        notes
    }
}

/// What a program has reported.
pub struct Notes {
    pub program: &'static Program,
    pub beliefs: Vec<Belief>,
    /// The belief of each hold that is not over, by its key and token.
    open: HashMap<(String, u64), usize>,
    /// The kept holds that are still held at the end.
    pub kept: usize,
    is_ready: bool,
    has_ended: bool,
}

impl Notes {
    pub fn of(program: &'static Program) -> Notes {
        Notes {
            program,
            beliefs: Vec::new(),
            open: HashMap::new(),
            kept: 0,
            is_ready: false,
            has_ended: false,
        }
    }

    /// Reads a line: `ready`, `have KEY TOKEN AT`, `free KEY TOKEN AT`, `lost KEY TOKEN AT`, `kept KEY TOKEN`, `end`.
    pub fn add(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        match words[..] {
            ["ready"] => self.is_ready = true,
            ["have", key, token, at] => {
                let (token, at) = (number(token), number(at));
                let place = (key.to_owned(), token);
                self.open.insert(place, self.beliefs.len());
                let owner = format!("{}:{token}", self.program.word);
                self.beliefs.push(Belief {
                    token,
                    end: End::Unknown,
                    ..Belief::new(key, owner, at, Micros::MAX)
                });
            }
            ["free", key, token, at] => self.over(key, number(token), number(at), End::Released),
            ["lost", key, token, at] => self.over(key, number(token), number(at), End::Lost),
            ["kept", ..] => self.kept += 1,
            ["end"] => self.has_ended = true,
            _ => panic!("{} said: {line}", self.program.title),
        }
    }

    fn over(&mut self, key: &str, token: u64, at: Micros, how: End) {
        // A kept hold has no turn; a hold that was lost while its work went on is over already.
        let Some(index) = self.open.remove(&(key.to_owned(), token)) else {
            return;
        };
        let belief = &mut self.beliefs[index];
        (belief.until, belief.end) = (at, how);
    }

    /// Ends what is open, and forgets what came later.
    pub fn end(&mut self, at: Micros) {
        for belief in &mut self.beliefs {
            belief.until = belief.until.min(at);
        }
    }

    /// Returns when its own lock was first granted to it since then.
    pub fn first_turn_since(&self, since: Micros) -> Option<Micros> {
        let own = format!("own:{}", self.program.word);
        let turns = self
            .beliefs
            .iter()
            .filter(|belief| belief.lock.ends_with(&own));
        turns
            .map(|turn| turn.from)
            .filter(|from| *from >= since)
            .min()
    }

    /// Returns what is not as promised.
    pub fn wrong(&self) -> Option<String> {
        let title = self.program.title;
        match (self.program.kept - self.kept, self.has_ended) {
            (_, false) => Some(format!("{title} has not ended by itself")),
            (0, true) => None,
            (lost, true) => Some(format!("{title} has lost {lost} kept holds")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(program: usize, lines: &[&str]) -> Notes {
        let mut notes = Notes::of(&PROGRAMS[program]);
        lines.iter().for_each(|line| notes.add(line));
        notes.end(1_000);
        notes
    }

    #[test]
    fn the_lines_of_a_program_are_beliefs() {
        let notes = notes(
            4,
            &[
                "ready",
                "have {t}turn:1 5 100",
                "have {t}own:go 6 110",
                "lost {t}turn:1 5 120",
                "free {t}turn:1 5 130",
                "free {t}own:go 6 140",
                "have {t}own:go 7 150",
                "kept {t}kept:go:0 1",
                "end",
            ],
        );
        let seen = notes
            .beliefs
            .iter()
            .map(|b| (b.token, b.from, b.until, b.end));
        let seen: Vec<_> = seen.collect();
        assert_eq!(
            seen,
            [
                (5, 100, 120, End::Lost),
                (6, 110, 140, End::Released),
                (7, 150, 1_000, End::Unknown)
            ]
        );
        assert_eq!(notes.first_turn_since(111), Some(150));
        assert_eq!(notes.first_turn_since(151), None);
        assert_eq!(
            notes.wrong().expect("nine are lost"),
            "Go has lost 9 kept holds"
        );
    }

    #[test]
    fn who_does_not_end_is_noticed() {
        assert!(notes(8, &["ready"]).wrong().is_some());
        assert_eq!(notes(8, &["ready", "end"]).wrong(), None);
    }
}
