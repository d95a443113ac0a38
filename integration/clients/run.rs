//! Several languages on several servers: each language is installed once, tested on the first server, and its cases run on each
//! of the others. Every other test concerns the language and its libraries, whichever the server.

use std::ffi::OsString;
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::stage::Stage;

use crate::control;
use crate::language::{Failure, Language, Script, Verdict};

/// The time limit of the whole run.
const WHOLE: Duration = Duration::from_secs(50 * 60);

/// The time limit of one script: a language that hangs is reported while the results of the others still count.
const EACH: Duration = Duration::from_secs(20 * 60);

/// How many languages are installed at a time: enough to keep the processor busy.
const INSTALLERS: usize = 2;

/// Limits how many tests run at a time. They mostly wait, but a busy machine makes clients late.
const TESTERS: usize = 4;

/// A run on these server programs.
pub struct Run {
    servers: Vec<OsString>,
    began: Instant,
}

/// One language's script, to be run on one server.
struct Job<'j> {
    language: &'j Language,
    script: Script,
    server: &'j OsString,
}

/// How a language has passed on one server, or its failure.
type Outcome = Result<Passed, Failure>;

/// The version of a server on which a language has passed, and what was printed.
#[derive(Clone)]
struct Passed {
    version: String,
    printed: String,
}

impl Run {
    /// Begins a run.
    pub fn of(servers: Vec<OsString>) -> Run {
        Run {
            servers,
            began: Instant::now(),
        }
    }

    /// Measures one language after the other, since their numbers are compared. Returns a verdict for each, in their order, and their
    /// tables.
    pub fn measure(&self, languages: &[&Language]) -> (Vec<Verdict>, String) {
        let mut tables = String::new();
        let measure = |language: &&Language| {
            language.missing(Script::Bench).unwrap_or_else(|| {
                let on = |server| self.on_server(language, Script::Bench, server);
                let outcomes: Vec<Outcome> = self.servers.iter().map(on).collect();
                let printed = outcomes.iter().flatten();
                let printed = printed.map(|passed| passed.printed.as_str());
                tables.extend(["\n## ", language.title, "\n"].into_iter().chain(printed));
                verdict(outcomes)
            })
        };
        let verdicts = languages.iter().map(measure).collect();
        (verdicts, tables)
    }

    /// Installs all languages, and then tests them, several at a time. Returns a verdict for each, in their order.
    pub fn test(&self, languages: &[&Language]) -> Vec<Verdict> {
        // A compiler that runs at the same time would make the tests late.
        let installed = at_a_time(INSTALLERS, languages, |language| {
            match language.missing(Script::Tests) {
                Some(missing) => Err(missing),
                None => self
                    .install(language)
                    .map_err(|why| verdict(vec![Err(why)])),
            }
        });
        let present = languages.iter().zip(&installed);
        let present =
            present.filter_map(|(language, installed)| installed.is_ok().then_some(*language));
        let jobs = self.jobs(&present.collect::<Vec<_>>());
        let outcomes = at_a_time(TESTERS, &jobs, |job| {
            self.on_server(job.language, job.script, job.server)
        });
        let of = |language: &Language| {
            let jobs = jobs.iter().zip(&outcomes);
            let its = jobs.filter(|(job, _)| job.language.name == language.name);
            verdict(its.map(|(_, outcome)| outcome.clone()).collect())
        };
        languages
            .iter()
            .zip(installed)
            .map(|(language, installed)| match installed {
                Ok(()) => of(language),
                Err(missing) => missing,
            })
            .collect()
    }

    /// Returns the jobs for these languages, the longest first.
    fn jobs<'j>(&'j self, languages: &[&'j Language]) -> Vec<Job<'j>> {
        let scripts = iter::once(Script::Tests).chain(iter::repeat(Script::Cases));
        let servers = self.servers.iter().zip(scripts);
        servers
            .flat_map(|(server, script)| {
                languages.iter().map(move |language| Job {
                    language,
                    script,
                    server,
                })
            })
            .collect()
    }

    fn install(&self, language: &Language) -> Result<(), Failure> {
        let began = Instant::now();
        let (result, printed) = language.run(Script::Install, None, self.left());
        let name = language.name;
        match result {
            Ok(()) => println!("{name}: installed in {} s", began.elapsed().as_secs()),
            Err(_) => println!("=== {name} ===\n{printed}"),
        }
        result.map_err(|why| Failure {
            why: format!("while it was installed: {why}"),
            printed,
        })
    }

    fn on_server(&self, language: &Language, script: Script, server: &OsString) -> Outcome {
        let began = Instant::now();
        let stage = Stage::start(server);
        let version = stage.version();
        let name = language.name;
        println!("{name} on {version}: started");
        let (result, printed) = language.run(script, Some(control::serve(stage)), self.left());
        let seconds = began.elapsed().as_secs();
        println!("=== {name} on {version}, {seconds} s ===\n{printed}");
        match result {
            Ok(()) => Ok(Passed { version, printed }),
            Err(why) => Err(Failure {
                why: format!("on {version}: {why}"),
                printed,
            }),
        }
    }

    /// Returns the time limit of the next script.
    fn left(&self) -> Duration {
        WHOLE.saturating_sub(self.began.elapsed()).min(EACH)
    }
}

fn verdict(outcomes: Vec<Outcome>) -> Verdict {
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(one) => passed.push(one.version),
            Err(why) => failed.push(why),
        }
    }
    if failed.is_empty() {
        Verdict::Passed(format!("on {}", passed.join(" and ")))
    } else {
        Verdict::Failed(failed)
    }
}

/// Runs `work` on every item, with at most `workers` at a time. Returns the results in the order of the items.
fn at_a_time<T: Sync, R: Send>(workers: usize, all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(one) = all.get(number) else {
                    return;
                };
                let result = (number, work(one));
                sender.send(result).expect("somebody collects them");
            });
        }
    });
    drop(sender);
    let mut results: Vec<(usize, R)> = results.into_iter().collect();
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_harness::{await_until, PATIENCE};
    use std::sync::atomic::AtomicBool;

    /// The first job waits for the third, and still comes first.
    #[test]
    fn results_are_in_the_order_of_their_jobs() {
        let third = AtomicBool::new(false);
        let done = at_a_time(2, &[1, 2, 3], |job| {
            match job {
                1 => await_until("the third job runs", PATIENCE, || {
                    third.load(Ordering::Acquire)
                }),
                3 => third.store(true, Ordering::Release),
                _ => {}
            }
            job * 10
        });
        assert_eq!(done, [10, 20, 30]);
        assert_eq!(at_a_time(2, &[], |job: &u32| *job), []);
    }

    #[test]
    fn a_failure_on_one_server_is_a_failure() {
        let failure = || Failure {
            why: "on Redis: exit status: 1".to_owned(),
            printed: "a\n\nb\n".to_owned(),
        };
        let passed = |version: &str| {
            Ok(Passed {
                version: version.to_owned(),
                printed: String::new(),
            })
        };
        let failed = verdict(vec![passed("Valkey"), Err(failure())]);
        assert!(!failed.is_well());
        assert_eq!(failed.to_string(), "FAILED: on Redis: exit status: 1");
        assert!(failure().last_lines().eq(["a", "b"]));
        let both = verdict(vec![passed("Redis"), passed("Valkey")]);
        assert_eq!(both.to_string(), "passed on Redis and Valkey");
    }
}
