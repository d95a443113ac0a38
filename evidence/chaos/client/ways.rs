//! The ways to ask for a lock, one per client.

use super::hold::Hold;
use super::{Client, LEASE_MS};
use crate::history::{Belief, End, Ticket, Wait, SECOND};
use crate::link::Reply;

/// How long a ticket is kept for an owner that cannot ask: longer than the replacement of a primary.
pub const CLAIM_MS: u64 = 12_000;

/// The length of one slice of a wait for a ticket's turn.
const SLICE_MS: u64 = 1_000;

/// An owner without a turn within these microseconds gives its ticket up.
const TICKET_PATIENCE: u64 = 40 * SECOND;

/// The locks of the pulses; in a new cluster each is at another primary.
pub const PULSES: [&str; 3] = ["{p3}", "{p2}", "{p0}"];

/// A pulse's lease: a fault leaves it behind for a short time only.
const PULSE_LEASE_MS: u64 = 300;

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// ACQUIRE … BLOCK, for an exclusive lock.
    Block,
    /// ACQUIRE … BLOCK … SHARED, LIMIT, or exclusive.
    Share,
    /// MACQUIRE of two locks.
    Many,
    /// FAIRACQUIRE … CLAIM, in slices.
    Ticket,
    /// ACQUIRE … BLOCK … EPHEMERAL, then RENEW … EPHEMERAL AUTO.
    Ephemeral,
    /// ACQUIRE … HOLDS 1 without waiting, sent again after a lost answer.
    Try,
    /// ACQUIRE of a lock that no other client wants, again and again: its grants show the times without any.
    Pulse,
    /// ACQUIRE and FAIRACQUIRE … IN a session, and SESSION.
    Session,
}

impl Way {
    /// The clients of a run: patient ones wait for long in one place.
    pub const CREW: [(Way, bool); 24] = [
        (Way::Block, false),
        (Way::Block, true),
        (Way::Block, false),
        (Way::Block, true),
        (Way::Share, false),
        (Way::Share, true),
        (Way::Many, false),
        (Way::Many, true),
        (Way::Session, false),
        (Way::Session, true),
        (Way::Ticket, false),
        (Way::Ticket, true),
        (Way::Ephemeral, false),
        (Way::Try, true),
        (Way::Pulse, false),
        (Way::Share, true),
        (Way::Pulse, false),
        (Way::Session, true),
        (Way::Pulse, false),
        (Way::Ephemeral, true),
        (Way::Session, false),
        (Way::Session, true),
        (Way::Session, true),
        (Way::Session, false),
    ];

    /// Returns the locks of this way: few, so that there is a queue.
    pub(super) fn locks(self) -> &'static [&'static str] {
        match self {
            Way::Block | Way::Ephemeral | Way::Try | Way::Session => {
                &["{m0}", "{m1}", "{m2}", "{m3}", "{m4}", "{m5}"]
            }
            Way::Share => &["{s0}"],
            Way::Many => &["{g0}a", "{g0}b", "{g0}c"],
            Way::Ticket => &["{t0}"],
            Way::Pulse => &PULSES,
        }
    }
}

/// Returns all locks of a run.
pub fn all_locks() -> Vec<&'static str> {
    [Way::Block, Way::Share, Way::Many, Way::Ticket, Way::Pulse]
        .iter()
        .flat_map(|way| way.locks())
        .copied()
        .collect()
}

