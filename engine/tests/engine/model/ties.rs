//! The ties between holds and connections: AUTO, EPHEMERAL, heartbeats, and the losses that a connection learns.

use super::{Answer, Hold, Model};
use dlock_engine::Millis;

/// A tie between a hold and a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tie {
    pub client: u64,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    pub auto: Option<Auto>,
}

/// How the server renews a hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Auto {
    /// The lease that each renewal sets.
    pub lease: Millis,
    /// From when on, and for how long, the server renews; none without bound.
    pub bound: Option<(Millis, Millis)>,
    /// From when on, and for how long, it renews by a heartbeat that its connection has sent since.
    pub kept: Option<(Millis, Millis)>,
    pub next: Next,
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// When a quarter to a third of a lease (the second) has passed since an instant (the first): the engine chooses.
    Since(Millis, Millis),
    At(Millis),
    /// When its connection sends a heartbeat.
    Paused,
    /// Never: the hold is too old.
    Stopped,
}

/// A connection that has ties, or had them.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// When a request last blocked it.
    waited: Millis,
    /// Its losses that it has not learned yet: locks, grants, and why.
    pub lost: Vec<(String, u64, &'static str)>,
}

impl Auto {
    pub(super) fn renews(&self) -> bool {
        !matches!(self.next, Next::Paused | Next::Stopped)
    }
}

impl Model {
    /// Returns the renewal that AUTO asks for, from now on.
    pub(super) fn auto(&self, lease: Millis, ms: Millis) -> Auto {
        Auto {
            lease,
            bound: (ms > 0).then_some((self.steady, ms)),
            kept: None,
            next: Next::Since(self.steady, lease),
        }
    }

    /// Records that a connection has lost the tie of a hold, unless its own command did that.
    pub(super) fn lose(&mut self, key: &str, hold: &Hold, why: &'static str) {
        let Some(tie) = hold.tie else { return };
        let itself = ["taken", "forced"].contains(&why) && self.current_client == Some(tie.client);
        if !itself {
            self.revoke(key, hold, why);
        }
    }

    /// Records the loss of a tie where another connection tied the hold, or no connection's command ended it.
    pub(super) fn revoke(&mut self, key: &str, hold: &Hold, why: &'static str) {
        if let Some(tie) = hold.tie.filter(|tie| !self.ended.contains(&tie.client)) {
            let connection = self.connections.entry(tie.client).or_default();
            connection.lost.push((key.to_string(), hold.grant, why));
        }
    }

    /// Notes that a connection begins to wait, or has waited.
    pub(super) fn note_waiting(&mut self, client: u64) {
        let steady = self.steady;
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.waited = steady;
        }
    }

    /// Returns the holds that are tied to a connection.
    pub(super) fn ties(&self, client: u64) -> impl Iterator<Item = &Hold> {
        let holds = self.locks.values().flat_map(|lock| &lock.holds);
        holds.filter(move |hold| hold.tie.is_some_and(|tie| tie.client == client))
    }

    /// Notes that a hold is tied to this connection: from now on its losses are recorded.
    pub(super) fn note_tie(&mut self, client: u64) {
        self.connections.entry(client).or_default();
    }

    /// Forgets connections that have ended: they learn nothing more.
    pub(super) fn forget_connections(&mut self) {
        let ended = &self.ended;
        self.connections.retain(|client, _| !ended.contains(client));
    }

    /// Returns true if the time for which the server renews a hold has passed.
    fn is_over(&self, tie: &Tie) -> bool {
        let Some((since, ms)) = tie.auto.and_then(|auto| auto.bound) else {
            return false;
        };
        let blocks =
            |wait: &super::Wait| wait.asked.client == tie.client && wait.asked.channel.is_none();
        let nobody = Connection::default();
        let connection = self.connections.get(&tie.client).unwrap_or(&nobody);
        let over = |(since, ms): (Millis, Millis)| since.max(connection.waited) + ms <= self.steady;
        let kept = tie.auto.and_then(|auto| auto.kept);
        !self.waits.iter().any(blocks) && over((since, ms)) && kept.is_none_or(over)
    }

    /// Returns when the next renewal is due, on the steady clock; now if the engine is yet to choose.
    pub fn next_renewal(&self) -> Option<Millis> {
        let holds = self.locks.values().flat_map(|lock| &lock.holds);
        let nexts = holds.filter_map(|hold| match hold.tie?.auto?.next {
            Next::At(at) => Some(at),
            Next::Since(..) => Some(self.steady),
            Next::Paused | Next::Stopped => None,
        });
        nexts.min()
    }

    /// Returns true if the server may renew any hold in the future.
    pub fn may_renew(&self) -> bool {
        let asked = self.waits.iter().any(|wait| wait.asked.auto.is_some());
        asked || self.next_renewal().is_some()
    }

    /// Renews the holds whose renewal is due.
    pub(super) fn renew_by_itself(&mut self) {
        let steady = self.steady;
        self.renew_those(|tie| {
            let auto = tie.auto;
            auto.is_some_and(|auto| matches!(auto.next, Next::At(at) if at <= steady))
        });
    }

    /// Renews the holds with these ties.
    fn renew_those(&mut self, chosen: impl Fn(&Tie) -> bool) {
        let mut locks = std::mem::take(&mut self.locks);
        for hold in locks.values_mut().flat_map(|lock| &mut lock.holds) {
            let Some(tie) = hold.tie.filter(&chosen) else {
                continue;
            };
            // A hold that has ended before is not renewed.
            if hold.deadline < self.now {
                continue;
            }
            let over = self.is_over(&tie);
            let Some(auto) = hold.tie.as_mut().and_then(|tie| tie.auto.as_mut()) else {
                continue;
            };
            if over {
                auto.next = Next::Paused;
                continue;
            }
            let lease = auto.lease.min(self.policy.max_lease_ms);
            let wanted = self.now + lease;
            let bounded = self.bounded(hold.since, wanted);
            hold.deadline = hold.deadline.max(bounded);
            auto.next = match bounded < wanted {
                true => Next::Stopped,
                false => Next::Since(self.steady, lease),
            };
        }
        self.locks = locks;
    }

    /// Answers a connection's heartbeat.
    pub(super) fn keep(&mut self, client: u64, ms: Millis) -> Answer {
        let (now, steady) = (self.now, self.steady);
        let count = self.ties(client).count();
        let autos = self
            .ties(client)
            .filter(|hold| hold.tie.is_some_and(|tie| tie.auto.is_some()));
        let left = autos.map(|hold| hold.deadline - now).min();
        let mut lost = Vec::new();
        if let Some(connection) = self.connections.get_mut(&client) {
            lost = std::mem::take(&mut connection.lost);
        }
        let waited = self.connections.get(&client).map_or(0, |its| its.waited);
        let holds = self.locks.values_mut().flat_map(|lock| &mut lock.holds);
        let ties = holds.filter_map(|hold| hold.tie.as_mut());
        let autos = ties
            .filter(|tie| tie.client == client)
            .filter_map(|tie| tie.auto.as_mut());
        for auto in autos {
            let later = |(since, kept): (Millis, Millis)| since.max(waited) + kept > steady + ms;
            if !auto.kept.is_some_and(later) {
                auto.kept = Some((steady, ms));
            }
        }
        self.renew_those(|tie| {
            let auto = tie.auto.filter(|_| tie.client == client);
            auto.is_some_and(|auto| auto.next == Next::Paused)
        });
        Answer::KeepReply(count, left, lost)
    }
}
