//! Connections on which a request is unanswered, which stay open: the request may be done late, and tie the hold to its connection,
//! whose end would then end the hold.

use crate::server::{now_ms, Failure, Link, Place};
use std::time::Duration;

/// How long each of them has to answer again.
const ANSWER: Duration = Duration::from_millis(200);

/// How long no other connection is opened where two of them are silent. Each more doubles that.
const PAUSE_MS: u64 = 200;

/// The connections that a program has given up, and keeps open.
#[derive(Default)]
pub(crate) struct Silent {
    links: Vec<Link>,
    /// When another connection may be opened, by [`now_ms`].
    next_ms: u64,
}

impl Silent {
    /// Keeps a connection that is given up. The more there are, the later another one is opened: a server that only reads has few of
    /// a program, however long that lasts.
    pub(crate) fn keep(&mut self, link: Link) {
        let times = (1 << self.links.len().min(16)) - 1;
        self.next_ms = now_ms() + times * PAUSE_MS;
        self.links.push(link);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns the connection to ask next, and whether it is new: where none can be opened, it is one of these that answers again.
    pub(crate) fn next(&mut self, place: &Place) -> Result<(Link, bool), Failure> {
        self.links.retain_mut(|open| open.is_there(ANSWER));
        let is_early = !self.links.is_empty() && now_ms() < self.next_ms;
        let opened = match is_early {
            true => Err(Failure::passing("the server does not answer")),
            false => place.connect(),
        };
        opened.map(|link| (link, true)).or_else(|failure| {
            let answers = self.links.iter().position(|open| !open.is_silent);
            Ok((self.links.swap_remove(answers.ok_or(failure)?), false))
        })
    }

    /// Closes those that answer again: nothing is on its way on them, and a later command has decided.
    pub(crate) fn close_answered(&mut self) {
        self.links.retain(|open| open.is_silent);
    }

    /// Lets each answer take as long as usual again.
    pub(crate) fn unbound(&mut self) {
        for open in &mut self.links {
            open.until_ms = None;
        }
    }
}
