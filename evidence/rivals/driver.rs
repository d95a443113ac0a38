//! Clients that are threads of another program: Redisson's in Java, redsync's in Go.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dlock_harness::belief::{now, Belief, End, Micros};
use dlock_harness::spawn;

use crate::contestant::{Contestant, Driver, CLIENTS, LEASE_MS, LOCKS, LONG_MS, SHORT_MS, WAIT_MS};
use crate::scene::Ways;
use crate::seen::{group_of, GROUPS};

/// How long a driver may take to end after the run asked it to.
const PATIENCE: Duration = Duration::from_secs(20);

/// The drivers, as `install.sh` has built them.
#[derive(Clone)]
pub struct Drivers {
    directory: PathBuf,
}

impl Drivers {
    pub fn new(directory: &Path) -> Drivers {
        Drivers {
            directory: directory.to_owned(),
        }
    }

    /// Returns the versions of the driven libraries: the lines that `install.sh` has written.
    pub fn versions(&self) -> Vec<String> {
        let lines = fs::read_to_string(self.directory.join("versions"));
        let lines = lines.expect("install.sh has written the versions");
        lines.lines().map(str::to_owned).collect()
    }

    fn command(&self, driver: Driver) -> Command {
        if driver == Driver::Go {
            return Command::new(self.directory.join("redlock"));
        }
        let mut command = Command::new("java");
        let classes = self.directory.join("classes");
        let libraries = self.directory.join("lib").join("*");
        let classpath = format!("{}:{}", classes.display(), libraries.display());
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", &classpath, "Rivals"]);
        command
    }
}

/// A running driver.
pub struct Playing {
    child: Child,
    reader: JoinHandle<Vec<Belief>>,
}

impl Playing {
    /// Starts a driver with clients for each group. Its error output goes to a file.
    pub fn start(
        drivers: &Drivers,
        contestant: Contestant,
        groups: &[Ways],
        granted: &Arc<[AtomicUsize; GROUPS]>,
        log: &Path,
    ) -> Playing {
        let mut command = drivers.command(contestant.driver());
        command.arg(contestant.word());
        for number in [
            LOCKS as u64,
            CLIENTS as u64,
            WAIT_MS,
            LEASE_MS,
            SHORT_MS,
            LONG_MS,
        ] {
            command.arg(number.to_string());
        }
        command.args(groups.iter().map(|group| told(contestant, group)));
        let log = File::create(log).expect("the directory can be written to");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = spawn(command).expect("the driver was built");
        let output = child.stdout.take().expect("it is a pipe");
        let granted = Arc::clone(granted);
        let reader = thread::spawn(move || {
            let mut notes = Notes::default();
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(group) = notes.add(&line) {
                    granted[group].fetch_add(1, Ordering::Relaxed);
                }
            }
            notes.end()
        });
        Playing { child, reader }
    }

    /// Ends the driver. Returns its clients' beliefs.
    pub fn end(mut self) -> Vec<Belief> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.reader.join().expect("the reader does not panic")
    }
}

/// Returns a group's ways, as the drivers read them: masters, or Sentinels and then `announced:way`.
fn told(contestant: Contestant, group: &Ways) -> String {
    let list = |ports: &[u16]| {
        let words: Vec<String> = ports.iter().map(u16::to_string).collect();
        words.join(",")
    };
    if contestant.driver() == Driver::Go {
        return list(&group.masters);
    }
    let ways = group.ways.iter();
    let ways: Vec<String> = ways.map(|(from, to)| format!("{from}:{to}")).collect();
    format!("{}/{}", list(&group.sentinels), ways.join(","))
}

/// The output of a driver, line by line.
#[derive(Default)]
struct Notes {
    beliefs: Vec<Belief>,
    /// Holds that are not over: the index of the belief, and the end of its lease.
    open: HashMap<String, (usize, Micros)>,
}

impl Notes {
    /// Reads `grant GROUP-NUMBER LOCK FROM LEASE-END` or `over GROUP-NUMBER UNTIL released|lost|unknown`, in nanoseconds. Returns
    /// the group if a lock was granted.
    fn add(&mut self, line: &str) -> Option<usize> {
        let words: Vec<&str> = line.split(' ').collect();
        let time = |word: &str| word.parse::<Micros>().expect("a time in nanoseconds") / 1_000;
        match words[..] {
            ["grant", client, lock, from, end] => {
                let (from, end) = (time(from), time(end));
                let group = group_of(client).expect("a group and a number");
                self.open
                    .insert(client.to_owned(), (self.beliefs.len(), end));
                self.beliefs.push(Belief {
                    end: End::Unknown,
                    ..Belief::new(lock, client, from, end.max(from))
                });
                Some(group)
            }
            ["over", client, at, how] => {
                let (belief, end) = self.open.remove(client).expect("it was granted before");
                let belief = &mut self.beliefs[belief];
                belief.until = time(at).min(end).max(belief.from);
                belief.end = match how {
                    "released" => End::Released,
                    "lost" if time(at) < end => End::Lost,
                    _ => End::Unknown,
                };
                None
            }
            _ => panic!("a driver said: {line}"),
        }
    }

    /// Ends the open beliefs when the driver ends.
    fn end(mut self) -> Vec<Belief> {
        let over = now();
        for (belief, _) in self.open.into_values() {
            let belief = &mut self.beliefs[belief];
            belief.until = belief.until.min(over).max(belief.from);
        }
        self.beliefs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_driver_are_beliefs() {
        let mut notes = Notes::default();
        for line in [
            "grant 0-a 3 10000 100000",
            "grant 1-b 3 20000 90000",
            "over 0-a 40000 released",
            "over 1-b 95000 lost",
            "grant 0-a 1 50000 200000",
            "over 0-a 60000 lost",
        ] {
            notes.add(line);
        }
        let beliefs = notes.end();
        let seen = beliefs.iter().map(|b| (&*b.lock, b.from, b.until, b.end));
        let seen: Vec<_> = seen.collect();
        assert_eq!(
            seen,
            [
                ("3", 10, 40, End::Released),
                // It had ended by its own clock.
                ("3", 20, 90, End::Unknown),
                ("1", 50, 60, End::Lost)
            ]
        );
    }
}
