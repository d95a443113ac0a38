//! Several languages on several servers: each language is installed once, and tested on each server.

use std::ffi::OsString;
use std::sync::{mpsc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::stage::Stage;

use crate::control;
use crate::language::{Failure, Language, Script, Verdict};

/// How long the whole run may take.
const WHOLE: Duration = Duration::from_secs(50 * 60);

/// How long one script may take: a language that hangs is reported while the results of the others still count.
const EACH: Duration = Duration::from_secs(20 * 60);

/// How many languages are installed at a time: that keeps the processor busy.
const INSTALLERS: usize = 2;

/// Limits how many tests run at a time. They mostly wait, but their times are those of clients on a quiet machine.
const TESTERS: usize = 3;

/// A run on these server programs.
pub struct Run {
    servers: Vec<OsString>,
    began: Instant,
}

/// The version of a server on which a language has passed, or what has failed.
type Outcome = Result<String, Failure>;

impl Run {
    /// One that has just begun.
    pub fn of(servers: Vec<OsString>) -> Run {
        Run {
            servers,
            began: Instant::now(),
        }
    }

    /// Measures one language after the other, since their numbers are compared. A verdict for each, in their order.
    pub fn measure(&self, languages: &[&Language]) -> Vec<Verdict> {
        let measure = |language: &&Language| {
            language.missing(Script::Bench).unwrap_or_else(|| {
                let on = |server| self.on_server(language, Script::Bench, server);
                verdict(self.servers.iter().map(on).collect())
            })
        };
        languages.iter().map(measure).collect()
    }

    /// Installs and tests them, several at a time. A verdict for each, in their order.
    pub fn test(&self, languages: &[&Language]) -> Vec<Verdict> {
        let missing: Vec<Option<Verdict>> = languages
            .iter()
            .map(|language| language.missing(Script::Tests))
            .collect();
        let outcomes = Mutex::new(vec![Vec::new(); languages.len()]);
        let present = languages.iter().enumerate().zip(&missing);
        let present =
            present.filter_map(|(language, missing)| missing.is_none().then_some(language));
        let present = Mutex::new(present);
        let (installed, jobs) = mpsc::channel();
        let jobs = Mutex::new(jobs);
        thread::scope(|scope| {
            for _ in 0..INSTALLERS {
                let (installed, present, outcomes) = (installed.clone(), &present, &outcomes);
                scope.spawn(move || loop {
                    let next = held(present).next();
                    let Some((number, language)) = next else {
                        return;
                    };
                    match self.install(language) {
                        Ok(()) => self.servers.iter().for_each(|server| {
                            let job = (number, language, server);
                            installed.send(job).expect("there are testers");
                        }),
                        Err(why) => held(outcomes)[number].push(Err(why)),
                    }
                });
            }
            drop(installed);
            for _ in 0..TESTERS {
                scope.spawn(|| loop {
                    let job = held(&jobs).recv();
                    let Ok((number, language, server)) = job else {
                        return;
                    };
                    let outcome = self.on_server(language, Script::Tests, server);
                    held(&outcomes)[number].push(outcome);
                });
            }
        });
        let outcomes = outcomes
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        missing
            .into_iter()
            .zip(outcomes)
            .map(|(missing, outcomes)| missing.unwrap_or_else(|| verdict(outcomes)))
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
            Ok(()) => Ok(version),
            Err(why) => Err(Failure {
                why: format!("on {version}: {why}"),
                printed,
            }),
        }
    }

    /// Returns how long the next script may take.
    fn left(&self) -> Duration {
        WHOLE.saturating_sub(self.began.elapsed()).min(EACH)
    }
}

fn verdict(outcomes: Vec<Outcome>) -> Verdict {
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(version) => passed.push(version),
            Err(why) => failed.push(why),
        }
    }
    if failed.is_empty() {
        Verdict::Passed(format!("on {}", passed.join(" and ")))
    } else {
        Verdict::Failed(failed)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
