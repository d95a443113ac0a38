//! `dlock run`: a command works while a lock is held.

use crate::child::{self, Child};
use crate::hold::{now_ms, News, Wish};
use crate::server::{Failure, Place};
use crate::{duration, USAGE};
use clap::Args;
use nix::sys::signal::Signal;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The lock was lost while the command ran: EX_TEMPFAIL of sysexits(3).
const LOST: u8 = 75;

/// How often the clock is looked at, since timers may stand still while a machine is suspended.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Options {
    /// The lock
    lock: String,
    /// The command, after --
    #[arg(last = true, required = true)]
    command: Vec<String>,
    /// Do not wait for the lock: end with 1 if somebody else has it
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for the lock for so long at most. Without it: for ever
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Share the lock with others that share it
    #[arg(short, long, conflicts_with = "limit")]
    shared: bool,
    /// Let so many have the lock at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: Option<u64>,
    /// How long the lock is held when nobody hears of this process or machine any more; it is renewed all the time
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    lease: Duration,
    /// Keep the lock for so long from when it was had, also when the command has ended before: for jobs that several machines
    /// start at the same time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    at_least: Option<Duration>,
    /// Who holds it, as others see it. Without it: this machine, process, and a number of its own
    #[arg(long)]
    owner: Option<String>,
    /// Keep the lock for its lease when this process dies, instead of ending it at once
    #[arg(long)]
    no_session: bool,
    /// The exit code when the lock is not had in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    conflict_exit_code: u8,
    /// The signal for the command when the lock is lost
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signal)]
    signal: Signal,
    /// How long it has to end after that, before it is killed
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    kill_after: Duration,
    /// Say nothing when the lock is not had
    #[arg(short, long)]
    quiet: bool,
}

/// A lease of a second or more: the server renews no shorter one.
fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        lease if lease < Duration::from_secs(1) => Err("should be a second or more".to_owned()),
        lease => Ok(lease),
    }
}

fn signal(name: &str) -> Result<Signal, String> {
    let name = name.to_uppercase();
    let whole = format!("SIG{}", name.trim_start_matches("SIG"));
    Signal::from_str(&whole).map_err(|_| "should be the name of a signal, like TERM".to_owned())
}

/// What happens while the command runs.
enum Event {
    News(News),
    Signal(Signal),
    Ended(io::Result<ExitStatus>),
}

/// Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn run(place: &Place, options: &Options) -> Result<u8, Failure> {
    let wish = Wish {
        lock: options.lock.clone(),
        owner: options.owner.clone().unwrap_or_else(own_name),
        lease_ms: options.lease.as_millis() as u64,
        shared: options.shared,
        limit: options.limit,
        session: !options.no_session,
    };
    if wish.lock.is_empty() || wish.owner.is_empty() {
        eprintln!("dlock: LOCK and --owner must not be empty");
        return Ok(USAGE);
    }
    let wait = if options.nonblock {
        Some(Duration::ZERO)
    } else {
        options.wait
    };
    let Some((link, hold)) = wish.take(place, wait)? else {
        if !options.quiet {
            let by = wish
                .holder(place)
                .map_or(String::new(), |owner| format!(" by {owner}"));
            eprintln!("dlock: {} is held{by}", wish.lock);
        }
        return Ok(options.conflict_exit_code);
    };
    let had = now_ms();
    let (told, events) = mpsc::channel();
    // From here on signals are the command's.
    let heeded = child::heed_signals(told.clone(), Event::Signal);
    let ended = told.clone();
    let in_terminal = io::stdin().is_terminal();
    let started = heeded.and_then(|()| {
        let mut command = under(options, &wish, hold.token)?;
        Child::start(&mut command, !in_terminal, move |status| {
            drop(ended.send(Event::Ended(status)))
        })
    });
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            eprintln!("dlock: {}: {error}", options.command.join(" "));
            let _ = wish.give_back(place, hold.token);
            return Ok(child::code_of(&error));
        }
    };
    let (keeper, at) = (wish.clone(), place.clone());
    thread::spawn(move || {
        keeper.keep(&at, link, hold.token, hold.until_ms, |news| {
            told.send(Event::News(news)).is_ok()
        });
    });
    let (mut until, mut kill_at, mut is_lost) = (hold.until_ms, None, false);
    let status = loop {
        let now = now_ms();
        let lost = match next(
            &events,
            until
                .saturating_sub(now)
                .min(kill_at.unwrap_or(u64::MAX).saturating_sub(now)),
        ) {
            Some(Event::Ended(status)) => break status,
            Some(Event::Signal(signal)) => {
                // Those of the terminal reach it by themselves.
                if !in_terminal || !matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
                    child.signal(signal);
                }
                None
            }
            Some(Event::News(News::Until(end))) => {
                until = end;
                None
            }
            Some(Event::News(News::Lost(why))) => Some(why),
            None => (now_ms() >= until)
                .then(|| "its lease is over, and no server has renewed it".to_owned()),
        };
        if let (Some(why), false) = (lost, is_lost) {
            eprintln!(
                "dlock: {} is lost ({why}): {} for the command",
                wish.lock, options.signal
            );
            child.signal(options.signal);
            (is_lost, until) = (true, u64::MAX);
            kill_at = Some(now_ms() + options.kill_after.as_millis() as u64);
        }
        if kill_at.is_some_and(|at| now_ms() >= at) {
            child.signal(Signal::SIGKILL);
            kill_at = None;
        }
    };
    if is_lost {
        return Ok(LOST);
    }
    let stays = options
        .at_least
        .map(|least| least.saturating_sub(Duration::from_millis(now_ms() - had)));
    let left = match stays.filter(|stays| !stays.is_zero()) {
        Some(stays) => wish.leave_for(place, hold.token, stays),
        None => wish.give_back(place, hold.token),
    };
    if let Err(failure) = left {
        eprintln!(
            "dlock: {} could not be given back, and ends with this process or its lease: {failure}",
            wish.lock
        );
    }
    Ok(status.map_or(u8::MAX, child::code))
}

fn next(events: &mpsc::Receiver<Event>, in_ms: u64) -> Option<Event> {
    match events.recv_timeout(Duration::from_millis(in_ms).min(LOOK)) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// The command, as this program starts it by itself once more: what is to happen in the new process before the command runs in
/// it is said there.
fn under(options: &Options, wish: &Wish, token: u64) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("under")
        .arg(std::process::id().to_string())
        .arg("--")
        .args(&options.command);
    command
        .env("DLOCK_LOCK", &wish.lock)
        .env("DLOCK_OWNER", &wish.owner)
        .env("DLOCK_TOKEN", token.to_string());
    Ok(command)
}

/// The new process: dies with its parent, then is the command. Returns only if that cannot be run.
pub(crate) fn become_command(parent: i32, words: &[String]) -> u8 {
    #[cfg(target_os = "linux")]
    {
        // A parent that is killed cannot say so, and the lock has ended with it.
        if let Err(error) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
            eprintln!("dlock: the command would outlive this process: {error}");
        }
    }
    if nix::unistd::getppid().as_raw() != parent {
        return LOST;
    }
    let [program, rest @ ..] = words else {
        return USAGE;
    };
    let error = Command::new(program).args(rest).exec();
    eprintln!("dlock: {program}: {error}");
    child::code_of(&error)
}

/// This machine, this process, and a number of its own: a process of the same name is another owner.
fn own_name() -> String {
    let host = nix::unistd::gethostname().map_or("unknown".to_owned(), |name| {
        name.to_string_lossy().into_owned()
    });
    format!(
        "{host}/{}/{}",
        std::process::id(),
        uuid::Uuid::new_v4().simple()
    )
}
