//! `dlock`: locks of a Redis or Valkey server with the dlock module, in a shell.
//!
//! | file | what is in it |
//! |---|---|
//! | `main.rs` | the words of the command line |
//! | `server.rs` | the way to the server that decides |
//! | `run.rs`, `hold.rs` | `dlock run`: its course, and the lock that is kept |
//! | `nested.rs` | a `dlock run` below another one, for the same lock
//! | `guardian.rs`, `command.rs` | the process above the command, which ends it when the lock or the runner is gone; the command |
//! | `signals.rs` | signals: those that this process was started with, and those that it gets
//! | `terminal.rs`, `processes.rs` | jobs of a terminal; what processes there are |
//! | `help.rs` | exit codes and examples, for --help and the manual page |
//! | `out.rs` | what is printed |
//! | `show.rs`, `top.rs` | who holds and who waits, once and live |
//! | `log.rs` | what was not ordinary |
//! | `json.rs` | replies of the server for `--json` |
//! | `check.rs` | what a group of servers lacks of the recommended setting: `patches.rs` which releases have a fix, `config_file.rs` which lines load the module |

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod check;
mod command;
mod config_file;
mod guardian;
mod help;
mod hold;
mod json;
mod log;
mod nested;
mod out;
mod patches;
mod processes;
mod run;
mod server;
mod show;
mod signals;
mod silent;
mod terminal;
mod top;

use clap::{CommandFactory, Parser, Subcommand};
use out::tell;
use server::{Failure, Place};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Where the server is if nobody says so.
const HERE: &str = "redis://127.0.0.1:6379";

/// The words cannot be read, as in sysexits(3).
const USAGE: u8 = 64;

/// The lock was lost while the command ran: EX_TEMPFAIL of sysexits(3).
const LOST: u8 = 75;

/// The server cannot be reached, or refuses.
const UNAVAILABLE: u8 = 69;

/// The version as people read it. That of a development build ends with its commit: `make` passes it to the compiler.
const VERSION: &str = match option_env!("DLOCK_VERSION") {
    Some(text) => text,
    None => env!("CARGO_PKG_VERSION"),
};

/// Locks of a Redis or Valkey server with the dlock module, in a shell
#[derive(Parser)]
#[command(name = "dlock", version = VERSION, max_term_width = 100, after_help = help::ALL)]
struct Options {
    /// The server: redis://[user[:password]@]host[:port][/database], or rediss:// for TLS. A replica, or any node of a
    /// cluster, leads to the primary. The password can be in REDISCLI_AUTH
    #[arg(
        short,
        long,
        global = true,
        env = "DLOCK_URL",
        default_value = HERE,
        hide_env_values = true,
        help_heading = help::PLACE
    )]
    url: String,
    /// A Sentinel, which is asked where the primary is; may be given several times
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        env = "DLOCK_SENTINEL",
        value_delimiter = ',',
        help_heading = help::PLACE
    )]
    sentinel: Vec<String>,
    /// The name under which Sentinels watch the primary
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "DLOCK_PRIMARY",
        default_value = "mymaster",
        help_heading = help::PLACE
    )]
    primary: String,
    #[command(flatten)]
    tls: server::Tls,
    #[command(subcommand)]
    what: What,
}

