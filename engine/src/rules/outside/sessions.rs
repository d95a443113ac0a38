//! The life of sessions between their commands: when they are alive, what becomes of their places when they are not, and which news
//! their programs get.

use crate::holds::sessions::Blocked;
use crate::holds::Due;
use crate::outbox::{News, Outcome, Output};
use crate::queue::{Part, Place, Request};
use crate::state::{Engine, Fate};
use crate::types::{Now, Party, RequestId, SessionNo, SteadyMs, WallMs};

impl Engine {
    /// Returns true if a waiting request may be granted: it belongs to no session, or to one that is alive.
    pub(crate) fn may_be_granted(&self, request: &Request) -> bool {
        let session = request.terms.session;
        session.is_none_or(|no| self.holds.sessions.is_alive(no))
    }

    /// Returns the session that waits at a place.
    pub(crate) fn session_of_place(&self, place: &Place) -> Option<SessionNo> {
        let request = place.request().and_then(|id| self.requests.get(id));
        request?.terms.session
    }

    /// Notes that a request might have been granted if its session were alive.
    pub(in crate::rules) fn withhold(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let session = request.terms.session;
        if let Some(session) = session.and_then(|no| self.holds.sessions.get_mut(no)) {
            let locks = request.parts().iter().map(|part: &Part| part.lock);
            session.withheld.extend(locks);
        }
    }

    /// Notes that a session is alive. Its holds are renewed again, and its places may be granted.
    pub(in crate::rules) fn revive(&mut self, no: SessionNo, now: Now) {
        if !self.holds.sessions.set_alive(no, true, now.steady()) {
            return;
        }
        let Some(session) = self.holds.sessions.get_mut(no) else {
            return;
        };
        let (party, withheld) = (
            Party::Session(session.holds),
            std::mem::take(&mut session.withheld),
        );
        self.holds.ties.resume(party);
        for lock in withheld {
            self.mark(lock);
        }
    }

    /// Notes that a session is no longer alive: nobody renews its holds, and its places are absent.
    pub(in crate::rules) fn no_longer_alive(&mut self, no: SessionNo, now: Now) {
        self.unblock_session(no, now);
        self.holds.sessions.set_alive(no, false, now.steady());
        self.set_session_due(no, None);
        if self
            .holds
            .sessions
            .get(no)
            .is_some_and(|its| !its.waits.is_empty())
        {
            self.begin_session_window(no, now);
        }
    }

    /// Begins the window of a session's places, if it is not alive.
    pub(in crate::rules) fn begin_session_window(&mut self, no: SessionNo, now: Now) {
        if !self.holds.sessions.is_alive(no) {
            let window = self.policy.claim_window_ms;
            self.set_session_due(no, Some(now.steady().after(window)));
        }
    }

    /// Sets when the life of a session ends, or, if it is not alive, the window of its places.
    pub(in crate::rules) fn set_session_due(&mut self, no: SessionNo, at: Option<SteadyMs>) {
        let Some(session) = self.holds.sessions.get_mut(no) else {
            return;
        };
        self.holds.windows.clear(&mut session.due);
        session.due = at.map(|at| self.holds.windows.add(at, Due::Session(no)));
    }

    /// Handles the end of the time of a session: its life ends, or its places go.
    pub(in crate::rules) fn on_session_due(&mut self, no: SessionNo, now: Now) {
        let Some(session) = self.holds.sessions.get_mut(no) else {
            return;
        };
        session.due = None;
        if session.alive {
            self.no_longer_alive(no, now)
        } else {
            self.overdue.extend(session.waits.iter().copied())
        }
    }

    /// Ends the wait of a SESSION command whose connection has ended, or waits no longer. Returns true if it is one.
    pub(in crate::rules) fn leave_session(&mut self, id: RequestId, now: Now) -> bool {
        let Some(no) = self.holds.sessions.of_command(id) else {
            return false;
        };
        if self.unblock_session(no, now).is_some() {
            self.end_command(no, now);
        }
        true
    }

