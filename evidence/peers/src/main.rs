//! `make bench-peers`: dlock and other lock services, grouped by their promises.
//!
//! | module or file | contents |
//! |---|---|
//! | `machine/` | processes of a service, their resources, the disk |
//! | `locks/` | the interface of a client, and the client of each service |
//! | `service.rs` | the services: their start, their promises, their differences |
//! | `cell.rs` | the measurements |
//! | `handover.rs` | dlock's hand-overs, by clients, hold time and server |
//! | `redisson.rs`, `java/` | Redisson, and dlock from Java |
//! | `permits.rs` | several permits at once: the large requests, and the order |
//! | `install.sh`, `etcd/`, `zookeeper/` | the compared services and their versions |
//! | `outcome.rs`, `report.rs` | the outcome, and its tables |

mod cell;
mod failure;
mod handover;
mod locks;
mod machine;
mod outcome;
mod permits;
mod redisson;
mod report;
mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use dlock_harness::{Made, Server};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use tokio::runtime::{Builder, Runtime};

use crate::cell::{Figures, Load};
use crate::failure::Failure;
use crate::locks::client::Lifetime;
use crate::machine::disk;
use crate::outcome::Outcome;
use crate::redisson::Driver;
use crate::service::{Plan, Promise, PLANS};

/// A situation: its name, the clients, and the milliseconds that each keeps the lock.
type Situation = (&'static str, usize, u64);

/// Each client has a lock of its own.
pub const UNCONTENDED: [Situation; 2] = [("1 client", 1, 0), ("16 clients, a lock each", 16, 0)];

/// All want one lock.
pub const HOT: [Situation; 6] = [
    ("hot, 2 clients, 0 ms", 2, 0),
    ("hot, 16 clients, 0 ms", 16, 0),
    ("hot, 100 clients, 0 ms", 100, 0),
    ("hot, 2 clients, 1 ms", 2, 1),
    ("hot, 16 clients, 1 ms", 16, 1),
    ("hot, 100 clients, 1 ms", 100, 1),
];

/// The group of the Java program.
pub const JAVA: &str = "From Java: Redisson, and dlock by Lettuce";
/// The holder is killed, and nothing was set.
pub const KILL_DEFAULT: &str = "killed, default";
/// The holder is killed, with the shortest setting.
pub const KILL_SHORT: &str = "killed, shortest";
/// Memory.
pub const MEMORY: &str = "memory";

/// Compares dlock with other lock services.
#[derive(Parser)]
struct Options {
    /// Shorter: under six minutes
    #[arg(long)]
    quick: bool,
    /// Only services whose name contains this; the result is not kept
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measures only this part (contend, java, kill, memory, hand-over), and keeps only the result of hand-over
    #[arg(long, value_name = "PART")]
    part: Option<String>,
    /// Where `install.sh` has put the services
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "target/bench-peers/installed"
    )]
    installed: PathBuf,
    /// Hand-overs on other servers too: those that `make servers` keeps in this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "target/servers")]
    servers: PathBuf,
    /// Measures nothing: writes the tables of the last full run again
    #[arg(long)]
    report: bool,
    /// Where runs are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench-peers")]
    results: PathBuf,
    /// What the program calls itself with: the process that is killed
    #[arg(long, hide = true)]
    hold: Option<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let Some(text) = &options.hold {
        return runtime.block_on(cell::hold(text));
    }
    allow_many_connections()?;
    if options.report {
        let full = options.results.join("full");
        for page in [Page::PEERS, Page::HAND_OVERS] {
            let outcome = Outcome::load(&full.join(page.name).with_extension("json"))?;
            page.keep(&outcome, &options.results)?;
        }
        return Ok(());
    }
    let start = Instant::now();
    let fsync_us = disk::sync_time()?.as_secs_f64() * 1e6;
    let made = Made::now();
    let versions = service::versions(&made.server, &options.installed);
    let mut outcome = Outcome::new(options.quick, fsync_us, made.clone().with(&versions));
    let mut bench = Bench {
        options,
        runtime: &runtime,
        outcome: &mut outcome,
    };
    let is_all = options.part.is_none() && options.only.is_none();
    for part in [Bench::services, Bench::kills, Bench::memories, Bench::java] {
        part(&mut bench);
        // The rest takes minutes.
        if is_all {
            Page::PEERS.keep(bench.outcome, &options.results)?;
        }
    }
    let is_peers = options.part.as_deref() != Some(HAND_OVER);
    if is_peers {
        println!("{}", report::text(&outcome));
    }
    if (is_all || !is_peers) && options.only.is_none() {
        let mut outcome = Outcome::new(options.quick, fsync_us, made);
        hand_overs(options, &runtime, &mut outcome)?;
        println!("{}", report::hand_overs(&outcome));
        Page::HAND_OVERS.keep(&outcome, &options.results)?;
    }
    println!("Measured in {} s.", start.elapsed().as_secs());
    Ok(())
}

