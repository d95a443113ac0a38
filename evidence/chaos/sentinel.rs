//! A primary, its replicas, three Sentinels.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_evidence::group::{Group, Node, DOWN_AFTER_MS, REPL_TIMEOUT};
use dlock_harness::{until, Party, Sentinel};
use fastrand::Rng;

use crate::fault::Fault;
use crate::nodes::{configured, end_quarantine, PATIENCE};
use crate::route::{BySentinel, Route};
use crate::run::{Inflicted, Plan, Scene};

/// The servers and their Sentinels.
pub struct Watched {
    group: Group,
    plan: Plan,
    /// Whether a primary is cut off with half of the clients.
    island: Arc<AtomicBool>,
    /// How often clients learned of another primary.
    told: Arc<AtomicUsize>,
}

impl Watched {
    /// Starts all, and returns when the Sentinels know each other and the replicas are in sync.
    pub fn start(plan: &Plan) -> Watched {
        let mut group = Group::start(plan.replicas + 1, PATIENCE, |one| configured(plan, one));
        group.join();
        group.watch(Some(plan.program.clone()));
        end_quarantine(plan, &group.nodes);
        Watched {
            group,
            plan: plan.clone(),
            island: Arc::default(),
            told: Arc::default(),
        }
    }

    fn parties_but(&self, number: usize) -> Vec<Party> {
        let mut parties: Vec<Party> = self.group.nodes.iter().map(|node| node.party).collect();
        parties.remove(number);
        parties
    }

    /// Takes the primary away and gives it back. Returns another primary, and when it was noticed.
    fn replace(
        &mut self,
        fault: Fault,
        number: usize,
        random: &mut Rng,
    ) -> Option<(Instant, usize)> {
        match fault {
            Fault::LagThenKill => {
                let party = self.group.nodes[number].party;
                self.group.network.cut(&[party], &self.parties_but(number));
                // Below the time after which the Sentinels would see more than a lag.
                thread::sleep(Duration::from_millis(random.u64(500..2_800)));
                self.group.nodes[number].server.kill9();
                self.group.network.lose();
                self.come_back(number)
            }
            Fault::Restart => {
                self.group.nodes[number].server.kill9();
                thread::sleep(Duration::from_millis(random.u64(0..500)));
                self.group.nodes[number].server.restart();
                None
            }
            Fault::Stop => {
                self.group.nodes[number].server.freeze();
                let new = self.group.await_promotion(number);
                thread::sleep(Duration::from_millis(random.u64(200..3_000)));
                self.group.nodes[number].server.thaw();
                new
            }
            Fault::Stall => {
                let seconds = DOWN_AFTER_MS as f64 / 1_000.0 + 2.0 + 3.0 * random.f64();
                self.group.nodes[number].say(&format!("DEBUG SLEEP {seconds:.1}"));
                self.group.await_promotion(number)
            }
            Fault::BriefStop => {
                // While it is stopped its replicas receive nothing from it, and must not give it up for that.
                let replicas = self.group.replicas_of(number, random);
                for node in &self.group.nodes {
                    node.say("CONFIG SET repl-timeout 20");
                }
                self.island.store(true, Ordering::Relaxed);
                self.group.nodes[number].server.freeze();
                self.group.await_role(&replicas);
                self.group.nodes[number].server.thaw();
                let new = self.group.await_promotion(number);
                // Half of the clients learn of it at once, the others stay.
                self.told.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(random.u64(2_000..4_000)));
                self.island.store(false, Ordering::Relaxed);
                for node in &self.group.nodes {
                    node.say(&format!("CONFIG SET repl-timeout {REPL_TIMEOUT}"));
                }
                new
            }
            Fault::WrongChoice => {
                let replicas = self.group.replicas_of(number, random);
                for (place, replica) in replicas.iter().enumerate() {
                    let priority = 10 * (place + 1);
                    self.group.nodes[*replica]
                        .say(&format!("CONFIG SET replica-priority {priority}"));
                }
                let preferred = self.group.nodes[replicas[0]].party;
                self.group
                    .network
                    .cut(&[self.group.nodes[number].party], &[preferred]);
                thread::sleep(Duration::from_millis(random.u64(2_500..4_500)));
                self.group.nodes[number].server.kill9();
                self.group.network.lose();
                self.come_back(number)
            }
            Fault::Partition | Fault::PartitionBeside(_) => {
                let mut island = self.group.replicas_of(number, random);
                island.truncate(fault.beside());
                island.push(number);
                self.island.store(true, Ordering::Relaxed);
                self.group.cut_off(&island);
                let new = self.group.await_promotion(number);
                if fault.beside() > 0 {
                    // The promoted server has time to grant while the old primary still has its replicas.
                    thread::sleep(Duration::from_millis(self.plan.setting.quarantine_ms));
                }
                thread::sleep(Duration::from_millis(random.u64(500..5_000)));
                self.group.network.heal();
                self.island.store(false, Ordering::Relaxed);
                new
            }
            _ => {
                self.group.nodes[number].server.kill9();
                self.come_back(number)
            }
        }
    }

    /// Waits for the other primary; restarts the dead server, and makes it a replica as an operator would.
    fn come_back(&mut self, number: usize) -> Option<(Instant, usize)> {
        let new = self.group.await_promotion(number);
        self.group.nodes[number].server.restart();
        if let Some((_, new)) = new {
            self.group.nodes[number].point(&self.group.nodes[new]);
        }
        new
    }
}

impl Scene for Watched {
    fn route(&self, on_island: bool, _: Rng) -> Box<dyn Route> {
        Box::new(BySentinel {
            sentinels: self.group.sentinels.iter().map(Sentinel::port).collect(),
            on_island,
            island: self.island.clone(),
            told: self.told.clone(),
            heard: 0,
            known: None,
        })
    }

    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted {
        let mut old = None;
        until(PATIENCE, || {
            old = self.group.primary();
            old.is_some()
        });
        let Some(old) = old else {
            return Inflicted::default();
        };
        let new = self.replace(fault, old, random);
        if new.is_none() && fault.replaces() {
            for sentinel in &self.group.sentinels {
                eprintln!("Nobody was promoted; a Sentinel's log:\n{}", sentinel.log());
            }
        }
        let healed = self.group.heals();
        Inflicted { new, healed }
    }

    fn primary_of(&self, _: &str) -> Option<usize> {
        self.group.primary()
    }

    fn nodes(&mut self) -> &mut [Node] {
        &mut self.group.nodes
    }
}
