// SPDX-License-Identifier: MIT
//! `dlock`: runs a command under a lock, and shows who holds what.

mod look;
mod run;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Runs commands under locks of the dlock module, and shows who holds what.
#[derive(Parser)]
#[command(name = "dlock", version)]
struct Arguments {
    /// Where the locks are. Again for each node of a cluster that is known, or for a primary and its replicas.
    #[arg(long, env = "DLOCK_URL", default_value = "redis://127.0.0.1:6379/", value_delimiter = ',', global = true)]
    url: Vec<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs a command while the lock is held.
    Run(run::Run),
    /// Says who holds a lock, and who waits for it.
    Who {
        /// The lock's key.
        lock: String,
    },
    /// Lists locks: key, holder, holders, places in the queue, milliseconds left.
    Ls {
        /// As of SCAN's MATCH.
        #[arg(default_value = "*")]
        pattern: String,
        /// Only those that somebody waits for.
        #[arg(long)]
        contended: bool,
    },
    /// Takes the lock from whoever holds it.
    Release {
        /// The lock's key.
        lock: String,
        /// Only from this owner.
        #[arg(long)]
        owner: Option<String>,
    },
    /// Shows what is waited for, and what has been waited for most, once a second.
    Top {
        /// Only once.
        #[arg(long)]
        once: bool,
    },
    /// Says by node what of the recommended setting is missing. Replicas are found by themselves. Ends with 1 if anything is.
    Check,
    /// Writes the manual page.
    #[command(hide = true)]
    Man,
}

/// Nobody can be reached, or the server refuses: as sysexits.h has it.
const UNAVAILABLE: u8 = 69;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    let code = match arguments.verb {
        Verb::Run(run) => run::run(&arguments.url, run).await,
        Verb::Who { lock } => look::who(&arguments.url, &lock).await,
        Verb::Ls { pattern, contended } => look::ls(&arguments.url, &pattern, contended).await,
        Verb::Release { lock, owner } => look::release(&arguments.url, &lock, owner).await,
        Verb::Top { once } => look::top(&arguments.url, once).await,
        Verb::Check => look::check(&arguments.url).await,
        Verb::Man => clap_mangen::Man::new(Arguments::command()).render(&mut std::io::stdout()).map(|()| 0).map_err(Into::into),
    };
    ExitCode::from(code.unwrap_or_else(|error| {
        eprintln!("dlock: {error}");
        UNAVAILABLE
    }))
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn locks(urls: &[String]) -> Outcome<dlock_redis::Locks> {
    let clients = urls.iter().map(|url| redis::Client::open(url.as_str())).collect::<Result<Vec<_>, _>>()?;
    Ok(dlock_redis::Locks::new(clients)?)
}
