//! Runs the clients' tests, language by language, each against servers of its own.
//!
//! `clients [SERVER…] [--only LANGUAGE,…]`: a stage of servers is started for each language and each server
//! program (the environment's one, and those that are named), and `clients/<language>/run.sh` is run with their
//! addresses in its environment; what that is and which tests there are is in `clients/README.md`. Four languages run at
//! a time, since their tests mostly wait; what one prints is shown when it has ended.
//! With `--bench` it is `<language>/bench.sh`, one language after the other, where there is one.
//! With `--serve` it only starts the servers, of the last program, and prints that environment.

mod control;
mod language;
mod path;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::server_program;
use dlock_integration::stage::Stage;

use crate::language::{Language, Verdict, LANGUAGES};

/// The whole run ends after so long, passed or not.
const WHOLE: Duration = Duration::from_secs(40 * 60);

/// And one language's tests on one server after so long: who hangs is told while the others' results still count.
const EACH: Duration = Duration::from_secs(15 * 60);

/// So many languages run at a time.
const LANES: usize = 4;

fn main() -> ExitCode {
    let mut servers = vec![server_program()];
    let mut only: Vec<String> = Vec::new();
    let mut serve = false;
    let mut script = "run.sh";
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--only" {
            let names = arguments.next().unwrap_or_default();
            only.extend(
                names
                    .to_string_lossy()
                    .split([',', ' '])
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            );
        } else if argument == "--serve" {
            serve = true;
        } else if argument == "--bench" {
            script = "bench.sh";
        } else {
            servers.push(argument);
        }
    }
    if let Some(name) = only
        .iter()
        .find(|name| !LANGUAGES.iter().any(|l| l.name == **name))
    {
        eprintln!("clients: {name} is none of the languages");
        return ExitCode::FAILURE;
    }
    if serve {
        return serve_until_eof(servers.last().expect("there is the environment's"));
    }
    let chosen: Vec<&Language> = LANGUAGES
        .iter()
        .filter(|language| script == "run.sh" || language.has(script))
        .filter(|language| only.is_empty() || only.iter().any(|name| name == language.name))
        .collect();
    let verdicts = run_all(&chosen, script, &servers);
    println!();
    for (language, verdict) in chosen.iter().zip(&verdicts) {
        println!("{:<8} {verdict}", language.name);
    }
    if verdicts.iter().all(Verdict::is_well) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A verdict for each language, in their order.
fn run_all(languages: &[&Language], script: &str, servers: &[OsString]) -> Vec<Verdict> {
    let end = Instant::now() + WHOLE;
    let next = AtomicUsize::new(0);
    // Numbers are taken one language after the other.
    let lanes = if script == "run.sh" { LANES } else { 1 };
    let lane = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            match languages.get(number) {
                Some(language) => done.push((number, run(language, script, servers, end))),
                None => return done,
            }
        }
    };
    let mut verdicts: Vec<(usize, Verdict)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let done = lanes.into_iter().map(|lane| lane.join());
        done.flat_map(|done| done.expect("a lane gives its verdicts"))
            .collect()
    });
    verdicts.sort_by_key(|(number, _)| *number);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

/// Servers for whoever works on a client: prints the environment, and lets them live as long as its own input.
fn serve_until_eof(server: &OsString) -> ExitCode {
    let served = control::serve(Stage::start(server));
    for (name, value) in served.environment() {
        println!("export {name}='{value}'");
    }
    // Nothing is expected there but its end.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ExitCode::SUCCESS
}

fn run(language: &Language, script: &str, servers: &[OsString], end: Instant) -> Verdict {
    if let Some(missing) = language.missing(script) {
        return missing;
    }
    let began = Instant::now();
    let mut versions = Vec::new();
    for server in servers {
        let stage = Stage::start(server);
        let version = stage.version();
        println!("{} on {version}: started", language.name);
        let left = end.saturating_duration_since(Instant::now());
        let left = left.min(if script == "run.sh" { EACH } else { WHOLE });
        let (result, printed) = language.run(script, stage, left);
        println!("=== {} on {version} ===\n{printed}", language.name);
        if let Err(why) = result {
            return Verdict::Failed(format!("on {version}: {why}"));
        }
        versions.push(version);
    }
    Verdict::Passed(format!(
        "on {} in {} s",
        versions.join(" and "),
        began.elapsed().as_secs()
    ))
}
