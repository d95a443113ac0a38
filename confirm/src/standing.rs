//! One server's own part: until when it confirms nothing, and until when whoever joins it counts late.

use crate::Rule;
use std::ops::Add;

/// A point in time and a length of time, in one unit: milliseconds on servers, ticks in the model. What lies before a server's start
/// is 0.
pub trait Time: Copy + Ord + Default + Add<Output = Self> {}

impl<T: Copy + Ord + Default + Add<Output = T>> Time for T {}

/// What a server uses to decide, besides what it has seen.
#[derive(Debug, Clone, Copy)]
pub struct Terms<T> {
    /// The rule.
    pub rule: Rule,
    /// `dlock.replicas`; 0: replicas confirm nothing.
    pub replicas: u32,
    /// `dlock.quarantine-ms`.
    pub quarantine: T,
    /// Whether the server is a primary.
    pub primary: bool,
}

impl<T: Time> Terms<T> {
    /// Returns true if replicas must confirm answers.
    #[must_use]
    pub fn on(&self) -> bool {
        self.replicas > 0
    }

    /// Returns how many of this number of replicas must confirm an answer. A promoted server needs as many.
    #[must_use]
    pub fn needed(&self, replicas: u32) -> u32 {
        if self.on() {
            replicas.div_ceil(2) - u32::from(!self.rule.half_confirm && replicas > 0)
        } else {
            0
        }
    }

    /// Returns the longest lease that may be given, where `most` is the longest that is configured.
    #[must_use]
    pub fn longest_lease(&self, most: T) -> T {
        if self.quarantine > T::default() && self.rule.lease_within_quarantine {
            most.min(self.quarantine)
        } else {
            most
        }
    }

    /// Returns true if the server refuses requests for a resynchronisation. One that resynchronises forgets what it has confirmed
    /// for others, and a replica can announce that to nobody.
    #[must_use]
    pub fn refuses_requests(&self) -> bool {
        self.ends_links() && self.rule.refuses_at_once
    }

    /// Returns true if the server ends the links of its replicas.
    #[must_use]
    pub fn ends_links(&self) -> bool {
        self.on() && !self.primary && self.rule.serves_none
    }
}

/// What a server does after its start, or its own full resynchronisation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gate<T> {
    /// Until when it neither grants nor renews.
    pub closed_until: T,
    /// Whether it grants otherwise.
    pub grants: bool,
}

/// How a replica has joined, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It has confirmed nothing that this server does not know.
    Partial,
    /// It may have, and may have forgotten it.
    Full,
}

/// The state of one server by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing<T> {
    /// Since when the server has its data.
    since: T,
    /// Until when it confirms nothing because of that.
    pub closed_until: T,
    /// Until when a replica that joins counts as one that has joined by a full resynchronisation.
    pub late_until: T,
    /// Whether the stream must carry the notice of a full resynchronisation, or of the start of this primary.
    owes_notice: bool,
    /// Whether it was a replica, and was promoted.
    pub promoted: bool,
    followed: bool,
}

impl<T: Time> Standing<T> {
    /// Begins with new data: the server was started, or begins to load a full resynchronisation.
    pub fn begin(&mut self, terms: &Terms<T>, now: T) {
        self.since = now;
        self.on_role(terms.primary);
        self.close(terms);
        if terms.rule.start_announced || !terms.primary {
            self.on_full_sync(terms, now);
        }
    }

    /// Closes the server for the quarantine since it has its data: also when replicas must confirm answers from now on.
    pub fn close(&mut self, terms: &Terms<T>) {
        let closes = if terms.primary {
            terms.rule.closed_after_start
        } else {
            terms.rule.closed_after_full
        };
        if closes {
            self.closed_until = self.closed_until.max(self.since + terms.quarantine);
        }
    }

    /// Notes that a replica joins by a full resynchronisation, here or at the primary whose stream announces it: those that join
    /// within the quarantine count late. A primary announces it.
    pub fn on_full_sync(&mut self, terms: &Terms<T>, now: T) {
        if terms.rule.full_announced {
            self.late_until = self.late_until.max(now + terms.quarantine);
            self.owes_notice |= terms.primary;
        }
    }

    /// Notes the server's role.
    pub fn on_role(&mut self, primary: bool) {
        self.promoted |= primary && self.followed;
        self.followed = !primary;
    }

    /// Returns true if the stream must carry a notice.
    #[must_use]
    pub fn has_notice(&self, terms: &Terms<T>) -> bool {
        self.owes_notice && terms.primary && terms.on()
    }

    /// Returns true if the stream must carry a notice, and takes the notice out.
    pub fn take_notice(&mut self, terms: &Terms<T>) -> bool {
        let has = self.has_notice(terms);
        self.owes_notice &= !has;
        has
    }

    /// Returns what the server does after its start, or its own full resynchronisation.
    #[must_use]
    pub fn gate(&self, terms: &Terms<T>, now: T) -> Gate<T> {
        let closed_until = if terms.on() {
            self.closed_until
        } else {
            T::default()
        };
        if terms.rule.closed_renews_nothing {
            Gate {
                closed_until,
                grants: true,
            }
        } else {
            Gate {
                closed_until: T::default(),
                grants: closed_until <= now,
            }
        }
    }

    /// Returns how a replica has joined that joins now, and from when on it counts.
    #[must_use]
    pub fn joins(&self, terms: &Terms<T>, how: Joined, now: T) -> (Joined, T) {
        if how == Joined::Full || now < self.late_until {
            (Joined::Full, now + terms.quarantine)
        } else {
            (Joined::Partial, now)
        }
    }

    /// Returns true if the confirmation of a replica counts. `alone`: whether there is no other that can have confirmed anything.
    #[must_use]
    pub fn counts(&self, terms: &Terms<T>, alone: bool, counts_from: T, now: T) -> bool {
        let rule = &terms.rule;
        let judged = rule.full_counts_late && (rule.whoever_serves || self.promoted);
        !terms.on() || alone || !judged || counts_from <= now
    }
}
