//! The engine's state, and its getters that need no lock's name.

use super::counters::{ClockLead, Counters};
use super::holds::{HoldTable, TieId};
use super::lock::Lock;
use super::log::{How, Log, Origin, Subject};
use super::outbox::{Outcome, Output, Promise};
use super::policy::Policy;
use super::queue::{Departed, LockId, Part, Requests, WaitQueues};
use super::refusal::Refusal;
use super::types::{Arrival, ClientId, Millis, Name, Now, Party, RequestId, SteadyMs, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

/// A wall clock that drifts from the steady one by less than this between two comparisons has only been slewed (1 s).
const STEP_US: i64 = 1_000_000;

/// The lock engine: all wait queues, ties and deadlines. The crate's documentation says how to use it.
#[derive(Debug, Clone, Default)]
pub struct Engine {
    /// What the operator has configured.
    pub(super) policy: Policy,
    /// The holds' side of all decisions: tokens, ties, counters, timers.
    pub(super) holds: HoldTable,
    /// The clocks, when they were last compared.
    clocks: Option<Now>,
    /// The answers that this event has put out, in the order in which they were decided.
    pub(super) outbox: Vec<Output>,
    pub(super) queues: WaitQueues,
    pub(super) requests: Requests,
    /// Until when the absent tickets of values that have left their names are kept, by their numbers. A value that has only moved
    /// takes the windows along.
    pub(super) windows: BTreeMap<Arrival, SteadyMs>,
    /// Locks that are to be settled, in order.
    pub(super) dirty: VecDeque<LockId>,
    /// Names without a queue at which values have arrived. They are watched in steps; a request that uses one first settles it.
    pub(super) arrived: VecDeque<Name>,
    /// Follow-ups of settlements, which run before the event ends.
    pub(super) follow_ups: BTreeSet<FollowUp>,
    /// Places and holders to be freed in steps.
    pub(super) garbage: VecDeque<Garbage>,
    /// Requests for many locks that have left, and whose places are removed in steps.
    pub(super) left: VecDeque<Left>,
    /// New holds of undelivered answers.
    pub(super) undelivered: BTreeMap<Token, Promise>,
    /// Parties that have ended, while what belonged to them is being cleared away.
    pub(super) ended: BTreeMap<Party, Ending>,
    /// Until when the server has read what had arrived; none if it reads all at once.
    pub(super) read: Option<SteadyMs>,
    /// Requests whose time is up, in order. Until they are answered they may be granted what has come free.
    pub(super) overdue: VecDeque<RequestId>,
    /// Position of the once-a-second scan, which finds what the server does not report.
    pub(super) scan: ScanCursor,
    /// Whether a compatible head was not granted because nothing is granted for now.
    pub(super) held_back: bool,
}

/// A follow-up of a settlement, in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FollowUp {
    /// A place in this lock's queue has gone with one elsewhere.
    Lock(LockId),
    /// A request for many locks may be grantable: it heads a queue. Older requests come first.
    Many(RequestId),
}

/// How far the holds of a party that has ended are cleared away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    /// The last hold that had to be left, since its slot is migrating away.
    pub after: Option<TieId>,
    /// What happens to the holds.
    pub fate: Fate,
}

/// What happens to the holds of a party that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Those that are tied to the connection for life end; the leases of the others run on.
    Closes,
    /// All are released: the program has ended its session.
    Releases,
    /// All leases run on: the session has begun again.
    Unties,
}

/// A request for many locks that has left.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    /// Its number, which its places still have.
    pub id: RequestId,
    /// Whether its time was up.
    pub timed_out: bool,
    /// The places that are left.
    pub parts: std::vec::IntoIter<Part>,
}

/// Something that has gone as one piece, and is freed in steps.
#[derive(Debug, Clone)]
pub(crate) enum Garbage {
    /// Places with their windows.
    Places(Departed),
    /// Holders.
    Holders(Lock),
}

/// Position of the once-a-second scan.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum ScanCursor {
    /// At its end.
    #[default]
    Over,
    /// At the names without a value, from here on.
    Names(Bound<LockId>),
    /// At the ties above this one.
    Ties(TieId),
}

