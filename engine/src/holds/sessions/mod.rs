//! Sessions: what one program holds and waits for, under a name. A session is a party, as a connection is one: its holds are tied to
//! it, and its requests wait in the same queues. It outlives connections, and what happens to its holds and waits is kept in rows
//! until the program has seen them.

mod rows;

use super::{Loss, Tie, TieId, Ties};
use crate::outbox::Outcome;
use crate::queue::{DueKey, LockId};
use crate::refusal::Refusal;
use crate::types::{ClientId, HoldRef, Millis, Party, RequestId, SessionNo, SteadyMs, Token};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::rc::Rc;

use rows::Rows;
pub use rows::{NewsRow, Word};

/// The lowest id of a session, and the lowest number that is none: ids are as long as tokens, and every client language holds each of
/// them exactly.
const FIRST_ID: u64 = 1_000_000_000_000_000;
const END_OF_IDS: u64 = 1 << 52;

/// The most sessions that are kept after their end, for up to a second. A program that takes one lock at a time begins and ends a
/// session with each. Such a session is reused here instead of being made again each time. The program sees no difference: the
/// session has another id, and no rows.
const MOST_SPARES: usize = 1_024;

/// A session's name, and who asks.
#[derive(Debug, Clone, Copy)]
pub struct SessionRef<'a> {
    /// The database.
    pub db: u32,
    /// The name.
    pub name: &'a [u8],
    /// The ACL user that asks.
    pub user: &'a [u8],
}

/// One session.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) db: u32,
    pub(crate) name: Rc<[u8]>,
    user: Rc<[u8]>,
    /// Random: a session of the same name that begins later has another.
    pub(crate) id: u64,
    /// The number that its holds are tied to: its own, until it is restarted.
    pub(crate) holds: SessionNo,
    /// The connection that sent its last SESSION command, and for how long that keeps it.
    pub(crate) keeper: ClientId,
    pub(crate) kept_ms: Millis,
    /// Whether its program has ended it. Its name is free then.
    pub(crate) closed: bool,
    // Whether it is over, and kept as a spare only.
    over: bool,
    // Whether it is in the list of spares.
    spare: bool,
    /// Whether it is alive, and since when it is that, or not that.
    pub(crate) alive: bool,
    pub(crate) since: SteadyMs,
    /// The end of its life; or, when it is not alive, of its places.
    pub(crate) due: Option<DueKey<SteadyMs>>,
    /// Its SESSION command that is blocked.
    pub(crate) blocked: Option<Blocked>,
    /// Its requests that wait.
    pub(crate) waits: BTreeSet<RequestId>,
    /// The locks that its places might have been granted while it was not alive.
    pub(crate) withheld: BTreeSet<LockId>,
    pub(crate) rows: Rows,
}

/// A SESSION command that is blocked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocked {
    pub(crate) id: RequestId,
    /// The connection that is blocked.
    pub(crate) client: ClientId,
    /// The last row that it has seen.
    pub(crate) seen: u64,
    /// When it arrived: what its reply says counts from then.
    pub(crate) arrived: SteadyMs,
    /// When its time is up.
    pub(crate) until: DueKey<SteadyMs>,
}

/// All sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions {
    by_no: BTreeMap<SessionNo, Box<Session>>,
    by_name: BTreeMap<u32, HashMap<Rc<[u8]>, SessionNo>>,
    // Where holds are tied to another number than the session's own.
    renumbered: BTreeMap<SessionNo, SessionNo>,
    by_keeper: BTreeMap<ClientId, BTreeSet<SessionNo>>,
    by_command: BTreeMap<RequestId, SessionNo>,
    // Those whose blocked command is to be answered, and those that may be over.
    woken: BTreeSet<SessionNo>,
    idle: BTreeSet<SessionNo>,
    // Those that have more rows than are kept.
    overflown: BTreeSet<SessionNo>,
    // Sessions that are over, the oldest first, and some that have been reused since.
    spares: VecDeque<SessionNo>,
    over: usize,
    not_alive: usize,
    restarts: u64,
    last: u32,
    drawn: u64,
    random: RandomState,
    /// The token that the running command names: its program knows what becomes of that hold.
    pub(crate) named: Option<Token>,
    /// Whether the running command's reply tells of the hold that comes into its session.
    pub(crate) replies: bool,
    /// Whether replicas must confirm what gives or prolongs a hold.
    pub(crate) confirms: bool,
}

