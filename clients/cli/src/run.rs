//! `dlock run`: a command works while a lock is held.

use crate::command;
use crate::guardian::{self, Guardian, Order, Told, LOOK};
use crate::hold::{News, Queueing, Taken, Wish};
use crate::nested;
use crate::out::tell;
use crate::server::{now_ms, Failure, Place};
use crate::signals::{self, Heeded};
use crate::terminal::{self, Terminal};
use crate::{duration, LOST, USAGE};
use clap::Args;
use nix::sys::signal::{kill, killpg, Signal};
use nix::unistd::{getpgrp, getpid, Pid};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The longest label: with a host's name and the rest an owner's name stays within what the server takes.
const LONGEST_LABEL: usize = 512;

/// How long a command may take to stop by SIGTSTP, before it is stopped by a signal that it cannot refuse.
const STOP_MS: u64 = 1_000;

#[derive(Args)]
#[command(after_help = crate::help::RUN)]
pub(crate) struct Options {
    /// The lock
    lock: String,
    /// The command, after --
    #[arg(last = true, required = true)]
    command: Vec<String>,
    /// Do not wait for the lock: end with 1 if it is taken
    #[arg(short = 'n', long, conflicts_with = "wait", help_heading = "Waiting")]
    nonblock: bool,
    /// Wait for the lock at most this long. Without it: for ever, also for a server that is out of reach
    #[arg(short, long, value_name = "TIME", value_parser = duration, help_heading = "Waiting")]
    wait: Option<Duration>,
    /// The exit code if the lock is not acquired in time
    #[arg(
        short = 'E',
        long,
        value_name = "CODE",
        default_value_t = 1,
        help_heading = "Waiting"
    )]
    conflict_exit_code: u8,
    /// Print nothing while waiting for the lock, nor if it is not acquired
    #[arg(short, long, help_heading = "Waiting")]
    quiet: bool,
    /// Share the lock with others that share it
    #[arg(short, long, conflicts_with = "limit", help_heading = "The lock")]
    shared: bool,
    /// Allow this many holders at once: a semaphore of N permits
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = "The lock")]
    limit: Option<u64>,
    /// Take this many of the N of --limit, all at once
    #[arg(long, value_name = "K", requires = "limit", value_parser = clap::value_parser!(u64).range(1..=1_000_000), help_heading = "The lock")]
    permits: Option<u64>,
    /// How long the server keeps the lock when this process or machine no longer answers; until then it renews it
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = lease, help_heading = "The lock")]
    lease: Duration,
    /// Keep the lock for at least this long after the grant, even if the command has ended before: for jobs that several
    /// machines start at the same time
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "The lock")]
    at_least: Option<Duration>,
    /// Keep the lock for its lease when this process dies, instead of ending it at once
    #[arg(long, help_heading = "The lock")]
    no_ephemeral: bool,
    /// A label that others see in the owner's name, after this machine and process. Two runs with one label are two owners
    #[arg(
        long,
        visible_alias = "owner",
        value_name = "TEXT",
        help_heading = "The lock"
    )]
    label: Option<String>,
    /// The signal for the command when the lock is lost
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signal, help_heading = "The command")]
    signal: Signal,
    /// How long it may take to end after that, before it is killed together with everything that it has started
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, help_heading = "The command")]
    kill_after: Duration,
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
    /// What the guardian tells; none when it has ended.
    Guardian(Option<Told>),
}

/// Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn run(place: &Place, options: &Options) -> Result<u8, Failure> {
    let label = options.label.as_deref();
    if options.lock.is_empty()
        || label.is_some_and(|label| label.is_empty() || label.len() > LONGEST_LABEL)
    {
        tell!("LOCK must not be empty, and --label should be of 1 to {LONGEST_LABEL} bytes");
        return Ok(USAGE);
    }
    if options.permits > options.limit {
        tell!("--permits should be at most the N of --limit");
        return Ok(USAGE);
    }
    if let Err(error) = options
        .command
        .first()
        .map_or(Ok(()), |program| command::find(program).map(drop))
    {
        tell!("{}: {error}", options.command.join(" "));
        return Ok(command::code_of(&error));
    }
    let wish = Wish {
        lock: options.lock.clone(),
        owner: own_name(label),
        lease_ms: options.lease.as_millis() as u64,
        shared: options.shared,
        limit: options.limit,
        permits: options.permits,
        ephemeral: !options.no_ephemeral,
    };
    let wait = if options.nonblock {
        Some(Duration::ZERO)
    } else {
        options.wait
    };
    if !options.nonblock && nested::is_for_ever(place, &wish) {
        tell!(
            "{} is held by the dlock run that this one runs under, and would be waited for in vain",
            wish.lock
        );
        return Ok(options.conflict_exit_code);
    }
    let (happens, events) = mpsc::channel();
    let queueing = Arc::new(Queueing::new(&wish, place));
    let told = happens.clone();
    let waiting = queueing.clone();
    let heeded = signals::heed(move |signal| {
        let tell = || drop(told.send(Event::Signal(signal)));
        waiting.leave_or(tell, || signals::end_by(signal));
    });
    let heeded = heeded.map_err(|error| Failure::new(format!("signals: {error}")))?;
    let taken = wish.take(place, &queueing, wait, options.quiet);
    queueing.done();
    let (link, silent, hold) = match taken? {
        Taken::Had(link, silent, hold) => (link, silent, hold),
        Taken::Refused(holder) => {
            if !options.quiet {
                let by = holder.map_or(String::new(), |owner| format!(" by {owner}"));
                tell!("{} is held{by}", wish.lock);
            }
            return Ok(options.conflict_exit_code);
        }
    };
    let had = now_ms();
    let started = Runner::start(
        options,
        &wish,
        (hold.token, hold.until_ms),
        &heeded,
        &happens,
    );
    let mut runner = match started {
        Ok(runner) => runner,
        Err(error) => {
            tell!("{}: {error}", options.command.join(" "));
            let _ = wish.give_back(place, hold.token);
            return Ok(command::code_of(&error));
        }
    };
    let left = Arc::new(Mutex::new(false));
    let (keeper, at, is_left) = (wish.clone(), place.clone(), left.clone());
    thread::spawn(move || {
        let granted = (hold.token, hold.until_ms);
        keeper.keep(&at, *link, silent, granted, &is_left, |news| {
            drop(happens.send(Event::News(news)));
        });
    });
    let end = runner.attend(&events);
    runner.take_terminal();
    if end.is_lost {
        return Ok(LOST);
    }
    // The keeper would tie the hold again, to a connection that ends with this process.
    *left.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let stays = options
        .at_least
        .map(|least| least.saturating_sub(Duration::from_millis(now_ms() - had)));
    let given = match stays.filter(|stays| !stays.is_zero()) {
        Some(stays) => wish.leave_for(place, hold.token, stays),
        None => wish.give_back(place, hold.token),
    };
    if let Err(failure) = given {
        tell!(
            "{} could not be given back, and ends with this process or its lease: {failure}",
            wish.lock
        );
    }
    runner.end_as(end.signal);
    Ok(end.code)
}

/// How the command has ended.
struct End {
    code: u8,
    signal: Option<Signal>,
    is_lost: bool,
}

/// The command as this process sees it: a job, whose terminal, stops and signals go through this process, as through a shell.
struct Runner {
    lock: String,
    guardian: Option<Guardian>,
    group: Option<Pid>,
    terminal: Option<Terminal>,
    /// Whenever this process has the terminal, the command gets it.
    wants_terminal: bool,
    /// The command had the terminal when it ended or stopped.
    had_terminal: bool,
    /// The signal that was sent on to it last.
    passed_on: Option<Signal>,
    until_ms: u64,
    is_stopped: bool,
    /// It was asked to stop at that time, and this process stops when it has.
    stop_asked_ms: Option<u64>,
    /// The command continues as soon as the lock is known to be still held.
    is_to_go_on: bool,
}

impl Runner {
    fn start(
        options: &Options,
        wish: &Wish,
        (token, until_ms): (u64, u64),
        heeded: &Heeded,
        happens: &Sender<Event>,
    ) -> io::Result<Runner> {
        heeded.also_stops()?;
        guardian::adopt_orphans()?;
        let terminal = Terminal::open();
        let is_ours = terminal.as_ref().is_some_and(Terminal::is_ours);
        let wants_terminal = terminal.is_some() && terminal::is_all();
        let started = guardian::Options::new(
            until_ms,
            &wish.lock,
            (options.signal, options.kill_after),
            is_ours && wants_terminal,
            &options.command,
        );
        let environment = [
            ("DLOCK_LOCK", wish.lock.as_str()),
            ("DLOCK_OWNER", &wish.owner),
            ("DLOCK_TOKEN", &token.to_string()),
            (nested::TOKENS, &nested::with(token)),
        ];
        let told = happens.clone();
        let guardian = Guardian::start(&started, &environment, move |said| {
            drop(told.send(Event::Guardian(said)));
        })?;
        Ok(Runner {
            lock: wish.lock.clone(),
            guardian: Some(guardian),
            group: None,
            terminal,
            wants_terminal,
            had_terminal: false,
            passed_on: None,
            until_ms,
            is_stopped: false,
            stop_asked_ms: None,
            is_to_go_on: false,
        })
    }

    /// Attends to the command until it has ended.
    fn attend(&mut self, events: &Receiver<Event>) -> End {
        loop {
            let event = events.recv_timeout(LOOK).ok();
            if let Some(end) = event.and_then(|event| self.handle(event)) {
                if let Some(guardian) = self.guardian.take() {
                    let _ = guardian.wait();
                }
                return end;
            }
            if self
                .stop_asked_ms
                .is_some_and(|at| now_ms() >= at + STOP_MS)
                && !self.is_stopped
            {
                self.order(&Order::Signal(Signal::SIGSTOP));
            }
        }
    }

