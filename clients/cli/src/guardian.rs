//! The small process between `dlock run` and its command. It outlives the runner by as long as it takes to end the command, and all that
//! the command has started: the next holder does not work alongside them.
//!
//! The runner tells it by a pipe until when the lock may be believed. When that time is over, when the lock is lost, and when the
//! runner is gone (the pipe no longer has a writer), it ends the command. So a runner that is killed, stopped, or that hangs, keeps
//! no command working.

use crate::out::tell;
use crate::server::now_ms;
use crate::{command, processes, LOST};
use clap::Args;
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::{kill, killpg, SigSet, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{close, Pid};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

/// The longest time between two checks of the clock: timers may stall while a machine is suspended.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// Between two rounds of killing, and how many of them: what the kernel does not let go of is left to it.
const ROUND_MS: u64 = 50;
const ROUNDS: u32 = 100;

/// This program, whatever has become of its file since it was started.
fn this_program() -> Command {
    #[cfg(target_os = "linux")]
    let program = std::path::PathBuf::from("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let program = std::env::current_exe().unwrap_or_else(|_| "dlock".into());
    let mut command = Command::new(program);
    command.arg0("dlock");
    command
}

/// An order from the runner to the guardian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lock may be believed until then, by [`now_ms`].
    Until(u64),
    /// The lock is lost, for this reason.
    Lost(String),
    /// The command's process group is to get this signal.
    Signal(Signal),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Until(ms) => write!(f, "until {ms}"),
            Order::Lost(why) => write!(f, "lost {}", why.replace(['\n', '\r'], " ")),
            Order::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Order, ()> {
        match line.split_once(' ').ok_or(())? {
            ("until", ms) => ms.parse().map(Order::Until).map_err(drop),
            ("lost", why) => Ok(Order::Lost(why.to_owned())),
            ("signal", name) => name.parse().map(Order::Signal).map_err(drop),
            _ => Err(()),
        }
    }
}

/// What the guardian tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The command runs, and leads this process group.
    Started(Pid),
    /// This signal has stopped it.
    Stopped(Signal),
    /// It has ended, with this exit code of a shell. `signal`: the signal that has ended it.
    Ended {
        code: u8,
        signal: Option<Signal>,
        is_lost: bool,
    },
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Started(group) => write!(f, "started {group}"),
            Told::Stopped(signal) => write!(f, "stopped {signal}"),
            Told::Ended {
                code,
                signal,
                is_lost,
            } => {
                let signal = signal.map_or("none", Signal::as_str);
                write!(f, "ended {code} {signal} {is_lost}")
            }
        }
    }
}

impl FromStr for Told {
    type Err = ();

    fn from_str(line: &str) -> Result<Told, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words.as_slice() {
            ["started", group] => Told::Started(Pid::from_raw(group.parse().map_err(drop)?)),
            ["stopped", signal] => Told::Stopped(signal.parse().map_err(drop)?),
            ["ended", code, signal, is_lost] => Told::Ended {
                code: code.parse().map_err(drop)?,
                signal: signal.parse().ok(),
                is_lost: is_lost.parse().map_err(drop)?,
            },
            _ => return Err(()),
        })
    }
}

/// What the guardian is started with.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The descriptor that orders come from
    orders: i32,
    /// The descriptor that it tells by
    told: i32,
    #[arg(long)]
    until_ms: u64,
    #[arg(long)]
    lock: String,
    #[arg(long)]
    signal: Signal,
    #[arg(long)]
    kill_after_ms: u64,
    /// The command is to read from the terminal
    #[arg(long)]
    foreground: bool,
    #[arg(last = true)]
    command: Vec<String>,
}

impl Options {
    pub(crate) fn new(
        until_ms: u64,
        lock: &str,
        (signal, kill_after): (Signal, Duration),
        foreground: bool,
        command: &[String],
    ) -> Options {
        Options {
            orders: -1,
            told: -1,
            until_ms,
            lock: lock.to_owned(),
            signal,
            kill_after_ms: kill_after.as_millis() as u64,
            foreground,
            command: command.to_vec(),
        }
    }
}

/// The guardian, as its runner sees it.
#[derive(Debug)]
pub(crate) struct Guardian {
    child: Child,
    orders: File,
}

/// A pipe of which no child has an end, and the number of one end that the next child has.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe()?;
    for end in [&read, &write] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    Ok((read, write))
}

fn inherited(end: &OwnedFd) -> io::Result<i32> {
    fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(end.as_raw_fd())
}

