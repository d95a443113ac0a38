//! One schedule on real servers, step by step, next to the model of it.

use std::ffi::OsString;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use dlock_harness::belief::{now, MILLISECOND};
use dlock_harness::redis::Value;
use dlock_harness::until;
use dlock_protocol::action::{Action, Full, Kept};
use dlock_protocol::conduct::{Conduct, SHORT, SKEW};
use dlock_protocol::schedule::Schedule;
use dlock_protocol::settings::{setting, with_fault, FAULTS};
use dlock_protocol::system::{Setup, System};

use crate::client::{Asked, Beliefs, Request, LOCK};
use crate::group::{lease_ms, ms, Group, Joined, Start};

/// How long a step may take that the model allows, and one that it does not.
const LONG: Duration = Duration::from_secs(6);
const SHORTLY: Duration = Duration::from_millis(700);

/// How long a request may take to be decided.
const DECISION: Duration = Duration::from_millis(300);

/// The variant with which a schedule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `dlock.replicas`, with all clauses.
    Rule,
    /// Without one clause, which the schedule's file names.
    Without(&'static str),
    /// Another setting.
    Setting(&'static str),
}

/// Settings that servers and clients can have without a module that lacks a clause.
const SETTINGS: [&str; 4] = ["nothing", "wait", "wait-all", "older"];

/// The module has one clause for this and `closed-renews`: the renewals that a closed server refuses.
const SAME: [&str; 1] = ["closed-renews-all"];

/// Schedules that show two owners on servers only sometimes.
///
/// A replica without the refusal ends the link as soon as it notices it: mostly in the iteration of the event loop in which it
/// forks the child that makes the copy, and then nothing of the copy has left.
const RACES: [(&str, &str); 1] = [("15-chained-later", "chains-ended-later")];

impl Variant {
    /// Returns all variants of a schedule; the first is the rule, and each of the others gives two owners.
    pub fn of(schedule: &Schedule) -> Vec<Variant> {
        let mut all = vec![Variant::Rule];
        if !Variant::Rule.breaks(schedule) {
            let faults = FAULTS.iter().map(|fault| fault.0);
            let named = |name: &&str| schedule.faults.iter().any(|fault| fault == name);
            let own = |name: &&str| !SAME.contains(name);
            all.extend(faults.filter(named).filter(own).map(Variant::Without));
        }
        let named = |name: &&str| schedule.breaks.iter().any(|setting| setting == name);
        all.extend(SETTINGS.into_iter().filter(named).map(Variant::Setting));
        all
    }

    /// Returns the rule, and the clause that the fewest schedules break.
    pub fn most_telling(all: &[Variant]) -> Vec<Variant> {
        let of_rule = |variant: &&Variant| matches!(variant, Variant::Without(_));
        let clause = all.iter().rfind(of_rule).or(all.get(1));
        all.iter().take(1).chain(clause).copied().collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Variant::Rule => "rule",
            Variant::Without(name) | Variant::Setting(name) => name,
        }
    }

    /// Returns the clause that the module lacks.
    pub fn of_module(self) -> Option<&'static str> {
        let whole = Conduct::replicas(1);
        match self {
            Variant::Without(name) => (with_fault(name, whole).rule != whole.rule).then_some(name),
            _ => None,
        }
    }

    fn conduct(self, replicas: u8) -> Conduct {
        let whole = Conduct::replicas(replicas);
        match self {
            Variant::Rule => whole,
            Variant::Without(name) => with_fault(name, whole),
            Variant::Setting(name) => {
                (setting(name).expect("a row of the table").setup)(replicas).conduct
            }
        }
    }

    /// Returns true if the model finds two owners.
    fn breaks(self, schedule: &Schedule) -> bool {
        schedule.breaks(self.conduct(schedule.replicas))
    }

    /// Returns the expected result on servers.
    pub fn must(self, name: &str, schedule: &Schedule) -> Must {
        match self.breaks(schedule) {
            false => Must::ShowOne,
            true if RACES.contains(&(name, self.name())) => Must::Race,
            true => Must::ShowTwo,
        }
    }
}

/// The expected result on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Must {
    /// One owner, though all steps are taken that the model allows.
    ShowOne,
    /// Two owners, as in the model.
    ShowTwo,
    /// Either: a race decides.
    Race,
}

/// The observations of a play.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How long two owners believed in the lock, if they did.
    pub together: Option<Duration>,
    /// Steps that the model allows and the servers did not take, or took otherwise.
    pub otherwise: Vec<String>,
    /// The servers' logs.
    pub logs: String,
}

impl Seen {
    /// Returns true if this is the expected result, and no step was left out.
    pub fn shows(&self, must: Must) -> bool {
        match must {
            Must::ShowOne => self.together.is_none() && self.otherwise.is_empty(),
            Must::ShowTwo | Must::Race => self.together.is_some(),
        }
    }
}

/// A schedule, and its servers.
#[derive(Clone, Copy)]
pub struct Play<'a> {
    pub schedule: &'a Schedule,
    pub variant: Variant,
    pub program: &'a OsString,
    pub module: &'a Path,
    pub tick: Duration,
}