    fn handle(&mut self, event: Event) -> Option<End> {
        match event {
            Event::News(News::Until(ms)) => {
                self.until_ms = ms;
                self.order(&Order::Until(ms));
                if self.is_to_go_on {
                    self.go_on();
                }
            }
            Event::News(News::Lost(why)) => self.order(&Order::Lost(why)),
            Event::Signal(Signal::SIGTSTP) => {
                self.stop_asked_ms = Some(now_ms());
                self.order(&Order::Signal(Signal::SIGTSTP));
                if self.is_stopped {
                    self.suspend();
                }
            }
            Event::Signal(Signal::SIGCONT) => self.go_on(),
            Event::Signal(signal) => {
                self.passed_on = Some(signal);
                self.order(&Order::Signal(signal));
            }
            Event::Guardian(Some(Told::Started(group))) => self.group = Some(group),
            Event::Guardian(Some(Told::Stopped(signal))) => self.stopped(signal),
            Event::Guardian(Some(Told::Ended {
                code,
                signal,
                is_lost,
            })) => {
                return Some(End {
                    code,
                    signal,
                    is_lost,
                });
            }
            Event::Guardian(None) => return Some(self.abandoned()),
        }
        None
    }

    fn order(&mut self, order: &Order) {
        if let Some(guardian) = &mut self.guardian {
            guardian.order(order);
        }
    }

    /// Handles the early end of the guardian: no process is left that would end the command in time.
    fn abandoned(&mut self) -> End {
        if let Some(group) = self.group {
            tell!(
                "{}: the process above the command was ended: SIGKILL for the command",
                self.lock
            );
            let _ = killpg(group, Signal::SIGKILL);
        }
        let status = self
            .guardian
            .take()
            .map(Guardian::wait)
            .and_then(Result::ok);
        // What was below it is below this process now.
        guardian::kill_all_below();
        let signal = status.and_then(|status| status.signal());
        let signal = signal.and_then(|signal| Signal::try_from(signal).ok());
        // A signal that was sent to this whole group (a key) may have met it before it had a group of its own, and may be heard here
        // only later. There is no command yet.
        if self.group.is_none() {
            self.passed_on = signal;
        }
        End {
            code: status.map_or(u8::MAX, guardian::code),
            signal,
            is_lost: false,
        }
    }

    /// The command has stopped.
    fn stopped(&mut self, signal: Signal) {
        self.is_stopped = true;
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        let asks = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if self.stop_asked_ms.is_some() {
            self.suspend();
        } else if asks && is_ours {
            // It was in the background, as a part of a pipeline, and wants the terminal.
            self.wants_terminal = true;
            self.go_on();
        } else if self.terminal.is_some() {
            match terminal::has_shell() {
                true => self.suspend(),
                // No shell would let it continue.
                false if signal != Signal::SIGSTOP => self.go_on(),
                false => {}
            }
        }
    }

    /// Stops this process until another one lets it continue. Where a key of the terminal has stopped the command, the rest of this
    /// group has not received that signal, and the shell that has started this job looks at that group only.
    fn suspend(&mut self) {
        self.stop_asked_ms = None;
        self.take_terminal();
        if self.had_terminal {
            terminal::signal_others(Signal::SIGTSTP);
        }
        let _ = kill(getpid(), Signal::SIGSTOP);
    }

    /// Lets the command continue if the lock is still held, in the foreground if this process is there.
    fn go_on(&mut self) {
        self.stop_asked_ms = None;
        self.is_to_go_on = self.is_stopped && now_ms() >= self.until_ms;
        if self.is_to_go_on {
            return;
        }
        if let (true, Some(terminal), Some(group)) =
            (self.wants_terminal, &self.terminal, self.group)
        {
            if terminal.is_ours() {
                terminal.give(group);
            }
        }
        if self.is_stopped {
            self.is_stopped = false;
            self.order(&Order::Signal(Signal::SIGCONT));
        }
    }

    /// Takes the terminal back from the command.
    fn take_terminal(&mut self) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        self.had_terminal = self.group.is_some() && terminal.foreground() == self.group;
        if self.had_terminal {
            terminal.give(getpgrp());
        }
    }

    /// Ends this process as the command has ended, by a signal that both were meant to have: who has started this process (a script, a
    /// service manager) looks whether it has ended by that, or has dealt with it. Where a key of the terminal has ended the command,
    /// the script was not in the foreground, and receives the signal from here.
    fn end_as(&self, signal: Option<Signal>) {
        let Some(signal) = signal else {
            return;
        };
        let is_of_key = self.had_terminal && matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
        if is_of_key {
            terminal::signal_others(signal);
        }
        if is_of_key || self.passed_on == Some(signal) {
            signals::end_by(signal);
        }
    }
}

/// This machine, this process, the label if there is one, and a number of its own: a process of the same name is another owner.
fn own_name(label: Option<&str>) -> String {
    let host = nix::unistd::gethostname().map_or("unknown".to_owned(), |name| {
        name.to_string_lossy().into_owned()
    });
    let label = label.map_or(String::new(), |label| format!("{label}/"));
    format!(
        "{host}/{}/{label}{}",
        std::process::id(),
        uuid::Uuid::new_v4().simple()
    )
}
