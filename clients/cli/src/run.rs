// SPDX-License-Identifier: MIT
//! A command under a lock.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use dlock_redis::{Error, Hold};
use rustix::process::{kill_process, Pid, Signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{signal, SignalKind};

use crate::{locks, Outcome, UNAVAILABLE};

/// The lock was lost while the command ran: as sysexits.h has it, to be tried again.
const LOST: u8 = 75;

#[derive(clap::Args)]
pub(crate) struct Run {
    /// The lock's key.
    lock: String,
    /// Wait no longer than so many seconds. Without it: without bound.
    #[arg(short, long, value_parser = seconds)]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Together with all others that share.
    #[arg(short, long, conflicts_with = "limit")]
    shared: bool,
    /// One of so many.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// How to end when the lock is not granted in time.
    #[arg(short = 'E', long, default_value_t = 1)]
    conflict_exit_code: u8,
    /// When the lock is lost the command has so many seconds between SIGTERM and SIGKILL.
    #[arg(long, default_value = "10", value_parser = seconds)]
    grace: Duration,
    /// What to run. It finds the token in DLOCK_TOKEN and the key in DLOCK_KEY.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "seconds, as 5 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "seconds, 0 or more".to_owned())
}

pub(crate) async fn run(urls: &[String], run: Run) -> Outcome<u8> {
    let locks = locks(urls)?;
    let mut request = locks.on(&run.lock).session();
    if run.shared {
        request = request.shared();
    }
    if let Some(limit) = run.limit {
        request = request.limit(limit);
    }
    let hold = if run.nonblock {
        request.try_lock().await?
    } else {
        match run.wait {
            Some(wait) => request = request.timeout(wait),
            None => {}
        }
        match request.lock().await {
            Ok(hold) => Some(hold),
            Err(Error::Timeout { cause: None, .. }) => None,
            Err(error) => return Err(error.into()),
        }
    };
    let Some(hold) = hold else {
        eprintln!("dlock: {} is taken", run.lock);
        return Ok(run.conflict_exit_code);
    };
    let Some((program, rest)) = run.command.split_first() else { return Ok(64) };
    let child = Command::new(program)
        .args(rest)
        .env("DLOCK_TOKEN", hold.token().to_string())
        .env("DLOCK_KEY", &run.lock)
        .spawn();
    let child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("dlock: {program}: {error}");
            let _ = hold.release().await;
            return Ok(UNAVAILABLE);
        }
    };
    let (code, lost) = watch(child, &hold, run.grace).await?;
    match hold.release().await {
        _ if lost => Ok(LOST),
        // It went just as the command ended: nobody knows whether in time.
        Err(Error::NotHeld(why)) => {
            eprintln!("dlock: {why}");
            Ok(LOST)
        }
        // What was done is done; the server gives the lock back with our connection.
        _ => Ok(code),
    }
}

/// The command's end, and whether the lock was lost before.
async fn watch(mut child: Child, hold: &Hold, grace: Duration) -> Outcome<(u8, bool)> {
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let send = |signal| pid.map(|pid| kill_process(pid, signal));
    let (mut term, mut int, mut hup) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    let mut lost = false;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            why = hold.lost(), if !lost => {
                eprintln!("dlock: the lock is lost ({why}): the command is ended");
                lost = true;
                send(Signal::TERM);
                match tokio::time::timeout(grace, child.wait()).await {
                    Ok(status) => break status?,
                    Err(_) => drop(send(Signal::KILL)),
                }
            }
            _ = term.recv() => drop(send(Signal::TERM)),
            // A terminal sends it to the command by itself.
            _ = int.recv() => {}
            _ = hup.recv() => drop(send(Signal::HUP)),
        }
    };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok((u8::try_from(code).unwrap_or(1), lost))
}