/// Plays a schedule.
pub fn play(play: &Play) -> Seen {
    let setup = play
        .schedule
        .setup(play.variant.conduct(play.schedule.replicas));
    let steps = &play.schedule.steps;
    let restarts = |anew: bool| -> Vec<usize> {
        let who = steps.iter().filter_map(|step| match step {
            Action::Restart(x, Kept::LessAnew(_)) if anew => Some(usize::from(*x)),
            Action::Restart(x, Kept::Less(_)) if !anew => Some(usize::from(*x)),
            _ => None,
        });
        who.collect()
    };
    let start = Start {
        program: play.program,
        module: play.module,
        without: play.variant.of_module(),
        conduct: setup.conduct,
        replicas: play.schedule.replicas,
        tick: play.tick,
        has_clocks: steps.iter().any(|step| matches!(step, Action::Ahead(_))),
        logs: restarts(true),
    };
    let mut stage = Stage {
        group: Group::start(&start),
        model: System::new(&setup.world),
        setup,
        tick: play.tick,
        beliefs: Beliefs::default(),
        asked: Default::default(),
        late: Default::default(),
        otherwise: Vec::new(),
    };
    let (logs, copies) = (restarts(true), restarts(false));
    let mut saved = [None; dlock_protocol::system::NODES];
    for step in steps {
        for &number in logs.iter().chain(&copies) {
            let at = stage.model.servers[number].pos;
            if saved[number].replace(at) != Some(at) {
                stage.group.save(number, at, logs.contains(&number));
            }
        }
        stage.take(*step);
        stage.deliver_late();
    }
    stage.watch();
    Seen {
        together: stage.beliefs.together(),
        otherwise: stage.otherwise,
        logs: stage.group.logs(),
    }
}

struct Stage {
    group: Group,
    model: System,
    setup: Setup,
    tick: Duration,
    beliefs: Beliefs,
    asked: [Asked; 2],
    /// Requests that the server had not granted when their step was over: the server, and the entry that the model has for it.
    late: [Option<(usize, u8)>; 2],
    otherwise: Vec<String>,
}

impl Stage {
    /// Takes a step, in the model and on the servers. A step that the model does not allow is tried nevertheless.
    fn take(&mut self, step: Action) {
        let before = self.model;
        let applied = self.model.apply(&self.setup, step);
        let possible = applied
            && match step {
                // Otherwise the answer is that the hold has ended.
                Action::Answer(c) => {
                    let (before, after) = (&before.clients, &self.model.clients);
                    after[usize::from(c)].entry == before[usize::from(c)].asked.entry
                }
                _ => true,
            };
        let bound = if possible { LONG } else { SHORTLY };
        let done = self.act(step, &before, possible, bound);
        if possible && !done {
            self.otherwise.push(step.to_string());
        }
    }

    fn act(&mut self, step: Action, before: &System, possible: bool, bound: Duration) -> bool {
        let group = &mut self.group;
        match step {
            Action::Tick => sleep(self.tick),
            Action::Ahead(x) => {
                group.put_ahead(x.into(), self.tick * u32::from(SKEW.unsigned_abs()))
            }
            Action::Acquire(c, s) => {
                let line = format!("DLOCK.ACQUIRE {LOCK} {} {}", owner(c), lease_ms(self.tick));
                self.ask(c, s, line, self.setup.conduct.lease);
                let granted = until(DECISION, || self.is_held(c, s));
                let asked = self.model.clients[usize::from(c)].asked;
                self.late[usize::from(c)] =
                    (possible && !granted).then_some((s.into(), asked.entry));
            }
            Action::Renew {
                client,
                at,
                token,
                short,
            } => {
                let ticks = if short {
                    SHORT
                } else {
                    self.setup.conduct.lease
                };
                let mut line = format!(
                    "DLOCK.RENEW {LOCK} {} {}",
                    owner(client),
                    ms(self.tick, ticks)
                );
                if token {
                    line += &format!(" TOKEN {}", self.beliefs.token(client.into()));
                }
                if short && self.setup.conduct.believes_earlier {
                    let length = ms(self.tick, ticks - self.setup.conduct.allowance);
                    self.beliefs
                        .end(client.into(), now() + length * MILLISECOND);
                }
                self.ask(client, at, line, ticks);
                sleep(Duration::from_millis(100));
            }
            Action::Force(s) => {
                let holder = before.entries[usize::from(before.servers[usize::from(s)].pos)].holder;
                let ended = group.ask(s.into(), &format!("DLOCK.FORCERELEASE {LOCK}"));
                self.beliefs.end(holder.into(), now());
                return ended == Ok(Value::Int(1));
            }
            Action::Answer(c) => {
                return until(bound, || self.asked[usize::from(c)].is_answered());
            }
            Action::Stream(x) => return group.catch_up(x.into(), bound),
            // Only min-replicas-to-write depends on a replica's heartbeats.
            Action::Live(x) if self.setup.conduct.min_replicas > 0 => group.live(x.into()),
            Action::Promote(x) => group.promote(x.into()),
            Action::Follow(x, s) => group.follow(x.into(), s.into()),
            Action::Partial { node, heard: true } => {
                return group.join(node.into(), bound) == Some(Joined::Partially);
            }
            Action::Partial { node, heard: false } => return group.join_unheard(node.into()),
            // The joiner has loaded the copy as soon as it arrives.
            Action::Full(_, Full::Begins) => {}
            Action::Loaded(x) => return group.join(x.into(), bound) == Some(Joined::Fully),
            Action::Break(x) => group.end_link(x.into()),
            Action::Restart(x, kept) => {
                let at = match kept {
                    Kept::Less(n) | Kept::LessAnew(n) => lacking(before, x.into(), n),
                    _ => None,
                };
                if let Err(why) = group.restart(x.into(), kept, at) {
                    self.otherwise.push(why);
                    return false;
                }
            }
            // Links are held back anyway.
            Action::Live(_) | Action::Cut(_) | Action::Heal => {}
            _ => panic!("no schedule has had this step: {step}"),
        }
        true
    }

