//! A client with a lock: it believes at the grant or confirms it, works, writes, renews, and releases or is late.

use std::time::Duration;

use super::{Client, LEASE_MS};
use crate::history::{Belief, End, Micros, Write, SECOND};
use crate::link::Reply;
use crate::setting::Replicas;

/// How long WAIT waits for a replica.
const WAIT_MS: u64 = 1_000;

/// How long the server renews by itself at most.
const AUTO_MS: u64 = 60_000;

/// An allowance for clocks.
const ALLOWANCE_MS: u64 = 2;

/// The pause before it repeats a release that the server has refused.
const AGAIN_MS: u64 = 100;

/// How much longer a late writer waits after the end of its lease, so that no rounding lets it in.
const LATE_MS: u64 = 50;

/// The count of successful WAITs.
pub const REPLICATED: &str = "replicated";

/// A hold, as its owner knows it.
pub(super) struct Hold {
    pub lock: String,
    pub owner: String,
    pub token: u64,
    pub limit: u64,
    /// When the place was first asked for.
    pub asked: Micros,
    /// When the request that was granted was sent.
    pub sent: Micros,
    /// The server that granted it.
    pub server: u16,
    /// Whether the grant came as the answer to its request, which was sent once. Then no other request is under way, and WAIT on
    /// that connection is about this one.
    pub is_plain: bool,
    /// Whether the server renews it, and ends it with the connection.
    pub tied: bool,
    /// The server of the tie, and since when: an earlier connection was another.
    tied_at: u16,
    tied_since: Micros,
    /// When the owner began to believe.
    pub from: Micros,
    /// Whether it was renewed before it was believed.
    pub renewed: bool,
    /// Until when the owner believes: counted from the sending of the last answered request.
    pub deadline: Micros,
    /// The latest instant at which the hold can be alive.
    pub alive_until: Micros,
}

impl Hold {
    pub fn new(lock: &str, owner: &str, token: u64, asked: Micros, server: u16) -> Hold {
        Hold {
            lock: lock.into(),
            owner: owner.into(),
            token,
            limit: 1,
            asked,
            sent: asked,
            server,
            is_plain: true,
            tied: false,
            tied_at: 0,
            tied_since: 0,
            from: 0,
            renewed: false,
            deadline: 0,
            alive_until: 0,
        }
    }
}

impl Hold {
    /// Returns true if the server may keep the hold for longer than its owner believes. It renews a tied hold as long as the
    /// connection is open, and a lease begins later than the request if that had to wait.
    fn outlives_belief(&self) -> bool {
        self.tied || self.alive_until > self.deadline + SECOND
    }
}

/// Returns how long a lease is believed in, in microseconds: servers count in whole milliseconds and round down.
pub(super) fn believed(left_ms: u64) -> Micros {
    left_ms.saturating_sub(ALLOWANCE_MS) * 1_000
}

/// The news about its hold that a holder learns from a call.
#[derive(PartialEq)]
pub(super) enum Learned {
    Holds,
    Lost,
    Nothing,
}