/// The shape of what is printed.
#[derive(clap::Args)]
struct Shape {
    /// Print JSON, with the names of the server's replies
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Run a command while a lock is held
    Run(run::Options),
    /// Show who holds a lock and who waits for it
    Who {
        /// The lock
        lock: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show what was not ordinary: holds that others ended, waits without the lock, long ones, refusals
    #[command(after_help = help::LOG)]
    Log {
        /// Only of this lock
        lock: Option<String>,
        /// The number of entries, of which the newest comes first
        #[arg(short = 'n', long, default_value = "20")]
        count: u64,
        #[command(flatten)]
        shape: Shape,
    },
    /// List locks
    Ls {
        /// Only locks that match this pattern: *, ?, [a-c]
        #[arg(default_value = "*")]
        pattern: String,
        /// Only locks with a queue
        #[arg(short, long)]
        contended: bool,
        #[command(flatten)]
        shape: Shape,
    },
    /// End the holds of others: for operators
    Release {
        /// The lock
        lock: String,
        /// Only the holds of this owner
        owner: Option<String>,
    },
    /// Show, live, the held locks, the waiting clients, and the hot locks
    Top {
        /// The time between two updates
        #[arg(short, long, default_value = "1s", value_parser = duration)]
        delay: Duration,
        /// The number of updates, after which it ends
        #[arg(short = 'n', long)]
        times: Option<u64>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Read a running group of servers, and report what it lacks of the recommended setting
    #[command(after_help = help::CHECK)]
    Check {
        /// Only wait until all replicas count (dlock.replicas): before the next server is restarted, or a replica
        /// is promoted. At most 5 minutes, or TIME
        #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5min", value_parser = duration, conflicts_with = "json")]
        wait: Option<Duration>,
        #[command(flatten)]
        shape: Shape,
    },
    /// The process above the command of `run`
    #[command(hide = true)]
    Under(guardian::Options),
    /// What that process starts: it becomes the command
    #[command(hide = true)]
    Become {
        parent: i32,
        #[arg(long)]
        foreground: bool,
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Print what completes these words in a shell
    #[command(hide = true)]
    Complete { shell: clap_complete::Shell },
    /// Print the manual page, for man(1)
    #[command(hide = true)]
    Man,
}

/// Reads a length of time: seconds, or with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let read = match seconds {
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        None => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    read.map_err(|why| format!("{why}: should be seconds, or like 500ms, 90s, 5min, 2h"))
}

fn main() -> ExitCode {
    if let Err(error) = signals::as_by_default() {
        tell!("signals: {error}");
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    match perform(options) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            tell!("{failure}");
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// Returns the exit code.
fn perform(options: Options) -> Result<u8, Failure> {
    // A program below another one has its options, but not its command line: a variable may name a server that the options replaced.
    let asks = !matches!(options.what, What::Under(_) | What::Become { .. });
    // A variable that is empty, as in many files of settings, says nothing.
    let url = match options.url.as_str() {
        url if asks && !url.is_empty() => url,
        _ => HERE,
    };
    let named = options.sentinel.iter();
    let named = named.filter(|name| asks && !name.is_empty());
    let place = match Place::new(
        url,
        &options.tls,
        &named.cloned().collect::<Vec<_>>(),
        &options.primary,
    ) {
        Ok(place) => place,
        Err(failure) => {
            tell!("{failure}");
            return Ok(USAGE);
        }
    };
    match options.what {
        What::Run(options) => run::run(&place, &options),
        What::Who { lock, shape } => show::who(&place, &lock, shape.json),
        What::Log { lock, count, shape } => log::log(&place, lock.as_deref(), count, shape.json),
        What::Ls {
            pattern,
            contended,
            shape,
        } => show::ls(&place, &pattern, contended, shape.json),
        What::Release { lock, owner } => show::release(&place, &lock, owner.as_deref()),
        What::Top {
            delay,
            times,
            shape,
        } => top::top(&place, delay, times, shape.json),
        What::Check {
            wait: Some(time), ..
        } => check::wait(&place, time),
        What::Check { wait: None, shape } => check::check(&place, shape.json),
        What::Under(options) => Ok(guardian::run(&options)),
        What::Become {
            parent,
            foreground,
            command,
        } => Ok(command::replace(parent, foreground, &command)),
        What::Complete { shell } => {
            clap_complete::generate(
                shell,
                &mut Options::command(),
                "dlock",
                &mut std::io::stdout(),
            );
            Ok(0)
        }
        What::Man => man(),
    }
}

/// The page of `dlock`, and of each of its commands after it.
fn man() -> Result<u8, Failure> {
    let mut page = Vec::new();
    let written = manual(&mut page).and_then(|()| std::io::stdout().write_all(&page));
    written.map_err(|error| Failure::new(error.to_string()))?;
    Ok(0)
}

fn manual(page: &mut Vec<u8>) -> std::io::Result<()> {
    let all = Options::command().disable_help_subcommand(true);
    let man = clap_mangen::Man::new(all.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    man.render_subcommands_section(page)?;
    // Its commands are sections here, not pages of their own.
    let mut text = String::from_utf8_lossy(page).into_owned();
    for command in all.get_subcommands() {
        let name = command.get_name();
        text = text.replace(&format!("dlock\\-{name}(1)"), &format!("dlock {name}"));
    }
    for command in all
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let of = clap_mangen::Man::new(command.clone());
        let mut part = Vec::new();
        of.render_synopsis_section(&mut part)?;
        of.render_description_section(&mut part)?;
        of.render_options_section(&mut part)?;
        let part = String::from_utf8_lossy(&part);
        let part = part.replace(".SH SYNOPSIS\n", "").replace(".SH ", ".SS ");
        let part = part.replace(".SS DESCRIPTION\n", ".PP\n");
        text += &format!(".SH \"dlock {}\"\n{part}", command.get_name());
        if let Some(words) = command.get_after_help() {
            text += &help::roff(&words.to_string());
        }
    }
    text += ".SH \"ALL COMMANDS\"\n";
    text += &help::roff(help::ALL);
    *page = text.into_bytes();
    Ok(())
}
