//! One entry of the flight recorder.

use crate::lock::End;
use crate::outbox::Outcome;
use crate::queue::Waiting;
use crate::refusal::Refusal;
use crate::types::{ClientId, HoldRef, Millis, Name, Now, Token, WallMs};
use std::rc::Rc;

/// How a hold or a wait ended, or why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A hold ended, for the reason that its unlock message gives.
    Ended(End),
    /// A hold was released with all others of its session, which its program has ended.
    Session,
    /// The server revoked a hold: its client had gone before it got the answer, or replicas have not confirmed it.
    Undelivered,
    /// A hold has another name now, with its lock.
    Renamed,
    /// A wait ended with the lock.
    Granted,
    /// The time of a wait was up.
    TimedOut,
    /// A place was cancelled.
    Cancelled,
    /// A newer request of the same owner took the place.
    Replaced,
    /// The connection that waited has gone, or its session waits no longer.
    Gone,
    /// Nobody asked for an absent ticket within its claim window.
    Lapsed,
    /// A request was refused, at once or after a wait, by the error with this code.
    Refused(&'static str),
}

impl How {
    /// Returns its word in the log.
    pub fn word(self) -> &'static str {
        match self {
            How::Ended(end) => end.word(),
            How::Session => "session",
            How::Undelivered => "undelivered",
            How::Renamed => "renamed",
            How::Granted => "granted",
            How::TimedOut => "timeout",
            How::Cancelled => "cancelled",
            How::Replaced => "replaced",
            How::Gone => "gone",
            How::Lapsed => "lapsed",
            How::Refused(code) => code,
        }
    }

    /// Returns how a hold ended, for its unlock message and its effect; none if it continues, or if this is no hold.
    pub(crate) fn end(self) -> Option<End> {
        match self {
            How::Ended(end) => Some(end),
            How::Session | How::Undelivered => Some(End::Released),
            _ => None,
        }
    }

    /// Returns how a wait ended that has this outcome; none if it has a grant, or if its program just asks again.
    pub(crate) fn of_wait(outcome: &Outcome) -> Option<How> {
        match outcome {
            Outcome::TimedOut => Some(How::TimedOut),
            Outcome::Cancelled => Some(How::Cancelled),
            Outcome::Replaced => Some(How::Replaced),
            Outcome::Gone => Some(How::Gone),
            Outcome::Refused(refusal) => Some(How::Refused(refusal.code())),
            _ => None,
        }
    }

    /// Returns how a request that was refused at once is logged; none if its refusal is ordinary.
    pub(crate) fn of_refusal(refusal: &Refusal) -> Option<How> {
        match refusal {
            Refusal::At(refusal, _) => How::of_refusal(refusal),
            Refusal::Deadlock(_) | Refusal::Full(_) | Refusal::Fenced => {
                Some(How::Refused(refusal.code()))
            }
            _ => None,
        }
    }
}

/// What an entry is about: a hold, a wait or a request.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The lock.
    pub name: Name,
    /// The owner; empty if the request named none.
    pub owner: Rc<[u8]>,
    /// The token of a hold, or the one that a request named.
    pub token: Option<Token>,
    /// How long a hold lasted; none if this is no hold.
    pub held_ms: Option<Millis>,
    /// How long a wait took; none if this is no wait.
    pub waited_ms: Option<Millis>,
    /// The connection that the hold was tied to, or that asked last.
    pub client: ClientId,
    /// The session that the hold or the wait was in.
    pub session: Option<Rc<[u8]>>,
}

impl Subject {
    /// Makes the subject of an entry about a hold.
    pub(crate) fn of_hold(whose: HoldRef, token: Token, client: ClientId, now: Now) -> Subject {
        Subject {
            name: whose.name.to_owned(),
            owner: Rc::from(whose.owner),
            token: Some(token),
            held_ms: Some(now.us.saturating_sub(token.0) / 1000),
            waited_ms: None,
            client,
            session: None,
        }
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Its address.
    pub addr: Box<[u8]>,
    /// The name that its program gave it; empty if none.
    pub name: Box<[u8]>,
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its number. Later entries have higher ones.
    pub number: u64,
    /// When it was made.
    pub at: WallMs,
    /// What it is about.
    pub subject: Subject,
    /// How that ended.
    pub how: How,
    /// Who else waited for the lock.
    pub waiting: Waiting,
    /// Where the subject's connection comes from, if it was there when the entry was made.
    pub origin: Option<Origin>,
}

impl Entry {
    pub(super) fn new(
        number: u64,
        now: Now,
        subject: Subject,
        how: How,
        waiting: Waiting,
    ) -> Entry {
        Entry {
            number,
            at: now.wall(),
            subject,
            how,
            waiting,
            origin: None,
        }
    }

    /// Returns roughly the memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<Rc<[u8]>>| text.as_ref().map_or(0, |text| text.len());
        let origin = self.origin.as_ref();
        let texts = self.subject.name.key.len()
            + self.subject.owner.len()
            + text(&self.subject.session)
            + text(&self.waiting.next)
            + origin.map_or(0, |origin| origin.addr.len() + origin.name.len());
        // Each text has a header of the allocator's and a count.
        std::mem::size_of::<Entry>() + 6 * 32 + texts
    }
}