    fn ask(&mut self, client: u8, at: u8, line: String, ticks: i16) {
        let length = ms(self.tick, ticks - self.setup.conduct.allowance);
        self.asked[usize::from(client)] = Asked::begin(
            Request {
                client: client.into(),
                port: self.group.port(at.into()),
                line,
                wait: self.setup.conduct.wait,
                length: Duration::from_millis(length),
                from_answer: !self.setup.conduct.counts_from_sending,
            },
            &self.beliefs,
        );
        self.late[usize::from(client)] = None;
    }

    /// Returns true if this server knows a hold of this client.
    fn is_held(&self, client: u8, at: u8) -> bool {
        let held = self
            .group
            .ask(at.into(), &format!("DLOCK.HELD {LOCK} {}", owner(client)));
        matches!(held, Ok(Value::Array(_)))
    }

    /// Delivers late grants. A server grants nothing while too few replicas count, which the model does not know: it may grant
    /// later, and then all servers receive the grant that know it by now in the model.
    fn deliver_late(&mut self) {
        for client in 0..2 {
            let Some((at, entry)) = self.late[usize::from(client)] else {
                continue;
            };
            if !until(DECISION, || self.is_held(client, at as u8)) {
                continue;
            }
            self.late[usize::from(client)] = None;
            for x in 0..self.group.count() {
                let pos = self.model.servers[x].pos;
                let knows = self.model.entries[usize::from(pos)].line >> entry & 1 == 1;
                if x != at && self.group.master(x) == at && knows {
                    self.group.catch_up(x, LONG);
                }
            }
        }
    }

    /// Observes as long as a client believes in the lock.
    fn watch(&self) {
        while self.beliefs.together().is_none() {
            match self.beliefs.last_end() {
                Some(end) if now() < end => sleep(Duration::from_millis(20)),
                _ => break,
            }
        }
    }
}

/// Returns the entry of a server that lacks its last `n` entries.
fn lacking(model: &System, number: usize, n: u8) -> Option<u8> {
    let mut line = model.entries[usize::from(model.servers[number].pos)].line;
    for _ in 0..n {
        line &= !(1_u64.checked_shl(line.ilog2())?);
    }
    line.checked_ilog2().map(|at| at as u8)
}

fn owner(client: u8) -> char {
    char::from(b'A' + client)
}

#[cfg(test)]
mod tests {
    use dlock_protocol::schedule;

    use super::*;

    /// In every variant, one owner and two are both detected, on any run.
    #[test]
    fn every_schedule_shows_that_it_can_fail() {
        for (name, schedule) in schedule::all().expect("the schedules can be read") {
            let all = Variant::of(&schedule);
            for variants in [&all, &Variant::most_telling(&all)] {
                let must = |variant: &Variant| variant.must(&name, &schedule);
                let (rule, others) = variants.split_first().expect("the rule");
                let breaks = Variant::Rule.breaks(&schedule);
                assert_eq!(must(rule) == Must::ShowTwo, breaks, "{name}");
                assert!(others.iter().any(|it| must(it) == Must::ShowTwo), "{name}");
                assert!(others.iter().all(|it| must(it) != Must::ShowOne), "{name}");
            }
        }
    }

    #[test]
    fn a_play_that_left_out_a_step_shows_nothing() {
        let seen = |together: Option<u64>, otherwise: &[&str]| Seen {
            together: together.map(Duration::from_secs),
            otherwise: otherwise.iter().map(|step| (*step).to_owned()).collect(),
            logs: String::new(),
        };
        assert!(seen(None, &[]).shows(Must::ShowOne));
        assert!(!seen(None, &["R1 receives"]).shows(Must::ShowOne));
        assert!(!seen(Some(1), &[]).shows(Must::ShowOne));
        assert!(!seen(None, &[]).shows(Must::ShowTwo));
        assert!(seen(Some(1), &["R1 receives"]).shows(Must::ShowTwo));
    }
}