impl Engine {
    /// Returns the settings that the engine uses.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns what has been counted and timed.
    pub fn counters(&self) -> &Counters {
        &self.holds.counters
    }

    /// Begins all counts again.
    pub fn reset_counters(&mut self) {
        self.holds.counters.reset();
        self.holds.sessions.reset_count();
    }

    /// Counts a request that was refused.
    #[cold]
    pub fn count_refusal(&mut self, refusal: &Refusal) {
        self.holds.counters.refusals.count(refusal);
    }

    /// Logs a request that was refused at once, if that is not ordinary.
    #[cold]
    pub fn log_refusal(&mut self, refusal: &Refusal, subject: impl FnOnce() -> Subject, now: Now) {
        let Some(how) = How::of_refusal(refusal) else {
            return;
        };
        let mut subject = subject();
        if let Refusal::At(_, key) = refusal {
            subject.name.key = Rc::from(&**key);
        }
        let queue = self.queues.at(self.queues.id(subject.name.as_ref()));
        let waiting = queue.others(&subject.owner);
        self.holds.log.add(now, subject, how, waiting);
    }

    /// Returns what was not ordinary.
    pub fn log(&self) -> &Log {
        &self.holds.log
    }

    /// Forgets what was not ordinary.
    pub fn reset_log(&mut self) {
        self.holds.log.clear();
    }

    /// Returns true if the log has entries whose connections [`Engine::note_origins`] has not asked for.
    #[inline(always)]
    pub fn has_unseen_entries(&self) -> bool {
        self.holds.log.has_unseen()
    }

    /// Asks where the connections of the log's new entries come from, and notes it there.
    pub fn note_origins(&mut self, origin: impl FnMut(ClientId) -> Option<Origin>) {
        self.holds.log.note_origins(origin);
    }

    /// Compares the wall clock with the one that never steps. Returns by how many milliseconds it has stepped since the last call, if
    /// it has, and counts the step. What was known of its lead over the primary's is then no longer true.
    pub fn observe_clocks(&mut self, now: Now) -> Option<i64> {
        let last = self.clocks.replace(now)?;
        let passed = now.steady_us.wrapping_sub(last.steady_us) as i64;
        let step = (now.us.wrapping_sub(last.us) as i64).wrapping_sub(passed);
        if step.abs() < STEP_US {
            return None;
        }
        self.holds.counters.clock_steps += 1;
        self.holds.counters.clock_lead = ClockLead::default();
        Some(step / 1_000)
    }

    /// Returns by how many milliseconds this server's clock is ahead of its primary's, if that is too much and was not at the last
    /// call.
    pub fn begins_to_lead(&mut self, now: Now) -> Option<Millis> {
        self.holds.counters.clock_lead.begins_to_matter(now)
    }

    /// Counts a lock that the server has evicted.
    pub fn count_eviction(&mut self) {
        self.holds.counters.evicted += 1;
    }

    /// Notes a token, or a ticket's number, of a loaded value: the next numbers are above it.
    pub fn observe_number(&mut self, number: u64, now: Now) {
        self.holds.tokens.observe(number, now);
    }