/// Measures dlock on several servers, and permits.
fn hand_overs(options: &Options, runtime: &Runtime, outcome: &mut Outcome) -> Result<(), Failure> {
    let rounds = rounds(options);
    let own = PathBuf::from(dlock_harness::server_program());
    let fetched = FETCHED.map(|name| options.servers.join(name).join("server"));
    let (known, missing): (Vec<_>, Vec<_>) = fetched.into_iter().partition(|path| path.exists());
    for path in missing {
        let reason = format!("{}: it was not fetched", path.display());
        outcome.left_out.push(reason);
    }
    let programs: Vec<PathBuf> = [own].into_iter().chain(known).collect();
    handover::measure(runtime.handle(), &programs, rounds, outcome)?;
    match Driver::find(&options.installed) {
        Ok(driver) => permits::measure(&driver, rounds, outcome)?,
        Err(error) => outcome.left_out.push(format!("Permits: {error}")),
    }
    Ok(())
}

/// The servers besides the environment's own: those that `integration/servers.sh` fetches.
const FETCHED: [&str; 2] = ["redis-8.6", "valkey-9.1"];

/// The part whose result has a file of its own.
const HAND_OVER: &str = "hand-over";

fn rounds(options: &Options) -> usize {
    if options.quick {
        1
    } else {
        3
    }
}

/// Allows thousands of connections, here and in the servers, which inherit the limit.
fn allow_many_connections() -> Result<(), Failure> {
    const CONNECTIONS: u64 = 10_000;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(CONNECTIONS).max(soft);
    Ok(setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?)
}

/// A run.
struct Bench<'a> {
    options: &'a Options,
    runtime: &'a Runtime,
    outcome: &'a mut Outcome,
}