impl Client<'_> {
    /// Works with a hold, from the confirmation on.
    pub(super) fn use_hold(&mut self, hold: Hold) {
        self.use_holds(vec![hold]);
    }

    /// Works with several holds that were granted together.
    pub(super) fn use_holds(&mut self, mut holds: Vec<Hold>) {
        let at_once = self.shared.believes_grants && self.random.bool();
        let learned: Vec<Learned> = holds
            .iter_mut()
            .map(|hold| {
                if at_once && self.shared.now() < hold.sent + believed(LEASE_MS / 2) {
                    return self.believe(hold);
                }
                hold.renewed = true;
                self.renew(hold)
            })
            .collect();
        if learned.iter().any(|learned| *learned != Learned::Holds) {
            for (hold, learned) in holds.into_iter().zip(learned) {
                self.give_up(hold, learned);
            }
            return;
        }
        let now = self.shared.now();
        holds.iter_mut().for_each(|hold| hold.from = now);
        let (work_ms, renews) = self.plan();
        let end = now + work_ms * 1_000;
        let mut lost = vec![None; holds.len()];
        loop {
            let now = self.shared.now();
            if now >= end || self.shared.has_ended() {
                break;
            }
            let step = self.random.u64(5..250).min((end - now) / 1_000 + 1);
            self.pause(step);
            for (hold, lost) in holds.iter_mut().zip(&mut lost) {
                if lost.is_none() && self.step(hold, renews) == Learned::Lost {
                    let now = self.shared.now();
                    // After its deadline the answer is no news.
                    *lost = Some((now, End::Lost)).filter(|_| now < hold.deadline);
                }
                if hold.tied && lost.is_none() {
                    // Giving up the connection gives up its ties.
                    let given_up = self.given_up.get(&hold.tied_at).copied();
                    let at = given_up.filter(|at| *at > hold.tied_since);
                    *lost = at.map(|at| (at.min(hold.deadline), End::Released));
                }
            }
            if lost.iter().all(Option::is_some) {
                break;
            }
            let now = self.shared.now();
            if holds.iter().all(|hold| now >= hold.deadline) {
                break;
            }
        }
        for (hold, lost) in holds.into_iter().zip(lost) {
            self.finish(hold, lost);
        }
    }

    /// Releases a grant that could not be confirmed. No client has believed in it, but its token counts, and so does its loss, if
    /// its lease must have been running when the server did not know it.
    fn give_up(&mut self, hold: Hold, learned: Learned) {
        let now = self.shared.now();
        self.release(&hold);
        let is_lost =
            learned == Learned::Lost && !hold.tied && now < hold.asked + believed(LEASE_MS);
        let end = if is_lost { End::Lost } else { End::Unconfirmed };
        self.note_belief(&hold, now, now, end);
    }

    pub(super) fn note_belief(&mut self, hold: &Hold, from: Micros, until: Micros, end: End) {
        assert!(from >= hold.asked, "a grant is recorded before its request");
        self.notes.beliefs.push(Belief {
            lock: hold.lock.clone(),
            owner: hold.owner.clone(),
            token: hold.token,
            limit: hold.limit,
            asked: hold.asked,
            from,
            until,
            end,
            server: hold.server,
            renewed: hold.renewed,
        });
    }

    /// Returns how long it works, and whether it renews. Most work is short; some needs more than a lease.
    pub(super) fn plan(&mut self) -> (u64, bool) {
        match self.random.u8(0..10) {
            0..=6 => (self.random.u64(5..60), false),
            7 | 8 => (self.random.u64(500..LEASE_MS), false),
            _ => (self.random.u64(LEASE_MS..LEASE_MS * 2), true),
        }
    }

    fn step(&mut self, hold: &mut Hold, renews: bool) -> Learned {
        if self.shared.now() >= hold.deadline {
            return Learned::Nothing;
        }
        match self.random.u8(0..4) {
            0 if renews && !hold.tied => self.renew(hold),
            1 | 2 if hold.tied => self.look(hold),
            _ if hold.limit == 1 => self.write(hold),
            _ => self.look(hold),
        }
    }

    /// Believes in a grant at once. It does not say when its lease began: no earlier than the request.
    fn believe(&mut self, hold: &mut Hold) -> Learned {
        let received = self.shared.now();
        if self.waits() && !(hold.is_plain && self.is_replicated(hold.server)) {
            // WAIT would be about another write, or was in vain.
            hold.renewed = true;
            return self.renew(hold);
        }
        hold.alive_until = if hold.is_plain && !hold.tied {
            received + LEASE_MS * 1_000
        } else {
            Micros::MAX
        };
        (hold.tied_at, hold.tied_since) = (hold.server, received);
        hold.deadline = hold.sent + believed(LEASE_MS);
        Learned::Holds
    }

    pub(super) fn waits(&self) -> bool {
        self.shared.setting.wait != Replicas::None
    }

    /// Renews, which confirms and ties; and sends WAIT, if the setting asks for it.
    fn renew(&mut self, hold: &mut Hold) -> Learned {
        let (token, lease, auto) = (
            hold.token.to_string(),
            LEASE_MS.to_string(),
            AUTO_MS.to_string(),
        );
        let mut words = vec![
            "DLOCK.RENEW",
            &hold.lock,
            &hold.owner,
            &lease,
            "TOKEN",
            &token,
        ];
        if hold.tied {
            words.extend(["EPHEMERAL", "AUTO", &auto]);
        }
        let sent = self.shared.now();
        let (reply, port) = self.call(&hold.lock, &words, 0);
        let Some(left_ms) = reply.integer() else {
            let unknown = matches!(reply, Reply::Closed | Reply::NoAnswer);
            if unknown || reply.is_error("NOACK") {
                // It may have been carried out, or may yet be.
                hold.alive_until = Micros::MAX;
            }
            return learned(&reply);
        };
        let received = self.shared.now();
        hold.alive_until = hold.alive_until.max(received + left_ms * 1_000);
        (hold.tied_at, hold.tied_since) = (port, received);
        if hold.tied {
            hold.alive_until = Micros::MAX;
        }
        if self.waits() && !self.is_replicated(port) {
            return Learned::Nothing;
        }
        hold.deadline = hold.deadline.max(sent + believed(left_ms));
        Learned::Holds
    }

    /// Sends WAIT on the connection that wrote.
    pub(super) fn is_replicated(&mut self, port: u16) -> bool {
        if !self.links.contains_key(&port) {
            return false;
        }
        let bound = Duration::from_millis(2 * WAIT_MS);
        let needed = self.shared.setting.wait.of(self.shared.replicas);
        let words = ["WAIT", &needed.to_string(), &WAIT_MS.to_string()];
        let reply = self.call_at(port, &words, bound);
        let is_replicated = reply.integer() >= Some(needed as u64);
        let how = if is_replicated { REPLICATED } else { "in vain" };
        self.count("WAIT", how);
        is_replicated
    }

    /// Sends HELD; at another server than that of the tie, it ties the hold again.
    fn look(&mut self, hold: &mut Hold) -> Learned {
        let sent = self.shared.now();
        let words = ["DLOCK.HELD", &hold.lock, &hold.owner];
        let (reply, port) = self.call(&hold.lock, &words, 0);
        match reply.integers().as_deref() {
            Some([token, _, left_ms]) if *token == hold.token => {
                if hold.tied {
                    // The server's own renewals, under the settings that need no WAIT.
                    if !self.waits() && !self.shared.setting.confirms {
                        hold.deadline = hold.deadline.max(sent + believed(*left_ms));
                    }
                    if port != hold.tied_at {
                        return self.renew(hold);
                    }
                }
                Learned::Holds
            }
            Some(_) => Learned::Lost,
            None if reply.kind() == "null" => Learned::Lost,
            None => learned(&reply),
        }
    }

    /// Sends a write that the server accepts only under the hold.
    pub(super) fn write(&mut self, hold: &Hold) -> Learned {
        let token = hold.token.to_string();
        let log = log_of(&hold.lock);
        let words = ["DLOCK.GUARD", &hold.lock, &token, "RPUSH", &log, &token];
        let sent = self.shared.now();
        let (reply, _) = self.call(&hold.lock, &words, 0);
        self.notes.writes.push(Write {
            lock: hold.lock.clone(),
            token: hold.token,
            sent,
            alive_until: hold.alive_until,
            done: reply.integer().is_some(),
        });
        learned(&reply)
    }

    fn finish(&mut self, hold: Hold, lost: Option<(Micros, End)>) {
        let now = self.shared.now();
        let mut until = now.min(hold.deadline);
        let mut end = if now < hold.deadline {
            End::Released
        } else {
            End::RanOut
        };
        if let Some(lost) = lost {
            (until, end) = lost;
        } else if end == End::RanOut && hold.outlives_belief() {
            self.release(&hold);
        } else if end == End::RanOut || self.is_suspended(&hold) {
            until = hold.deadline;
            end = End::RanOut;
            self.write_late(&hold);
        } else {
            let reply = self.release(&hold);
            if reply.is_error("NOTHELD") && self.shared.now() < hold.deadline {
                end = End::Lost;
            }
        }
        self.note_belief(&hold, hold.from, until, end);
    }

    /// Returns true if its process is suspended until its lease is over.
    fn is_suspended(&mut self, hold: &Hold) -> bool {
        hold.limit == 1 && !hold.outlives_belief() && self.random.u8(0..40) == 0
    }

    /// Writes after the lease is over, as a client that was suspended.
    fn write_late(&mut self, hold: &Hold) {
        if hold.limit != 1 || hold.alive_until == Micros::MAX {
            return;
        }
        let left = hold.alive_until.saturating_sub(self.shared.now()) / 1_000;
        self.pause(left + LATE_MS);
        self.write(hold);
    }

    pub(super) fn release_once(&mut self, hold: &Hold) -> Reply {
        let token = hold.token.to_string();
        let words = [
            "DLOCK.RELEASE",
            &hold.lock,
            &hold.owner,
            "HOLDS",
            "0",
            "TOKEN",
            &token,
        ];
        self.call(&hold.lock, &words, 0).0
    }

    pub(super) fn release(&mut self, hold: &Hold) -> Reply {
        loop {
            let reply = self.release_once(hold);
            // A server that has too few replicas for a moment leaves others waiting until the lease is over.
            if !reply.is_error("NOREPLICAS") || self.shared.now() >= hold.deadline {
                return reply;
            }
            self.pause(AGAIN_MS);
        }
    }
}

/// Returns the list that a lock guards, in the lock's slot.
pub fn log_of(lock: &str) -> String {
    format!("{lock}:log")
}

fn learned(reply: &Reply) -> Learned {
    match reply {
        Reply::Value(_) => Learned::Holds,
        reply if reply.is_error("NOTHELD") || reply.is_error("FENCED") => Learned::Lost,
        _ => Learned::Nothing,
    }
}
