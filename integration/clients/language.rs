//! A language's tests as one child process.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;

use crate::control::Served;

/// A language, and the programs that its tests need.
pub struct Language {
    pub name: &'static str,
    /// The name in a page's heading.
    pub title: &'static str,
    needs: &'static [&'static str],
}

/// A script of a language.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Builds the package, checks it, and installs it.
    Install,
    /// Tests the installed package.
    Tests,
    /// Runs the shared cases only.
    Cases,
    /// Measures the package together with the language's popular locks. Prints Markdown, and anything else to stderr.
    Bench,
}

impl Script {
    /// Returns the script's file in the language's directory.
    fn file(self) -> &'static str {
        match self {
            Script::Install | Script::Tests | Script::Cases => "run.sh",
            Script::Bench => "bench.sh",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Script::Install => &["--install"],
            Script::Cases => &["--cases"],
            Script::Tests | Script::Bench => &[],
        }
    }
}

/// The languages in the order in which they are installed: those with the most to compile and the longest tests come first.
pub const LANGUAGES: &[Language] = &[
    Language {
        name: "java",
        title: "Java",
        needs: &["javac"],
    },
    Language {
        name: "rust",
        title: "Rust",
        needs: &["cargo"],
    },
    Language {
        name: "python",
        title: "Python",
        needs: &["python3"],
    },
    Language {
        name: "node",
        title: "Node.js",
        needs: &["node", "npm"],
    },
    Language {
        name: "go",
        title: "Go",
        needs: &["go"],
    },
    // Debian's packages run the tests: run.sh installs them.
    Language {
        name: "php",
        title: "PHP",
        needs: &["apt-get"],
    },
    Language {
        name: "ruby",
        title: "Ruby",
        needs: &["apt-get"],
    },
];

/// The result of a language.
pub enum Verdict {
    Passed(String),
    Skipped(String),
    Failed(Vec<Failure>),
}

/// Why a language failed on one server, or could not be tested.
#[derive(Clone)]
pub struct Failure {
    pub why: String,
    pub printed: String,
}

/// The number of last output lines that the end of the run repeats for a failure. They name the tests, and say what failed in them.
const LAST_LINES: usize = 30;

impl Failure {
    /// Returns the last lines of its output.
    pub fn last_lines(&self) -> impl Iterator<Item = &str> {
        let lines = self.printed.lines().filter(|line| !line.trim().is_empty());
        lines.clone().skip(lines.count().saturating_sub(LAST_LINES))
    }
}

impl Verdict {
    pub fn is_well(&self) -> bool {
        !matches!(self, Verdict::Failed(_))
    }

    pub fn has_passed(&self) -> bool {
        matches!(self, Verdict::Passed(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed(how) => write!(f, "passed {how}"),
            Verdict::Skipped(why) => write!(f, "SKIPPED: {why}"),
            Verdict::Failed(failures) => {
                let whys: Vec<&str> = failures.iter().map(|one| one.why.as_str()).collect();
                write!(f, "FAILED: {}", whys.join("; "))
            }
        }
    }
}

impl Language {
    fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../clients")
            .join(self.name)
    }

    /// Returns true if the language has this script.
    pub fn has(&self, script: Script) -> bool {
        self.directory().join(script.file()).exists()
    }

    /// Returns why the language cannot be tested here, if so. Under CI nothing may be skipped.
    pub fn missing(&self, script: Script) -> Option<Verdict> {
        let why = if !self.has(script) {
            format!("it has no {}", script.file())
        } else {
            let absent = self.needs.iter().find(|program| !has(program))?;
            format!("there is no {absent}")
        };
        Some(if std::env::var_os("CI").is_some() {
            let printed = String::new();
            Verdict::Failed(vec![Failure { why, printed }])
        } else {
            Verdict::Skipped(why)
        })
    }

    /// Runs a script, with the addresses of these servers in its environment if it needs any. Returns its result and its output.
    pub fn run(
        &self,
        script: Script,
        servers: Option<Served>,
        limit: Duration,
    ) -> (Result<(), String>, String) {
        let environment = servers.as_ref().map(Served::environment);
        let result = self
            .start(script, environment.unwrap_or_default())
            .map_err(|error| error.to_string())
            .map(|(child, log)| (await_end(child, limit), log));
        let (result, log) = match result {
            Ok(ended) => ended,
            Err(why) => return (Err(why), String::new()),
        };
        let printed = std::fs::read(&log).unwrap_or_default();
        let mut printed = String::from_utf8_lossy(&printed).into_owned();
        if let (Err(_), Some(servers)) = (&result, &servers) {
            printed.insert_str(0, &servers.logs()); // what has failed stands last
        }
        (result, printed)
    }

    fn start(
        &self,
        script: Script,
        environment: Vec<(&str, String)>,
    ) -> io::Result<(Child, PathBuf)> {
        let target = target_directory().join("clients").join(self.name);
        let server = environment.iter().find(|(name, _)| *name == "DLOCK_SERVER");
        let seen = server.map_or("installing".to_owned(), |(_, version)| {
            version.replace(' ', "-")
        });
        let seen = target.join("seen").join(seen);
        let log = seen.join("output.txt");
        std::fs::create_dir_all(&seen)?;
        let output = File::create(&log)?;
        let errors = match script {
            // Its output is part of a page.
            Script::Bench => Stdio::inherit(),
            Script::Install | Script::Tests | Script::Cases => output.try_clone()?.into(),
        };
        let child = Command::new("bash")
            .arg(self.directory().join(script.file()))
            .args(script.arguments())
            .current_dir(self.directory())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .envs(environment)
            .env("DLOCK_CLIENT_TARGET", &target)
            .env("DLOCK_CLIENT_SEEN", &seen)
            // The whole group can be ended with it.
            .process_group(0)
            .spawn()?;
        Ok((child, log))
    }
}

fn await_end(mut child: Child, limit: Duration) -> Result<(), String> {
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a process id is an i32"));
    let end = Instant::now() + limit;
    let result = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break Ok(()),
            Ok(Some(status)) => break Err(status.to_string()),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            Ok(None) => break Err("time is up".to_owned()),
            Err(error) => break Err(error.to_string()),
        }
    };
    // Ends what a test left behind, or all of it when time is up. Mostly nothing is left.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
    result
}

fn has(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else {
        return false;
    };
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns the directory of everything that is built and fetched.
pub fn target_directory() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let own = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join("target");
    let directory = named.unwrap_or(own);
    directory.canonicalize().unwrap_or(directory)
}