    /// Takes out the blocked SESSION command of a session. The time of its connection's ties runs again.
    fn unblock_session(&mut self, no: SessionNo, now: Now) -> Option<Blocked> {
        let blocked = self.holds.sessions.unblock(no)?;
        self.holds.timers.remove(&blocked.until);
        let client = blocked.client;
        self.holds.ties.set_waiting(client, false, now.steady());
        Some(blocked)
    }

    /// Lets the time run for which a SESSION command that is blocked no longer keeps its session.
    fn end_command(&mut self, no: SessionNo, now: Now) {
        let ms = self.holds.sessions.get(no).map(|its| its.kept_ms);
        self.set_session_due(no, ms.map(|ms| now.steady().after(ms)));
    }

    /// Ends an event for the sessions: answers the blocked SESSION commands that have something to tell, restarts the sessions
    /// that owe too much, and forgets those that are over.
    pub fn tell_sessions(&mut self, now: Now) {
        if !self.holds.sessions.is_behind() {
            return;
        }
        while let Some(no) = self.holds.sessions.next_overflown() {
            if let Some(before) = self.holds.sessions.restart(no) {
                self.end_party(before, Fate::Unties);
            }
        }
        while let Some(no) = self.holds.sessions.next_woken() {
            self.answer_session(no, now);
        }
        while let Some(no) = self.holds.sessions.next_idle() {
            self.forget_if_over(no);
        }
    }

    /// Answers the blocked SESSION command of a session.
    pub(in crate::rules) fn answer_session(&mut self, no: SessionNo, now: Now) {
        if let Some(blocked) = self.unblock_session(no, now) {
            let news = Box::new(self.news(no, blocked.seen, blocked.arrived, now));
            let output = Output::new(blocked.id, Outcome::News(news), Default::default());
            self.outbox.push(output);
            self.end_command(no, now);
        }
    }

    /// Returns what the program of a session has not seen.
    pub(in crate::rules) fn news(
        &mut self,
        no: SessionNo,
        seen: u64,
        arrived: SteadyMs,
        now: Now,
    ) -> News {
        let session = self.holds.sessions.get(no);
        let party = session.map(|its| Party::Session(its.holds));
        if let Some(party) = party {
            self.holds.ties.order_all(party);
        }
        let confirms = self.policy.confirms();
        News {
            id: session.map_or(0, |its| its.id),
            last: session.map_or(0, |its| its.rows.last()),
            first_end: party.and_then(|party| self.first_end(party, now)),
            rows: session.map_or(Vec::new(), |its| {
                its.rows.above(seen, &self.holds.ties, confirms)
            }),
            arrived,
        }
    }

    /// Returns the earliest end of a lease among a session's holds, as far as its program may count on it: where replicas confirm,
    /// only on what they have confirmed, and on nothing while this server may confirm nothing.
    fn first_end(&self, party: Party, now: Now) -> Option<WallMs> {
        match self.policy.confirms() {
            false => self.holds.ties.first_end(party),
            true if self.policy.quarantine_left(now) > 0 => None,
            true => self.holds.ties.first_confirmed(party),
        }
    }

    /// Forgets a session that is not alive, and in which nothing is left.
    fn forget_if_over(&mut self, no: SessionNo) {
        let Some(session) = self.holds.sessions.get(no) else {
            return;
        };
        let party = Party::Session(session.holds);
        let over = !session.alive
            && session.waits.is_empty()
            && self.holds.ties.count(party) == 0
            && !self.ended.contains_key(&party);
        if over {
            self.forget_session(no);
        }
    }

    /// Frees what is kept of sessions that are over.
    pub(in crate::rules) fn drop_spares(&mut self) {
        while self.holds.sessions.has_spares() {
            if let Some(party) = self.holds.sessions.drop_spare() {
                self.holds.ties.forget(party);
            }
        }
    }

    /// Forgets a session.
    pub(in crate::rules) fn forget_session(&mut self, no: SessionNo) {
        self.set_session_due(no, None);
        if let Some(party) = self.holds.sessions.end(no) {
            self.holds.ties.forget(party);
        }
    }
}
