//! `DLOCK.SESSION`, and requests in a session.

use crate::holds::sessions::{Blocked, SessionRef};
use crate::holds::Due;
use crate::outbox::News;
use crate::refusal::Refusal;
use crate::state::{Engine, Fate};
use crate::types::{ClientId, Millis, Now, Party, RequestId, SessionNo, Token};

/// A SESSION command.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// The connection that sends it.
    pub client: ClientId,
    /// For how long it keeps the session.
    pub ms: Millis,
    /// The id whose rows it has seen, and the last of them; 0 for none.
    pub seen: (u64, u64),
    /// How long it waits for a row, if it waits.
    pub block: Option<Millis>,
}

/// The answer to a SESSION command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The reply.
    News(Box<News>),
    /// It waits under this number; an [`crate::Output`] has the reply.
    Waiting(RequestId),
}

impl Engine {
    /// Finds the session that a request names, or begins it.
    ///
    /// Errors: `OtherUser` if another user has begun it; `Full` if there are as many as may be.
    pub fn enter_session(&mut self, now: Now, of: SessionRef) -> Result<SessionNo, Refusal> {
        let most = self.policy.max_sessions;
        self.holds.sessions.enter(of, most, now.steady())
    }

    /// Returns the id of a session; 0 if it is over.
    pub fn session_id(&self, no: SessionNo) -> u64 {
        self.holds.sessions.get(no).map_or(0, |session| session.id)
    }

    /// Keeps a session, and tells what its program has not seen.
    ///
    /// Errors as for [`Engine::enter_session`]; `NotThatMany` if it has seen more rows than there are. Nothing has changed then.
    pub fn keep_session(&mut self, now: Now, of: SessionRef, keep: &Keep) -> Result<Kept, Refusal> {
        let no = self.enter_session(now, of)?;
        let Some(session) = self.holds.sessions.get_mut(no) else {
            return Err(Refusal::OtherUser);
        };
        let (id, last) = (session.id, session.rows.last());
        let seen = match keep.seen {
            (of, last) if of == id => last,
            _ => 0,
        };
        if seen > last {
            return Err(Refusal::NotThatMany(last));
        }
        session.rows.seen(seen, &mut self.holds.ties);
        session.kept_ms = keep.ms;
        self.answer_session(no, now);
        self.holds.sessions.set_keeper(no, keep.client);
        self.revive(no, now);
        if let Some(party) = self.party_of(no) {
            self.end_ties(now, party);
        }
        let news = || {
            self.holds
                .sessions
                .get(no)
                .is_some_and(|its| its.rows.has_news(seen))
        };
        if let Some(ms) = keep.block.filter(|_| !news()) {
            let id = self.requests.next_id();
            let until = self.holds.timers.add(now.steady().after(ms), Due::News(no));
            self.set_session_due(no, None);
            let arrived = now.steady();
            let blocked = Blocked {
                id,
                client: keep.client,
                seen,
                arrived,
                until,
            };
            self.holds.sessions.block(no, blocked);
            self.holds.ties.set_waiting(keep.client, true, arrived);
            return Ok(Kept::Waiting(id));
        }
        self.set_session_due(no, Some(now.steady().after(keep.ms)));
        Ok(Kept::News(Box::new(self.news(no, seen, now.steady(), now))))
    }

    /// Ends a session: its holds are released and its places go, in steps. Returns its id and its last row's number; none if there is
    /// no such session.
    ///
    /// Errors: `OtherUser`.
    pub fn end_session(&mut self, now: Now, of: SessionRef) -> Result<Option<(u64, u64)>, Refusal> {
        if self.holds.sessions.find(of.db, of.name).is_none() {
            return Ok(None);
        }
        let no = self.enter_session(now, of)?;
        self.answer_session(no, now);
        self.no_longer_alive(no, now);
        self.set_session_due(no, None);
        let Some(session) = self.holds.sessions.close(no) else {
            return Ok(None);
        };
        let (told, party) = (
            (session.id, session.rows.last()),
            Party::Session(session.holds),
        );
        self.end_party(party, Fate::Releases);
        Ok(Some(told))
    }

    /// Returns the reply to a SESSION command that its connection waits for no longer; none if it is not one.
    pub fn news_for(&mut self, id: RequestId, now: Now) -> Option<News> {
        let no = self.holds.sessions.of_command(id)?;
        let blocked = self.holds.sessions.get(no)?.blocked?;
        Some(self.news(no, blocked.seen, blocked.arrived, now))
    }

    /// Does work whose reply tells of the holds that come into their session: no blocked command is answered for them.
    #[inline(always)]
    pub(super) fn replying<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> T {
        self.holds.sessions.replies = true;
        let done = work(self);
        self.holds.sessions.replies = false;
        done
    }

    /// Does the work of a command that names this token: its program knows what becomes of that hold.
    #[inline(always)]
    pub(super) fn naming<T>(
        &mut self,
        token: Option<Token>,
        work: impl FnOnce(&mut Engine) -> T,
    ) -> T {
        self.holds.sessions.named = token;
        let done = work(self);
        self.holds.sessions.named = None;
        done
    }

    /// Returns whom the holds of a session are tied to.
    fn party_of(&self, no: SessionNo) -> Option<Party> {
        let session = self.holds.sessions.get(no)?;
        Some(Party::Session(session.holds))
    }
}
