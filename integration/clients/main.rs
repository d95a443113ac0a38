//! Runs the clients' tests, language by language, each against servers of its own.
//!
//! `clients [SERVER…] [--only LANGUAGE,…]`: `clients/<language>/run.sh --install` builds and installs the package, once for each
//! language. Then, for each server program (the environment's one, and those on the command line), a stage of servers starts, and
//! `run.sh` runs with their addresses in its environment; `clients/DESIGN.md` documents it and the tests. Several languages run
//! at a time, since tests mostly wait; the output of each is shown when it has ended.
//! With `--bench` it runs `<language>/bench.sh`, where there is one, one language after the other. If none was left out, their tables
//! go to `bench-clients/clients.md` in the target directory.
//! With `--serve` it only starts the servers, of the last program, and prints that environment.

mod control;
mod language;
mod path;
mod run;

use std::ffi::OsString;
use std::process::ExitCode;
use std::{fs, io};

use dlock_harness::stage::Stage;
use dlock_harness::{server_program, Made};

use crate::language::{target_directory, Language, Script, Verdict, LANGUAGES};
use crate::run::Run;

fn main() -> ExitCode {
    let mut servers = vec![server_program()];
    let mut only: Vec<String> = Vec::new();
    let mut serve = false;
    let mut bench = false;
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
            bench = true;
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
        .filter(|language| !bench || language.has(Script::Bench))
        .filter(|language| only.is_empty() || only.iter().any(|name| name == language.name))
        .collect();
    let run = Run::of(servers);
    let verdicts = if bench {
        let made = Made::now();
        let (verdicts, tables) = run.measure(&chosen);
        if only.is_empty() && verdicts.iter().all(Verdict::has_passed) {
            keep(&made, &tables).expect("the target directory can be written");
        }
        verdicts
    } else {
        run.test(&chosen)
    };
    for (language, verdict) in chosen.iter().zip(&verdicts) {
        let Verdict::Failed(failures) = verdict else {
            continue;
        };
        for failure in failures {
            println!("=== {} {}: its last lines ===", language.name, failure.why);
            failure.last_lines().for_each(|line| println!("{line}"));
        }
    }
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

/// Writes the page of all languages' tables.
fn keep(made: &Made, tables: &str) -> io::Result<()> {
    let directory = target_directory().join("bench-clients");
    fs::create_dir_all(&directory)?;
    let page = format!(
        "# The clients beside their languages' popular locks\n\nMade by `make bench-clients`: {made}.\n{tables}"
    );
    fs::write(directory.join("clients.md"), page)?;
    println!("Kept in {}", directory.display());
    Ok(())
}

/// Serves a stage to a developer of a client: prints its environment, and ends with this process's own input.
fn serve_until_eof(server: &OsString) -> ExitCode {
    let served = control::serve(Stage::start(server));
    for (name, value) in served.environment() {
        println!("export {name}='{value}'");
    }
    // Its end is all that matters.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    ExitCode::SUCCESS
}