impl Guardian {
    /// Starts it, with the command below it. `tell` is called with what it tells, and with None when it has ended.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(
        options: &Options,
        environment: &[(&str, &str)],
        tell: impl Fn(Option<Told>) + Send + 'static,
    ) -> io::Result<Guardian> {
        let (orders, order) = pipe()?;
        let (told, telling) = pipe()?;
        let mut command = this_program();
        command
            .arg("under")
            .args([
                inherited(&orders)?.to_string(),
                inherited(&telling)?.to_string(),
            ])
            .arg(format!("--until-ms={}", options.until_ms))
            .arg(format!("--lock={}", options.lock))
            .arg(format!("--signal={}", options.signal))
            .arg(format!("--kill-after-ms={}", options.kill_after_ms));
        if options.foreground {
            command.arg("--foreground");
        }
        command.arg("--").args(&options.command);
        command.envs(environment.iter().copied());
        // What a terminal sends to the group of the runner, or of the command, is not meant for it.
        let child = command.process_group(0).spawn()?;
        thread::spawn(move || {
            let lines = BufReader::new(File::from(told)).lines();
            for line in lines.map_while(Result::ok) {
                if let Ok(told) = line.parse() {
                    tell(Some(told));
                }
            }
            tell(None);
        });
        Ok(Guardian {
            child,
            orders: File::from(order),
        })
    }

    /// Tells it something. One that has ended does not hear it.
    pub(crate) fn order(&mut self, order: &Order) {
        let _ = writeln!(self.orders, "{order}");
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> io::Result<ExitStatus> {
        drop(self.orders);
        self.child.wait()
    }
}

/// What happens to the guardian.
enum Event {
    Order(Order),
    RunnerGone,
    /// A process below it has ended or stopped.
    Child(WaitStatus),
    /// No process is left below it.
    AllGone,
}

/// Opens a descriptor that this process was started with, for itself only.
fn open(number: i32, write: bool) -> io::Result<File> {
    let file = File::options()
        .read(!write)
        .write(write)
        .open(format!("/dev/fd/{number}"))?;
    close(number)?;
    Ok(file)
}

/// Runs the guardian. Returns its exit code.
pub(crate) fn run(options: &Options) -> u8 {
    match guard(options) {
        Ok(code) => code,
        Err(error) => {
            tell!("{}: {error}", options.command.join(" "));
            command::code_of(&error)
        }
    }
}

/// Whatever the processes below this one leave behind becomes a child of this one, in whichever group and session it is.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_child_subreaper(true)?;
    Ok(())
}

/// Kills all processes below this one, until there are none.
pub(crate) fn kill_all_below() {
    for _ in 0..ROUNDS {
        kill_below();
        thread::sleep(Duration::from_millis(ROUND_MS));
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
        if processes::below().is_empty() {
            return;
        }
    }
}

fn kill_below() {
    for pid in processes::below() {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

fn guard(options: &Options) -> io::Result<u8> {
    // Its messages reach a terminal that stops others for writing.
    let mut stops = SigSet::empty();
    stops.add(Signal::SIGTTOU);
    stops.thread_block()?;
    let (orders, mut telling) = (open(options.orders, false)?, open(options.told, true)?);
    adopt_orphans()?;
    let mut stage = this_program();
    stage.arg("become").arg(std::process::id().to_string());
    if options.foreground {
        stage.arg("--foreground");
    }
    stage.arg("--").args(&options.command).process_group(0);
    let group = Pid::from_raw(stage.spawn()?.id() as i32);
    let _ = writeln!(telling, "{}", Told::Started(group));
    let (happens, events) = mpsc::channel();
    let heard = happens.clone();
    thread::spawn(move || hear(orders, &heard));
    thread::spawn(move || wait_for_children(&happens));
    let mut guard = Guard {
        options,
        group,
        telling,
        until_ms: options.until_ms,
        is_stopped: false,
        ended: None,
        kill_at_ms: None,
        rounds: 0,
    };
    loop {
        let at = guard.next_ms().saturating_sub(now_ms());
        let event = events
            .recv_timeout(Duration::from_millis(at).min(LOOK))
            .ok();
        if let Some(code) = event
            .and_then(|event| guard.handle(event))
            .or_else(|| guard.look())
        {
            return Ok(code);
        }
    }
}

fn hear(orders: File, heard: &Sender<Event>) {
    for line in BufReader::new(orders).lines().map_while(Result::ok) {
        if let Ok(order) = line.parse() {
            let _ = heard.send(Event::Order(order));
        }
    }
    let _ = heard.send(Event::RunnerGone);
}

fn wait_for_children(happens: &Sender<Event>) {
    loop {
        match waitpid(None, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED)) {
            Ok(status) => drop(happens.send(Event::Child(status))),
            Err(Errno::EINTR) => {}
            // No child, and so nobody below: what is below has a parent that is.
            Err(_) => {
                let _ = happens.send(Event::AllGone);
                return;
            }
        }
    }
}

struct Guard<'o> {
    options: &'o Options,
    group: Pid,
    telling: File,
    until_ms: u64,
    /// The command is stopped. The end of the lease does not end it until it continues.
    is_stopped: bool,
    /// How the command has ended.
    ended: Option<(u8, Option<Signal>)>,
    /// It is to end: when it is killed next.
    kill_at_ms: Option<u64>,
    rounds: u32,
}