    /// Takes out the answers that are to be sent, in order, and counts the refusals among them. The caller sends them after each
    /// event.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        let outputs = std::mem::take(&mut self.outbox);
        for output in &outputs {
            if let Outcome::Refused(refusal) = &output.outcome {
                self.count_refusal(refusal);
            }
        }
        outputs
    }

    /// Returns true if answers are to be sent.
    pub fn has_outputs(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Puts out an answer that the caller has held back.
    pub fn push_output(&mut self, output: Output) {
        self.outbox.push(output);
    }

    /// Returns true if something is tied to this connection, or was, or if it keeps a session.
    pub fn has_connection(&self, client: ClientId) -> bool {
        self.holds.ties.has_connection(client) || self.holds.sessions.keeps(client)
    }

    /// Returns the holds' side of all decisions, for tests: they look behind the requests, and plant faults there.
    #[doc(hidden)]
    pub fn holds(&self) -> &HoldTable {
        &self.holds
    }

    /// Returns mutable access to the holds' side of all decisions, for tests.
    #[doc(hidden)]
    pub fn holds_mut(&mut self) -> &mut HoldTable {
        &mut self.holds
    }

    /// Notes that the server has read what had arrived by then. Claim windows and sessions end no later than that: what would prolong
    /// them may have arrived while the server stalled.
    pub fn note_read(&mut self, until: SteadyMs) {
        self.read = Some(until);
    }

    /// Returns true if a claim window or a session ends as soon as the server has read what had arrived.
    pub fn awaits_read(&self, now: Now) -> bool {
        let next = self.holds.windows.next();
        next.is_some_and(|at| at <= now.steady() && at > self.read_until(now))
    }

    /// Returns until when the server has read what had arrived.
    pub(super) fn read_until(&self, now: Now) -> SteadyMs {
        self.read
            .map_or(now.steady(), |read| read.min(now.steady()))
    }

    /// Returns how many sessions there are, and how many of them are not alive.
    pub fn sessions(&self) -> (usize, usize) {
        let sessions = &self.holds.sessions;
        (sessions.len(), sessions.not_alive())
    }

    /// Returns how many rows programs have not seen, and how many times sessions were restarted.
    pub fn session_rows(&self) -> (usize, u64) {
        let sessions = &self.holds.sessions;
        (sessions.rows(), sessions.restarts())
    }

    /// Returns how many holds end with a connection.
    pub fn ephemeral(&self) -> usize {
        self.holds.ties.ephemeral()
    }

    /// Returns how many holds the server renews.
    pub fn autos(&self) -> usize {
        self.holds.ties.autos()
    }

    /// Returns how many places are queued over all locks.
    pub fn places(&self) -> usize {
        self.queues.places()
    }

    /// Returns for how many milliseconds the oldest place has been queued, over all locks; 0 if nobody is queued. It may be too high by
    /// less than a second.
    pub fn oldest_wait_ms(&self, now: Now) -> Millis {
        let oldest = self.queues.oldest_us();
        oldest.map_or(0, |since_us| now.steady_us.saturating_sub(since_us) / 1000)
    }

    /// Returns true if settlements are pending.
    pub fn unsettled(&self) -> bool {
        !(self.dirty.is_empty()
            && self.arrived.is_empty()
            && self.left.is_empty()
            && self.undelivered.is_empty()
            && self.ended.is_empty()
            && self.overdue.is_empty()
            && !self.holds.ties.has_due()
            && self.garbage.is_empty())
    }

    /// Returns true if no lock has a queue or is watched, and no hold is tied: then nothing is due or to be settled.
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
            && self.holds.ties.is_empty()
            && self.holds.sessions.is_empty()
            && self.undelivered.is_empty()
            && self.overdue.is_empty()
            && self.arrived.is_empty()
            && self.left.is_empty()
            && self.windows.is_empty()
            && self.garbage.is_empty()
    }

    /// Returns in how many milliseconds something is due; 0 if it is already, none if nothing is.
    pub fn next_wakeup(&self, now: Now) -> Option<Millis> {
        let granting = Some(self.policy.quarantine_until);
        let granting = granting.filter(|_| self.held_back && self.policy.grants);
        let due = self.holds.next_due(now.steady(), self.read_until(now));
        let steady = due.into_iter().chain(granting).min();
        let in_wall = self.queues.next_lease().map(|at| at.since(now.wall()));
        let in_steady = steady.map(|at| at.since(now.steady()));
        in_wall.into_iter().chain(in_steady).min()
    }

    /// Returns for how many milliseconds something has been due; 0 if nothing is.
    pub fn overdue(&self, now: Now) -> Millis {
        let wall = self
            .queues
            .next_lease()
            .map_or(0, |at| now.wall().since(at));
        let steady = self.holds.next_due(now.steady(), self.read_until(now));
        wall.max(steady.map_or(0, |at| now.steady().since(at)))
    }
}