impl Client<'_> {
    /// Makes one request, and handles its outcome.
    pub(super) fn turn(&mut self) {
        let locks = self.way.locks();
        let lock = locks[self.random.usize(..locks.len())];
        match self.way {
            Way::Block => self.block(lock, &[], 1),
            Way::Share => match self.random.u8(0..3) {
                0 => self.block(lock, &["SHARED"], 0),
                1 => self.block(lock, &["LIMIT", "2"], 2),
                _ => self.block(lock, &[], 1),
            },
            Way::Ephemeral => self.block(lock, &["EPHEMERAL"], 1),
            Way::Many => self.many(),
            Way::Ticket => self.ticket(lock),
            Way::Try => self.try_now(lock),
            Way::Pulse => self.pulse(),
            Way::Session => self.session(),
        }
    }

    fn block(&mut self, lock: &str, options: &[&str], limit: u64) {
        let owner = self.fresh_owner();
        let (lease, block_ms) = (LEASE_MS.to_string(), self.block_ms());
        let block = block_ms.to_string();
        let mut words = vec!["DLOCK.ACQUIRE", lock, &owner, &lease, "BLOCK", &block];
        words.extend(options);
        let asked = self.shared.now();
        let (reply, at) = self.call(lock, &words, block_ms);
        self.note_wait(lock, &owner, asked, &reply);
        if let Some([token, _]) = reply.integers().as_deref() {
            let mut hold = Hold::new(lock, &owner, *token, asked, at);
            hold.limit = limit;
            hold.tied = options.contains(&"EPHEMERAL");
            self.use_hold(hold);
        } else {
            self.cool_down(&reply);
        }
    }

    fn many(&mut self) {
        let owner = self.fresh_owner();
        let locks = Way::Many.locks();
        let first = self.random.usize(..locks.len());
        let second = (first + self.random.usize(1..locks.len())) % locks.len();
        let (one, two) = (locks[first], locks[second]);
        let (lease, block_ms) = (LEASE_MS.to_string(), self.block_ms());
        let block = block_ms.to_string();
        let words = [
            "DLOCK.MACQUIRE",
            "2",
            one,
            two,
            &owner,
            &lease,
            "BLOCK",
            &block,
        ];
        let asked = self.shared.now();
        let (reply, at) = self.call(one, &words, block_ms);
        if let Some([first, second]) = reply.integers().as_deref() {
            let hold = |lock, token| Hold::new(lock, &owner, token, asked, at);
            self.use_holds(vec![hold(one, *first), hold(two, *second)]);
        } else {
            self.cool_down(&reply);
        }
    }

    fn try_now(&mut self, lock: &str) {
        let owner = self.fresh_owner();
        let lease = LEASE_MS.to_string();
        let words = ["DLOCK.ACQUIRE", lock, &owner, &lease, "HOLDS", "1"];
        let asked = self.shared.now();
        let (mut reply, mut at) = self.call(lock, &words, 0);
        let is_plain = !matches!(reply, Reply::Closed | Reply::NoAnswer);
        if !is_plain {
            (reply, at) = self.call(lock, &words, 0);
        }
        if let Some([token, _]) = reply.integers().as_deref() {
            let mut hold = Hold::new(lock, &owner, *token, asked, at);
            hold.is_plain = is_plain;
            self.use_hold(hold);
        } else {
            self.cool_down(&reply);
        }
    }

    /// Takes its own lock and releases it.
    fn pulse(&mut self) {
        let lock = PULSES[self.number % PULSES.len()];
        let owner = self.fresh_owner();
        let lease = PULSE_LEASE_MS.to_string();
        let asked = self.shared.now();
        let (reply, at) = self.call(lock, &["DLOCK.ACQUIRE", lock, &owner, &lease], 0);
        let granted = reply.integers();
        let Some([token, _]) = granted.as_deref() else {
            self.pause(20);
            return;
        };
        let from = self.shared.now();
        let until = (asked + PULSE_LEASE_MS * 1_000).max(from);
        let hold = Hold::new(lock, &owner, *token, asked, at);
        let released = self.shared.now();
        let reply = self.release(&hold);
        let is_over = released >= until;
        let is_lost = reply.is_error("NOTHELD") && self.shared.now() < until;
        self.notes.beliefs.push(Belief {
            token: *token,
            asked,
            end: match (is_over, is_lost) {
                (true, _) => End::RanOut,
                (_, true) => End::Lost,
                _ => End::Released,
            },
            server: at,
            ..Belief::new(lock, owner, from, released.min(until))
        });
    }

    /// Keeps a place by ticket until its turn.
    fn ticket(&mut self, lock: &str) {
        let owner = self.fresh_owner();
        let (lease, claim, slice) = (
            LEASE_MS.to_string(),
            CLAIM_MS.to_string(),
            SLICE_MS.to_string(),
        );
        let asked = self.shared.now();
        let words = [
            "DLOCK.FAIRACQUIRE",
            lock,
            &owner,
            &lease,
            "CLAIM",
            &claim,
            "BLOCK",
            &slice,
        ];
        let mut sent = asked;
        let (mut reply, mut at) = self.call(lock, &words[..6], 0);
        // A client that gives up without an answer may leave an unclaimed ticket behind.
        while !matches!(reply, Reply::Value(_)) && !self.shared.has_ended() {
            self.cool_down(&reply);
            sent = self.shared.now();
            (reply, at) = self.call(lock, &words[..6], 0);
        }
        let placed = self.shared.now();
        let mut until = placed;
        let mut token = None;
        loop {
            if let Some([granted, _]) = reply.integers().as_deref() {
                token = Some(*granted);
                until = self.shared.now();
                break;
            }
            if self.shared.has_ended() || self.shared.now() - placed > TICKET_PATIENCE {
                self.call(lock, &["DLOCK.CANCEL", lock, &owner], 0);
                break;
            }
            sent = self.shared.now();
            (reply, at) = self.call(lock, &words, SLICE_MS);
            match reply.kind() {
                "null" => until = self.shared.now(),
                "done" => {}
                _ => self.cool_down(&reply),
            }
        }
        self.notes.waits.push(Wait {
            lock: lock.into(),
            owner: owner.clone(),
            from: placed,
            until,
        });
        self.notes.tickets.push(Ticket {
            lock: lock.into(),
            owner: owner.clone(),
            asked,
            placed,
            until,
            token,
        });
        if let Some(token) = token {
            let mut hold = Hold::new(lock, &owner, token, asked, at);
            // An earlier slice without an answer may still be under way.
            (hold.sent, hold.is_plain) = (sent, false);
            self.use_hold(hold);
        }
    }

    /// Records a wait. Only one that the server has answered is known to have stood there all the time.
    fn note_wait(&mut self, lock: &str, owner: &str, from: u64, reply: &Reply) {
        if matches!(reply, Reply::Value(_)) {
            self.notes.waits.push(Wait {
                lock: lock.into(),
                owner: owner.into(),
                from,
                until: self.shared.now(),
            });
        }
    }

    /// Asks less often after a refusal.
    pub(super) fn cool_down(&self, reply: &Reply) {
        if !matches!(reply, Reply::Value(_)) {
            self.pause(150);
        }
    }
}