impl Guard<'_> {
    /// When something is to be done next.
    fn next_ms(&self) -> u64 {
        match self.kill_at_ms {
            Some(at) => at,
            None if self.is_stopped => u64::MAX,
            None => self.until_ms,
        }
    }

    /// Returns the exit code if this was the end.
    fn handle(&mut self, event: Event) -> Option<u8> {
        match event {
            Event::Order(Order::Until(ms)) => self.until_ms = ms,
            Event::Order(Order::Lost(why)) => self.lose(&why),
            Event::Order(Order::Signal(signal)) => self.signal(signal),
            Event::RunnerGone if self.ended.is_none() => {
                if self.kill_at_ms.is_none() {
                    tell!(
                        "{}: dlock itself was ended: SIGKILL for the command",
                        self.options.lock
                    );
                }
                self.kill_at_ms = Some(0);
            }
            Event::RunnerGone => {}
            Event::Child(status) if status.pid() == Some(self.group) => {
                return self.command(status)
            }
            Event::Child(_) => {}
            Event::AllGone => return Some(self.finish()),
        }
        None
    }

    fn command(&mut self, status: WaitStatus) -> Option<u8> {
        match status {
            WaitStatus::Exited(_, code) => {
                self.ended = Some((u8::try_from(code).unwrap_or(u8::MAX), None));
            }
            WaitStatus::Signaled(_, signal, _) => {
                self.ended = Some((128 + signal as u8, Some(signal)));
            }
            WaitStatus::Stopped(_, signal) => {
                self.is_stopped = true;
                self.tell(Told::Stopped(signal));
            }
            WaitStatus::Continued(_) => self.is_stopped = false,
            _ => {}
        }
        // A lock that is lost lets nobody of the command work on.
        (self.ended.is_some() && self.kill_at_ms.is_none()).then(|| self.finish())
    }

    fn finish(&mut self) -> u8 {
        let (code, signal) = self.ended.unwrap_or((u8::MAX, None));
        let is_lost = self.kill_at_ms.is_some();
        self.tell(Told::Ended {
            code,
            signal,
            is_lost,
        });
        if is_lost {
            LOST
        } else {
            code
        }
    }

    /// Does what is due. Returns the exit code if nothing more can be done.
    fn look(&mut self) -> Option<u8> {
        let now = now_ms();
        if self.kill_at_ms.is_none() && !self.is_stopped && now >= self.until_ms {
            self.lose("its lease is over, and no server has renewed it");
        }
        if self.kill_at_ms.is_none_or(|at| now < at) {
            return None;
        }
        self.signal(Signal::SIGKILL);
        kill_below();
        self.kill_at_ms = Some(now + ROUND_MS);
        self.rounds += 1;
        (self.rounds > ROUNDS).then(|| {
            tell!("{}: the command cannot be killed", self.options.lock);
            self.finish()
        })
    }

    fn lose(&mut self, why: &str) {
        if self.kill_at_ms.is_some() {
            return;
        }
        let (lock, signal) = (&self.options.lock, self.options.signal);
        tell!("{lock} is lost ({why}): {signal} for the command");
        self.signal(signal);
        // A stopped command receives the signal only when it continues.
        self.signal(Signal::SIGCONT);
        self.kill_at_ms = Some(now_ms() + self.options.kill_after_ms);
    }

    /// Sends a signal to the command's group.
    fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    fn tell(&mut self, told: Told) {
        // A runner that has gone does not hear it.
        let _ = writeln!(self.telling, "{told}");
    }
}

/// The exit code of a shell for this end: 128 + n for signal n.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