impl Bench<'_> {
    fn wants(&self, part: &str) -> bool {
        self.options
            .part
            .as_ref()
            .is_none_or(|wanted| wanted == part)
    }

    fn wants_service(&self, name: &str) -> bool {
        self.options
            .only
            .as_ref()
            .is_none_or(|text| name.contains(text.as_str()))
    }

    fn leave_out(&mut self, what: &str, error: &Failure) {
        eprintln!("left out: {what}: {error}");
        self.outcome.left_out.push(format!("{what}: {error}"));
    }

    fn plans(&self) -> Vec<Plan> {
        let is_wanted = |plan: &Plan| self.wants_service(plan.name);
        PLANS.into_iter().filter(is_wanted).collect()
    }

    /// Measures every service in turn, each with servers of its own, round after round, so that a disturbance affects all of
    /// them.
    fn services(&mut self) {
        if !self.wants("contend") {
            return;
        }
        let mut plans = self.plans();
        if !disk::can_slow() {
            plans.retain(|plan| plan.promise != Promise::DurableSlow);
            let reason = "strace, which adds to fsync, cannot be used here";
            self.leave_out(Promise::DurableSlow.text(), &reason.into());
        }
        for round in 1..=rounds(self.options) {
            for plan in &plans {
                let what = format!("{}, {}, round {round}", plan.promise.text(), plan.name);
                eprintln!("{what} …");
                if let Err(error) = self.contend(plan) {
                    self.leave_out(&what, &error);
                }
            }
        }
        self.outcome.add_samples();
    }

    /// Measures the memory of every service.
    fn memories(&mut self) {
        if !self.wants("memory") {
            return;
        }
        for plan in self.plans() {
            if plan.promise == Promise::DurableSlow {
                continue;
            }
            let what = format!("{}, {}, memory", plan.promise.text(), plan.name);
            eprintln!("{what} …");
            if let Err(error) = self.memory(&plan) {
                self.leave_out(&what, &error);
            }
        }
    }

    /// Measures a round of a service.
    fn contend(&mut self, plan: &Plan) -> Result<(), Failure> {
        let service = plan.start(&self.options.installed)?;
        self.runtime
            .block_on(service::await_service(service.address))?;
        let processes = service.processes();
        for (name, clients, work_ms, hot) in self.situations(plan.promise) {
            let load = self.load(clients, work_ms, hot);
            let measured = cell::contend(self.runtime.handle(), service.address, &processes, load);
            let round = measured.map_err(|error| format!("{name}: {error}"))?;
            let group = plan.promise.text();
            (self.outcome).sample((group, plan.name, name), round.figures);
        }
        Ok(())
    }

    /// Measures memory with servers of its own: freed memory of earlier parts would be reused.
    fn memory(&mut self, plan: &Plan) -> Result<(), Failure> {
        let service = plan.start(&self.options.installed)?;
        let (locks, waiters) = if self.options.quick {
            (2_000, 200)
        } else {
            (10_000, 1_000)
        };
        let measured = self.runtime.block_on(async {
            service::await_service(service.address).await?;
            cell::memory(service.address, &service.processes(), locks, waiters).await
        });
        self.outcome
            .add(plan.promise.text(), plan.name, MEMORY, &[measured?]);
        Ok(())
    }

    fn load(&self, clients: usize, work_ms: u64, hot: bool) -> Load {
        Load {
            clients,
            hot,
            work: Duration::from_millis(work_ms),
            duration: Duration::from_millis(if self.options.quick { 500 } else { 1_200 }),
        }
    }

    /// Returns the situations: fewer where only the disk differs.
    fn situations(&self, promise: Promise) -> Vec<(&'static str, usize, u64, bool)> {
        let uncontended = UNCONTENDED
            .iter()
            .map(|&(name, clients, work)| (name, clients, work, false));
        let hot = HOT
            .iter()
            .map(|&(name, clients, work)| (name, clients, work, true));
        let all = uncontended.chain(hot);
        match promise {
            Promise::DurableSlow => all
                .filter(|(_, clients, work, _)| *clients <= 16 && *work == 0)
                .collect(),
            _ => all.collect(),
        }
    }

    /// Measures Redisson's locks and dlock's, in pairs.
    fn java(&mut self) {
        if !self.wants("java") || !self.wants_service("Redisson") {
            return;
        }
        let driver = match Driver::find(&self.options.installed) {
            Ok(driver) => driver,
            Err(error) => return self.leave_out("Redisson", &error),
        };
        let situations: &[Situation] = if self.options.quick {
            &[HOT[1]]
        } else {
            &[HOT[1], HOT[2], HOT[5]]
        };
        for round in 1..=rounds(self.options) {
            for (kind, name) in redisson::KINDS {
                eprintln!("{name}, round {round} …");
                for &(situation, clients, work_ms) in situations {
                    let load = self.load(clients, work_ms, true);
                    let server = Server::start();
                    match driver.contend(&server, kind, load) {
                        Ok(figures) => self.outcome.sample((JAVA, name, situation), figures),
                        Err(error) => {
                            self.leave_out(&format!("{name}, {situation}, round {round}"), &error)
                        }
                    }
                }
            }
        }
        self.outcome.add_samples();
    }

    /// Measures all kills at one time: most of it is waiting.
    fn kills(&mut self) {
        if !self.wants("kill") {
            return;
        }
        eprintln!("killing holders …");
        let mut kills: Vec<(&str, &str, String, Kill)> = Vec::new();
        for plan in PLANS {
            let is_one = matches!(plan.promise, Promise::Memory | Promise::Durable);
            let is_same = plan.promise == Promise::Durable && plan.name.starts_with("dlock");
            if !is_one || is_same || !self.wants_service(plan.name) {
                continue;
            }
            for (kind, lifetime) in [
                (KILL_DEFAULT, Lifetime::Default),
                (KILL_SHORT, Lifetime::Short),
            ] {
                let service = match plan.start(&self.options.installed) {
                    Ok(service) => service,
                    Err(error) => {
                        self.leave_out(&format!("{}, {kind}", plan.name), &error);
                        continue;
                    }
                };
                let handle = self.runtime.handle().clone();
                let kill = move || {
                    // The closure takes all of the service, which runs as long as this does.
                    let service = service;
                    handle.block_on(async {
                        service::await_service(service.address).await?;
                        cell::kill_holder(service.address, lifetime).await
                    })
                };
                let name = format!("{kind}: {}", plan.lifetime(lifetime));
                kills.push((plan.promise.text(), plan.name, name, Box::new(kill)));
            }
        }
        let driver = Driver::find(&self.options.installed);
        if let Some(driver) = driver.ok().filter(|_| self.wants_service("Redisson")) {
            for (kind, seconds) in [(KILL_DEFAULT, 30), (KILL_SHORT, 3)] {
                let driver = driver.clone();
                let kill = move || {
                    let server = Server::start();
                    driver.kill_holder(&server, Duration::from_secs(seconds))
                };
                let name = format!("{kind}: watchdog {seconds} s");
                kills.push((KILLED_JAVA, redisson::KINDS[0].1, name, Box::new(kill)));
            }
        }
        let start = |(group, service, name, kill)| (group, service, name, thread::spawn(kill));
        let running: Vec<_> = kills.into_iter().map(start).collect();
        for (group, service, name, thread) in running {
            match thread.join().unwrap_or_else(|_| Err("given up".into())) {
                Ok(figures) => self.outcome.add(group, service, &name, &[figures]),
                Err(error) => self.leave_out(&format!("{service}, {name}"), &error),
            }
        }
    }
}

/// Kills a holder, and measures.
type Kill = Box<dyn FnOnce() -> Result<Figures, Failure> + Send>;

/// Redisson's kills do not belong in its table.
const KILLED_JAVA: &str = "Redisson, killed";

/// A page of results.
struct Page {
    name: &'static str,
    title: &'static str,
    text: fn(&Outcome) -> String,
}

impl Page {
    const PEERS: Page = Page {
        name: "peers",
        title: "dlock and other lock services",
        text: report::text,
    };
    const HAND_OVERS: Page = Page {
        name: "hand-overs",
        title: "Hand-overs",
        text: report::hand_overs,
    };

    /// Keeps a run.
    fn keep(&self, outcome: &Outcome, results: &Path) -> Result<(), Failure> {
        let directory = results.join(if outcome.quick { "quick" } else { "full" });
        fs::create_dir_all(&directory)?;
        let path = directory.join(self.name);
        outcome.save(&path.with_extension("json"))?;
        let (title, text) = (self.title, (self.text)(outcome));
        fs::write(path.with_extension("md"), format!("# {title}\n\n{text}"))?;
        println!("Kept in {}", directory.display());
        Ok(())
    }
}