impl Sessions {
    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_no.len() - self.over
    }

    /// Returns how many are not alive.
    pub(crate) fn not_alive(&self) -> usize {
        self.not_alive
    }

    /// Returns how many rows nobody has seen yet.
    pub(crate) fn rows(&self) -> usize {
        self.by_no.values().map(|session| session.rows.len()).sum()
    }

    /// Returns how many times sessions were restarted.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Counts from 0 again.
    pub(crate) fn reset_count(&mut self) {
        self.restarts = 0;
    }

    /// Returns a session.
    pub(crate) fn get(&self, no: SessionNo) -> Option<&Session> {
        let session = self.by_no.get(&no)?;
        (!session.over).then_some(&**session)
    }

    /// Returns a session.
    pub(crate) fn get_mut(&mut self, no: SessionNo) -> Option<&mut Session> {
        let session = self.by_no.get_mut(&no)?;
        (!session.over).then_some(&mut **session)
    }

    /// Returns the session of this name.
    pub(crate) fn find(&self, db: u32, name: &[u8]) -> Option<SessionNo> {
        let no = self.by_name.get(&db)?.get(name).copied()?;
        self.get(no).map(|_| no)
    }

    /// Returns the session that holds of this party are in.
    pub(crate) fn of_party(&self, party: Party) -> Option<SessionNo> {
        let Party::Session(holds) = party else {
            return None;
        };
        let no = self.renumbered.get(&holds).copied().unwrap_or(holds);
        self.get(no)
            .filter(|session| session.holds == holds)
            .map(|_| no)
    }

    /// Returns true if the program of a session has ended it.
    pub(crate) fn is_closed(&self, no: SessionNo) -> bool {
        self.get(no).is_none_or(|session| session.closed)
    }

    /// Returns true if a session is alive.
    pub(crate) fn is_alive(&self, no: SessionNo) -> bool {
        self.get(no).is_some_and(|session| session.alive)
    }

    /// Finds or begins a session.
    ///
    /// Errors: `OtherUser` if another user has begun it; `Full` if there are as many as may be.
    pub(crate) fn enter(
        &mut self,
        of: SessionRef,
        most: usize,
        now: SteadyMs,
    ) -> Result<SessionNo, Refusal> {
        let names = self.by_name.get(&of.db);
        let known = names.and_then(|names| names.get(of.name)).copied();
        if let Some((no, session)) = known.and_then(|no| Some((no, self.get(no)?))) {
            return if *session.user == *of.user {
                Ok(no)
            } else {
                Err(Refusal::OtherUser)
            };
        }
        if self.len() >= most {
            return Err(Refusal::Full("dlock.max-sessions"));
        }
        let no = match known {
            Some(no) => self.reuse_spare(no, of.user, now),
            None => self.begin(of, now),
        };
        self.not_alive += 1;
        self.idle.insert(no);
        Ok(no)
    }

    fn begin(&mut self, of: SessionRef, now: SteadyMs) -> SessionNo {
        let (no, id, name) = (self.next_no(), self.draw(), Rc::<[u8]>::from(of.name));
        let names = self.by_name.entry(of.db).or_default();
        names.insert(name.clone(), no);
        let session = Session {
            db: of.db,
            name,
            user: Rc::from(of.user),
            id,
            holds: no,
            keeper: ClientId::NONE,
            kept_ms: 0,
            closed: false,
            over: false,
            spare: false,
            alive: false,
            since: now,
            due: None,
            blocked: None,
            waits: BTreeSet::new(),
            withheld: BTreeSet::new(),
            rows: Rows::default(),
        };
        self.by_no.insert(no, Box::new(session));
        no
    }

    /// Begins a session that was kept as a spare.
    fn reuse_spare(&mut self, no: SessionNo, user: &[u8], now: SteadyMs) -> SessionNo {
        let id = self.draw();
        if let Some(session) = self.by_no.get_mut(&no) {
            if *session.user != *user {
                session.user = Rc::from(user);
            }
            (session.id, session.since, session.over) = (id, now, false);
            self.over -= 1;
        }
        no
    }

    /// Returns a number that no session has. A program that polls in a session of nothing else begins one with each request, so that
    /// the numbers come round within days.
    fn next_no(&mut self) -> SessionNo {
        loop {
            self.last = self.last.wrapping_add(1);
            let no = SessionNo(NonZeroU32::MIN.saturating_add(self.last));
            if !self.by_no.contains_key(&no) && !self.renumbered.contains_key(&no) {
                return no;
            }
        }
    }

    /// Draws an id.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        FIRST_ID + self.random.hash_one(self.drawn) % (END_OF_IDS - FIRST_ID)
    }

    /// Sets the connection that keeps a session.
    pub(crate) fn set_keeper(&mut self, no: SessionNo, client: ClientId) {
        let Some(session) = self.by_no.get_mut(&no) else {
            return;
        };
        let before = std::mem::replace(&mut session.keeper, client);
        if before == client {
            return;
        }
        if let Some(kept) = self.by_keeper.get_mut(&before) {
            kept.remove(&no);
            if kept.is_empty() {
                self.by_keeper.remove(&before);
            }
        }
        if client != ClientId::NONE {
            self.by_keeper.entry(client).or_default().insert(no);
        }
    }

    /// Takes out the sessions that a connection kept, which has ended.
    pub(crate) fn kept_by(&mut self, client: ClientId) -> BTreeSet<SessionNo> {
        self.by_keeper.remove(&client).unwrap_or_default()
    }

    /// Returns true if a connection keeps a session.
    pub(crate) fn keeps(&self, client: ClientId) -> bool {
        self.by_keeper.contains_key(&client)
    }

    /// Notes that a session is alive, or is not. Returns true if that is new.
    pub(crate) fn set_alive(&mut self, no: SessionNo, alive: bool, now: SteadyMs) -> bool {
        let Some(session) = self.by_no.get_mut(&no) else {
            return false;
        };
        if std::mem::replace(&mut session.alive, alive) == alive {
            return false;
        }
        session.since = now;
        if alive {
            self.not_alive -= 1;
        } else {
            self.not_alive += 1;
            self.idle.insert(no);
        }
        true
    }

    /// Notes that a SESSION command is blocked.
    pub(crate) fn block(&mut self, no: SessionNo, blocked: Blocked) {
        if let Some(session) = self.by_no.get_mut(&no) {
            session.blocked = Some(blocked);
            self.by_command.insert(blocked.id, no);
        }
    }

    /// Takes out the blocked SESSION command of a session.
    pub(crate) fn unblock(&mut self, no: SessionNo) -> Option<Blocked> {
        let blocked = self.by_no.get_mut(&no)?.blocked.take()?;
        self.by_command.remove(&blocked.id);
        Some(blocked)
    }

    /// Returns the session of a blocked SESSION command.
    pub(crate) fn of_command(&self, id: RequestId) -> Option<SessionNo> {
        self.by_command.get(&id).copied()
    }

    /// Answers the blocked SESSION command of a session at the end of this event.
    pub(crate) fn wake(&mut self, no: SessionNo) {
        if self.get(no).is_some_and(|its| its.blocked.is_some()) {
            self.woken.insert(no);
        }
    }

    /// Takes out the next session whose blocked command is to be answered.
    pub(crate) fn next_woken(&mut self) -> Option<SessionNo> {
        self.woken.pop_first()
    }

    /// Takes out the next session that may be over.
    pub(crate) fn next_idle(&mut self) -> Option<SessionNo> {
        self.idle.pop_first()
    }

    /// Takes out the next session that has more rows than are kept.
    pub(crate) fn next_overflown(&mut self) -> Option<SessionNo> {
        self.overflown.pop_first()
    }

    /// Returns true if the end of this event has something to do.
    pub(crate) fn is_behind(&self) -> bool {
        !(self.woken.is_empty() && self.idle.is_empty() && self.overflown.is_empty())
    }

    /// Notes that a request of a session waits, or waits no longer.
    pub(crate) fn set_waiting(&mut self, no: SessionNo, id: RequestId, waits: bool) {
        let Some(session) = self.by_no.get_mut(&no) else {
            return;
        };
        if waits {
            session.waits.insert(id);
        } else {
            session.waits.remove(&id);
            self.may_be_over(no);
        }
    }

    /// Tells a session that a hold has come into it, unless replicas must confirm that first.
    pub(crate) fn hold_came(&mut self, party: Party, id: TieId, ties: &mut Ties) {
        if !self.confirms {
            self.confirmed(party, id, self.replies, ties);
        }
    }

    /// Tells a session that a hold has come into it; `replies`: the reply to a command says the same.
    pub(crate) fn confirmed(&mut self, party: Party, id: TieId, replies: bool, ties: &mut Ties) {
        let Some(no) = self.of_party(party) else {
            return;
        };
        if let Some(rows) = self.rows_to_read(no) {
            ties.set_row(id, rows.add_granted(id, replies));
        }
        self.tell(no);
    }

    /// Tells a session that a hold has left it, unless a command that named its token made that.
    pub(crate) fn hold_lost(&mut self, token: Token, tie: &Tie, loss: Loss) {
        let Some(no) = self.of_party(tie.party) else {
            return;
        };
        let (named, confirms) = (self.named == Some(token), self.confirms);
        if let Some(rows) = self.rows_to_read(no) {
            if named {
                rows.drop_granted(tie.row)
            } else {
                rows.add_lost(token, tie, loss, confirms)
            }
        }
        self.may_be_over(no);
        self.tell(no);
    }

    /// Drops the row of a hold that no program has learned of.
    pub(crate) fn forget_hold(&mut self, tie: &Tie) {
        let Some(no) = self.of_party(tie.party) else {
            return;
        };
        if let Some(session) = self.by_no.get_mut(&no) {
            session.rows.drop_granted(tie.row);
        }
        self.may_be_over(no);
    }

    /// Has the end of this event look whether a session is over.
    fn may_be_over(&mut self, no: SessionNo) {
        if !self.is_alive(no) {
            self.idle.insert(no);
        }
    }

    /// Has the row of a hold name it by its new number.
    pub(crate) fn renumber(&mut self, party: Party, row: u64, id: TieId) {
        let no = self.of_party(party);
        if let Some(session) = no.and_then(|no| self.by_no.get_mut(&no)) {
            session.rows.renumber(row, id);
        }
    }

    /// Tells a session how a wait has ended. The row of a hold tells of a grant.
    pub(crate) fn wait_ended(&mut self, no: SessionNo, outcome: &Outcome, whose: HoldRef) {
        let word = match outcome {
            Outcome::Granted(_) | Outcome::GrantedAll(_) | Outcome::Gone => return,
            Outcome::TimedOut => Word::Timeout,
            Outcome::Cancelled => Word::Cancelled,
            Outcome::Replaced => Word::Replaced,
            Outcome::Refused(refusal) if refusal.is_wrong_type() => Word::WrongType,
            _ => Word::Again,
        };
        if let Some(rows) = self.rows_to_read(no) {
            rows.add_outcome(word, whose);
        }
        self.tell(no);
    }

    /// Returns the rows of a session; none if its program has ended it, or if it is over: nobody will read them.
    fn rows_to_read(&mut self, no: SessionNo) -> Option<&mut Rows> {
        let session = self.get_mut(no).filter(|session| !session.closed)?;
        Some(&mut session.rows)
    }

    /// Has the blocked command of a session answered if there is something that it has not seen.
    fn tell(&mut self, no: SessionNo) {
        let Some(session) = self.get(no).filter(|session| !session.closed) else {
            return;
        };
        let overflow = session.rows.overflow();
        let news = session
            .blocked
            .is_some_and(|its| session.rows.has_news(its.seen));
        if overflow {
            self.overflown.insert(no);
        }
        if news {
            self.woken.insert(no);
        }
    }

    /// Restarts a session, under another id: it had more rows than are kept. Its places stay. Returns the party that its holds are still
    /// tied to.
    pub(crate) fn restart(&mut self, no: SessionNo) -> Option<Party> {
        let (fresh, id) = (self.next_no(), self.draw());
        let session = self.by_no.get_mut(&no)?;
        let before = std::mem::replace(&mut session.holds, fresh);
        session.id = id;
        session.rows = Rows::default();
        self.renumbered.remove(&before);
        self.renumbered.insert(fresh, no);
        self.restarts += 1;
        self.wake(no);
        Some(Party::Session(before))
    }

    /// Frees the name of a session that its program has ended. Returns the session.
    pub(crate) fn close(&mut self, no: SessionNo) -> Option<&Session> {
        self.set_keeper(no, ClientId::NONE);
        self.overflown.remove(&no);
        let session = self.by_no.get_mut(&no)?;
        session.closed = true;
        session.withheld.clear();
        if let Some(names) = self.by_name.get_mut(&session.db) {
            names.remove(&session.name);
        }
        Some(session)
    }

    /// Ends a session, in which nothing is left. It is kept as a spare, if its name was not freed and it was never restarted. Returns the
    /// party that is no longer needed, if there is one.
    pub(crate) fn end(&mut self, no: SessionNo) -> Option<Party> {
        self.unblock(no);
        self.set_keeper(no, ClientId::NONE);
        let session = self.get_mut(no)?;
        let was_alive = std::mem::replace(&mut session.alive, false);
        let is_spare = !session.closed && session.holds == no;
        session.over = true;
        self.over += 1;
        self.not_alive -= usize::from(!was_alive);
        if !is_spare {
            return self.remove(no);
        }
        let session = self.by_no.get_mut(&no)?;
        session.kept_ms = 0;
        session.withheld.clear();
        session.rows.clear();
        if !std::mem::replace(&mut session.spare, true) {
            self.spares.push_back(no);
        }
        if self.spares.len() > MOST_SPARES {
            self.drop_spare()
        } else {
            None
        }
    }

    /// Returns true if there are spares.
    pub(crate) fn has_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Removes the oldest spare. Returns the party that it was; none if its program has reused it.
    pub(crate) fn drop_spare(&mut self) -> Option<Party> {
        let oldest = self.spares.pop_front()?;
        let session = self.by_no.get_mut(&oldest)?;
        session.spare = false;
        if session.over {
            self.remove(oldest)
        } else {
            None
        }
    }

    /// Removes a session that is over. Returns the party that it was.
    fn remove(&mut self, no: SessionNo) -> Option<Party> {
        let session = self.by_no.remove(&no)?;
        self.over -= 1;
        self.renumbered.remove(&session.holds);
        let names = self.by_name.get_mut(&session.db);
        if let Some(names) = names.filter(|_| !session.closed) {
            names.remove(&session.name);
        }
        Some(Party::Session(session.holds))
    }

    /// Forgets all sessions, after a demotion.
    pub(crate) fn clear(&mut self) {
        *self = Sessions {
            last: self.last,
            drawn: self.drawn,
            random: self.random.clone(),
            restarts: self.restarts,
            confirms: self.confirms,
            ..Sessions::default()
        };
    }
}
