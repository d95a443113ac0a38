//! `make bench-peers`: dlock beside other lock services, grouped by what is promised.
//!
//! | room or file | what is in it |
//! |---|---|
//! | `machine/` | processes of a service, what they use, the disk |
//! | `locks/` | a client, whatever service it is of, and each of them |
//! | `service.rs` | the services: how each is started, what it promises, what is unequal |
//! | `cell.rs` | what is measured |
//! | `redisson.rs`, `java/` | Redisson, and dlock from Java |
//! | `outcome.rs`, `report.rs` | what came of it |

mod cell;
mod failure;
mod locks;
mod machine;
mod outcome;
mod redisson;
mod report;
mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use dlock_integration::Server;
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
    /// Only this part (contend, java, kill, memory); the result is not kept
    #[arg(long, value_name = "PART")]
    part: Option<String>,
    /// Where the Java program was built
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "target/bench-peers/java"
    )]
    java: PathBuf,
    /// Measures nothing: writes the tables and the plot of the last full run anew
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
    if options.report {
        let outcome = Outcome::load(&options.results.join("full/peers.json"))?;
        return keep(&outcome, &options.results);
    }
    let start = Instant::now();
    let fsync_us = disk::sync_time()?.as_secs_f64() * 1e6;
    let mut outcome = Outcome::new(options.quick, fsync_us, service::versions());
    let mut bench = Bench {
        options,
        runtime: &runtime,
        outcome: &mut outcome,
    };
    bench.services();
    bench.java();
    bench.kills();
    println!("{}", report::text(&outcome));
    println!("Measured in {} s.", start.elapsed().as_secs());
    if options.only.is_none() && options.part.is_none() {
        keep(&outcome, &options.results)?;
    }
    Ok(())
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

    /// Every service in turn, each with servers of its own.
    fn services(&mut self) {
        if !self.wants("contend") && !self.wants("memory") {
            return;
        }
        let can_slow = disk::can_slow();
        for plan in PLANS {
            if !self.wants_service(plan.name) {
                continue;
            }
            let what = format!("{}, {}", plan.promise.text(), plan.name);
            if plan.promise == Promise::DurableSlow && !can_slow {
                self.leave_out(
                    &what,
                    &"strace, which adds to fsync, cannot be used here".into(),
                );
                continue;
            }
            eprintln!("{what} …");
            if let Err(error) = self.service(&plan) {
                self.leave_out(
                    &what,
                    &format!("{error} ({} needed)", plan.program()).into(),
                );
            }
        }
    }

    fn service(&mut self, plan: &Plan) -> Result<(), Failure> {
        let service = plan.start()?;
        self.runtime
            .block_on(service::await_service(service.address))?;
        let processes = service.processes();
        let group = plan.promise.text();
        if self.wants("contend") {
            for (name, clients, work_ms, hot) in self.situations(plan.promise) {
                let load = self.load(clients, work_ms, hot);
                let mut rounds: Vec<Figures> = Vec::new();
                for _ in 0..self.rounds() {
                    let measured =
                        cell::contend(self.runtime.handle(), service.address, &processes, load);
                    rounds.push(measured.map_err(|error| format!("{name}: {error}"))?);
                }
                self.outcome.add(group, plan.name, name, &rounds);
            }
        }
        if self.wants("memory") && plan.promise != Promise::DurableSlow {
            // What came before leaves room that would be used again.
            drop(service);
            let service = plan.start()?;
            let (locks, waiters) = if self.options.quick {
                (2_000, 200)
            } else {
                (10_000, 1_000)
            };
            let measured = self.runtime.block_on(async {
                service::await_service(service.address).await?;
                cell::memory(service.address, &service.processes(), locks, waiters).await
            });
            self.outcome.add(
                group,
                plan.name,
                MEMORY,
                &[measured.map_err(|error| format!("memory: {error}"))?],
            );
        }
        Ok(())
    }

    fn rounds(&self) -> usize {
        if self.options.quick {
            1
        } else {
            3
        }
    }

    fn load(&self, clients: usize, work_ms: u64, hot: bool) -> Load {
        Load {
            clients,
            hot,
            work: Duration::from_millis(work_ms),
            duration: Duration::from_millis(if self.options.quick { 1_000 } else { 3_000 }),
        }
    }

    /// Where only the disk differs, fewer will do.
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

    /// Redisson's locks and dlock's, in pairs.
    fn java(&mut self) {
        if !self.wants("java") || !self.wants_service("Redisson") {
            return;
        }
        let driver = match Driver::find(&self.options.java) {
            Ok(driver) => driver,
            Err(error) => return self.leave_out("Redisson", &error),
        };
        let situations: &[Situation] = if self.options.quick {
            &[HOT[1]]
        } else {
            &[HOT[0], HOT[1], HOT[2], HOT[4], HOT[5]]
        };
        for (kind, name) in redisson::KINDS {
            eprintln!("{name} …");
            for &(situation, clients, work_ms) in situations {
                let load = self.load(clients, work_ms, true);
                let server = Server::start();
                match driver.contend(&server, kind, load) {
                    Ok(figures) => self.outcome.add(JAVA, name, situation, &[figures]),
                    Err(error) => self.leave_out(&format!("{name}, {situation}"), &error),
                }
            }
        }
    }

    /// All at the same time: most of it is waiting.
    fn kills(&mut self) {
        if !self.wants("kill") {
            return;
        }
        eprintln!("killing holders …");
        let mut running = Vec::new();
        for plan in PLANS {
            let is_one = matches!(plan.promise, Promise::Memory | Promise::Durable);
            let is_same = plan.promise == Promise::Durable && plan.name.starts_with("dlock");
            if !is_one || is_same || !self.wants_service(plan.name) {
                continue;
            }
            for lifetime in [Lifetime::Default, Lifetime::Short] {
                match plan.start() {
                    Ok(service) => running.push((plan, lifetime, service)),
                    Err(error) => self.leave_out(&format!("{}, killed", plan.name), &error),
                }
            }
        }
        let driver = Driver::find(&self.options.java)
            .ok()
            .filter(|_| self.wants_service("Redisson"));
        let watchdogs = [(KILL_DEFAULT, 30), (KILL_SHORT, 3)];
        let (killed, by_java) = std::thread::scope(|scope| {
            let by_java: Vec<_> = watchdogs
                .into_iter()
                .filter_map(|(name, seconds)| {
                    let driver = driver.as_ref()?;
                    let kill = move || {
                        let server = Server::start();
                        driver.kill_holder(&server, Duration::from_secs(seconds))
                    };
                    Some((format!("{name}: watchdog {seconds} s"), scope.spawn(kill)))
                })
                .collect();
            let killed: Vec<_> = running
                .iter()
                .map(|(plan, lifetime, service)| {
                    let address = service.address;
                    let lifetime = *lifetime;
                    let task = async move {
                        service::await_service(address).await?;
                        cell::kill_holder(address, lifetime).await
                    };
                    (plan, lifetime, self.runtime.spawn(task))
                })
                .collect();
            let killed: Vec<_> = killed
                .into_iter()
                .map(|(plan, lifetime, task)| {
                    let done = self.runtime.block_on(task);
                    (
                        plan,
                        lifetime,
                        done.unwrap_or_else(|error| Err(error.into())),
                    )
                })
                .collect();
            let by_java: Vec<_> = by_java
                .into_iter()
                .map(|(name, thread)| {
                    (
                        name,
                        thread.join().unwrap_or_else(|_| Err("given up".into())),
                    )
                })
                .collect();
            (killed, by_java)
        });
        for (plan, lifetime, done) in killed {
            let kind = match lifetime {
                Lifetime::Default => KILL_DEFAULT,
                Lifetime::Short => KILL_SHORT,
            };
            let name = format!("{kind}: {}", plan.lifetime(lifetime));
            match done {
                Ok(figures) => self
                    .outcome
                    .add(plan.promise.text(), plan.name, &name, &[figures]),
                Err(error) => self.leave_out(&format!("{}, {name}", plan.name), &error),
            }
        }
        for (name, done) in by_java {
            match done {
                Ok(figures) => {
                    self.outcome
                        .add(KILLED_JAVA, redisson::KINDS[0].1, &name, &[figures])
                }
                Err(error) => self.leave_out(&format!("Redisson, {name}"), &error),
            }
        }
    }
}

/// Redisson's kills are no part of its table.
const KILLED_JAVA: &str = "Redisson, killed";

/// Keeps a run.
fn keep(outcome: &Outcome, results: &Path) -> Result<(), Failure> {
    let directory = results.join(if outcome.quick { "quick" } else { "full" });
    fs::create_dir_all(&directory)?;
    outcome.save(&directory.join("peers.json"))?;
    let text = report::text(outcome);
    fs::write(
        directory.join("peers.md"),
        format!("# dlock beside other lock services\n\nMade by `make bench-peers`.\n\n{text}"),
    )?;
    fs::write(directory.join("peers.svg"), report::plot(outcome))?;
    println!("Kept in {}", directory.display());
    Ok(())
}
