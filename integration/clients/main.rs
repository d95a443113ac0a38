//! Runs the clients' tests, language by language, each against servers of its own.
//!
//! `clients [SERVER…] [--only LANGUAGE,…]`: a stage of servers is started for each language and each server
//! program (the environment's one, and those that are named), and `clients/<language>/run.sh` is run with their
//! addresses in its environment; what that is and which tests there are is in `clients/README.md`.
//! With `--serve` it only starts the servers, of the last program, and prints that environment.

mod control;
mod language;
mod stage;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dlock_integration::server_program;

use crate::language::{Verdict, LANGUAGES};

/// The whole run ends after so long, passed or not.
const WHOLE: Duration = Duration::from_secs(20 * 60);

fn main() -> ExitCode {
    let mut servers = vec![server_program()];
    let mut only: Vec<String> = Vec::new();
    let mut serve = false;
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
    let end = Instant::now() + WHOLE;
    let mut lines = Vec::new();
    let mut well = true;
    for language in LANGUAGES {
        if !only.is_empty() && !only.iter().any(|name| name == language.name) {
            continue;
        }
        let verdict = run(language, &servers, end);
        well &= verdict.is_well();
        lines.push(format!("{:<8} {verdict}", language.name));
    }
    println!("\n{}", lines.join("\n"));
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Servers for whoever works on a client: prints the environment, and lets them live as long as its own input.
fn serve_until_eof(server: &OsString) -> ExitCode {
    let stage = stage::Stage::start(server);
    for (name, value) in stage.environment() {
        println!("export {name}='{value}'");
    }
    let served = control::serve(stage);
    println!("export DLOCK_CONTROL='{}'", served.address());
    // Nothing is expected there but its end.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ExitCode::SUCCESS
}

fn run(language: &language::Language, servers: &[OsString], end: Instant) -> Verdict {
    if let Some(missing) = language.missing() {
        return missing;
    }
    let began = Instant::now();
    let mut versions = Vec::new();
    for server in servers {
        let stage = stage::Stage::start(server);
        let version = stage.version();
        println!("=== {} on {version} ===", language.name);
        let left = end.saturating_duration_since(Instant::now());
        if let Err(why) = language.run(stage, left) {
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
