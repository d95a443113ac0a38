//! Views of a lock. They change nothing, end nothing, and are possible on a replica.

use crate::lock::{Hold, Lock};
use crate::queue::{Place, WaitQueue};
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{
    ClientId, HoldRef, Limit, Millis, NameRef, Now, Party, Permits, RequestId, SessionNo, Share,
    Token, WallMs,
};
use std::collections::BinaryHeap;
use std::rc::Rc;

/// The reply of `DLOCK.INFO` about a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Held, reserved or quarantined.
    pub state: LockState,
    /// The strictest limit of the holders, or what the head of the queue asks for.
    pub limit: Limit,
    /// How many hold it.
    pub held: usize,
    /// How many permits they hold.
    pub permits: u64,
    /// How many places its queue has.
    pub queued: usize,
    /// The holders, in order of their grants, at most as many as were asked for.
    pub holders: Vec<HoldView>,
    /// The queue, in order, at most as many places as were asked for.
    pub queue: Vec<PlaceView>,
}

/// The state of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// It has a holder.
    Held,
    /// Nobody holds it; it is kept for the head of the queue.
    Reserved,
    /// Nobody holds it, and the server grants nothing for now.
    Quarantined,
}

/// One holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    /// The owner.
    pub owner: Vec<u8>,
    /// The fencing token.
    pub token: Token,
    /// The hold count.
    pub holds: u32,
    /// The limit it holds with.
    pub limit: Limit,
    /// How many permits it holds.
    pub permits: Permits,
    /// Milliseconds until the lease ends.
    pub lease_ms: Millis,
    /// Milliseconds since the grant.
    pub held_ms: Millis,
    /// Whether it ends with a connection.
    pub ephemeral: bool,
    /// Whether the server renews it.
    pub auto: bool,
    /// Whether as many replicas as necessary have confirmed it.
    pub acked: bool,
    /// The session that it is in.
    pub session: Option<SessionView>,
    /// The connection that it is tied to, else the one that last took or entered it.
    pub client: ClientId,
}

/// A session, as a view of its hold or wait shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its name.
    pub name: Vec<u8>,
    /// Whether it is alive.
    pub alive: bool,
    /// Since how many milliseconds it is that, or not that.
    pub since_ms: Millis,
}

/// One place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceView {
    /// The owner.
    pub owner: Vec<u8>,
    /// The kind of place.
    pub kind: PlaceKind,
    /// The limit and the permits that it asks for.
    pub share: Share,
    /// Milliseconds since it was made.
    pub waited_ms: Millis,
    /// Milliseconds until its time is up: the wait's, or the claim window's; none without bound.
    pub left_ms: Option<Millis>,
    /// The session that waits here.
    pub session: Option<SessionView>,
    /// The connection that waits here, or that asked in the session.
    pub client: ClientId,
}

/// Kinds of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceKind {
    /// The place of a blocked connection, or of a session.
    Waiter,
    /// A ticket on which a connection or a session waits.
    Ticket,
    /// A ticket on which nobody waits, or the place of a session that is not alive.
    Absent,
}

/// One line of `DLOCK.LIST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The holder that was asked for, or the one whose lease ends last: who, and milliseconds until that.
    pub hold: Option<(Vec<u8>, Millis)>,
    /// The session of that hold.
    pub session: Option<SessionView>,
    /// How many hold it.
    pub holders: usize,
    /// How many places its queue has.
    pub queued: usize,
    /// For how many milliseconds the first of them has been there; none if there is none.
    pub first_waited_ms: Option<Millis>,
}

impl Engine {
    /// Returns how many places the queue of a lock has, and for how many milliseconds the first of them has been there.
    pub fn waiting(&self, name: NameRef, now: Now) -> (usize, Option<Millis>) {
        let queue = self.queue(name);
        let first = queue.head().map(|(_, place)| place.waited_us(now) / 1000);
        (queue.len(), first)
    }

    /// Returns the locks of a database that have a queue or a watch: about `most` of them from this hash on, and the hash to
    /// continue from; none if these were the last.
    pub fn queue_keys(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        self.queues.keys_from(db, from, most)
    }

    /// Returns the row of a lock in the list; none if nobody holds it (or not this owner) and nobody waits, or if this session does
    /// neither. Takes no longer for a lock with many holders or places, unless a session is asked for.
    pub fn row(
        &self,
        lock: Option<&Lock>,
        now: Now,
        name: NameRef,
        owner: Option<&[u8]>,
        session: Option<&[u8]>,
    ) -> Option<Row> {
        let hold = match owner {
            Some(owner) => Some(self.held(lock, now, owner)?),
            None => self.longest(lock, now),
        };
        if session.is_some_and(|session| !self.is_of_session(lock, name, session)) {
            return None;
        }
        let lock = lock.unwrap_or(&Lock::FREE);
        let queue = self.queue(name);
        let row = Row {
            hold: hold.map(|hold| (hold.owner.to_vec(), hold.deadline.since(now.wall()))),
            session: hold.and_then(|hold| self.view_session_of(&hold, now, name)),
            holders: lock.live_holders(now.wall()),
            // On a replica, and right after a load, only the value knows the tickets.
            queued: queue.len().max(lock.tickets_len()),
            first_waited_ms: match queue.head() {
                Some((_, place)) => Some(place.waited_us(now) / 1000),
                None => {
                    let first = lock.tickets().next();
                    first.map(|(number, _)| now.us.saturating_sub(number.0) / 1000)
                }
            },
        };
        (row.holders > 0 || row.queued > 0).then_some(row)
    }

    /// Returns true if a session holds this lock or waits for it.
    fn is_of_session(&self, lock: Option<&Lock>, name: NameRef, session: &[u8]) -> bool {
        let Some(no) = self.holds.sessions.find(name.db, session) else {
            return false;
        };
        let holds = |hold: Hold| {
            let owner = hold.owner;
            self.holds.session_of(HoldRef { name, owner }, hold.token) == Some(no)
        };
        let waits = |place: &Place| self.session_of_place(place) == Some(no);
        let mut places = self.queue(name).in_order();
        lock.is_some_and(|lock| lock.holds().any(holds)) || places.any(|(_, place)| waits(place))
    }

    /// Returns the owner's hold, if its lease has not run out.
    pub fn held<'l>(&self, lock: Option<&'l Lock>, now: Now, owner: &[u8]) -> Option<Hold<'l>> {
        lock?.hold(owner).filter(|hold| hold.deadline > now.wall())
    }

    /// Returns the hold whose lease ends last, if it has not run out.
    pub fn longest<'l>(&self, lock: Option<&'l Lock>, now: Now) -> Option<Hold<'l>> {
        lock?.last().filter(|hold| hold.deadline > now.wall())
    }

    /// Checks that the lock is held under this token now.
    ///
    /// Errors: `Fenced` if nobody does.
    pub fn check(&self, lock: Option<&Lock>, now: Now, token: Token) -> Result<(), Refusal> {
        let held = |hold: Hold| hold.token == token && hold.deadline > now.wall();
        if lock.unwrap_or(&Lock::FREE).holds().any(held) {
            Ok(())
        } else {
            Err(Refusal::Fenced)
        }
    }

    /// Returns how many places of the queue are before the owner's; none if it has no place.
    pub fn position(&self, lock: Option<&Lock>, name: NameRef, owner: &[u8]) -> Option<usize> {
        let queue = self.queue(name);
        match queue.number_of(owner).and_then(|at| queue.rank(at)) {
            Some(rank) => Some(rank),
            // On a replica, and right after a load, only the value knows the tickets.
            None => lock?
                .tickets()
                .position(|(_, ticket)| *ticket.owner == *owner),
        }
    }

    /// Returns how many places are before a waiting request's at its lock, the most of those of a request for many; 0 for a waiting
    /// upgrade.
    pub fn rank(&self, id: RequestId) -> usize {
        let parts = self.requests.get(id).map_or(&[][..], |at| at.parts());
        let ranks = parts
            .iter()
            .filter_map(|part| self.queues.at(part.lock).rank(part.place));
        ranks.max().unwrap_or(0)
    }

    /// Returns the view of a hold's session.
    fn view_session_of(&self, hold: &Hold, now: Now, name: NameRef) -> Option<SessionView> {
        let owner = hold.owner;
        let no = self.holds.session_of(HoldRef { name, owner }, hold.token)?;
        self.view_session(no, now)
    }

    /// Returns the view of a session.
    fn view_session(&self, no: SessionNo, now: Now) -> Option<SessionView> {
        let session = self.holds.sessions.get(no)?;
        Some(SessionView {
            name: session.name.to_vec(),
            alive: session.alive,
            since_ms: now.steady().since(session.since),
        })
    }

    /// Returns the view of a lock with at most `most` holders and places; none if nobody holds it and nobody waits.
    pub fn view(&self, lock: Option<&Lock>, now: Now, name: NameRef, most: usize) -> Option<View> {
        let lock = lock.unwrap_or(&Lock::FREE);
        let live = |deadline: WallMs| deadline > now.wall();
        let held = lock.live_holders(now.wall());
        // Those with the lowest tokens, of however many there are.
        let mut first = BinaryHeap::new();
        for (owner, token, deadline) in lock.owned_leases() {
            if live(deadline) {
                first.push((token, owner));
                if first.len() > most {
                    first.pop();
                }
            }
        }
        let first = first.into_sorted_vec();
        let holds: Vec<Hold> = first
            .into_iter()
            .filter_map(|(_, owner)| lock.hold(owner))
            .collect();
        let (queued, queue, head) = self.view_queue(lock, now, name, most);
        if held == 0 && queued == 0 {
            return None;
        }
        let (strictest, permits) = if held == lock.holders() {
            (lock.strictest(), lock.permits())
        } else {
            let live = || lock.holds().filter(|hold| live(hold.deadline));
            let permits = live().map(|hold| u64::from(hold.permits.get()));
            (live().map(|hold| hold.limit).min(), permits.sum())
        };
        Some(View {
            state: if held > 0 {
                LockState::Held
            } else if !self.policy.granting(now) {
                LockState::Quarantined
            } else {
                LockState::Reserved
            },
            limit: strictest.or(head).unwrap_or(Limit::EXCLUSIVE),
            held,
            permits,
            queued,
            holders: holds
                .iter()
                .map(|hold| self.view_hold(now, name, hold))
                .collect(),
            queue,
        })
    }

    fn view_hold(&self, now: Now, name: NameRef, hold: &Hold) -> HoldView {
        let (owner, token) = (hold.owner, hold.token);
        let whose = HoldRef { name, owner };
        let tie = self.holds.ties.of_hold(whose, token);
        let session = self.view_session_of(hold, now, name);
        let kept = session.as_ref().is_none_or(|session| session.alive);
        HoldView {
            owner: owner.to_vec(),
            token,
            holds: hold.holds,
            limit: hold.limit,
            permits: hold.permits,
            lease_ms: hold.deadline.since(now.wall()),
            held_ms: now.wall().since(token.granted()),
            ephemeral: tie.is_some_and(|tie| tie.ephemeral),
            auto: kept && tie.is_some_and(|tie| tie.renews()),
            acked: self.holds.unconfirmed_grant(whose, token).is_none(),
            session,
            client: match tie.map(|tie| tie.party) {
                Some(Party::Connection(client)) => client,
                _ => hold.client,
            },
        }
    }

    fn queue(&self, name: NameRef) -> &WaitQueue {
        self.queues.at(self.queues.id(name))
    }

    fn view_queue(
        &self,
        lock: &Lock,
        now: Now,
        name: NameRef,
        most: usize,
    ) -> (usize, Vec<PlaceView>, Option<Limit>) {
        let queue = self.queue(name);
        if queue.is_empty() {
            let shown = lock.tickets().take(most).map(|(number, ticket)| PlaceView {
                owner: ticket.owner.to_vec(),
                kind: PlaceKind::Absent,
                share: ticket.share,
                waited_ms: now.us.saturating_sub(number.0) / 1000,
                left_ms: None,
                session: None,
                client: ClientId::NONE,
            });
            let head = lock.tickets().next().map(|(_, ticket)| ticket.share.limit);
            return (lock.tickets_len(), shown.collect(), head);
        }
        let places = queue.in_order().map(|(_, place)| place);
        let shown = places.take(most).map(|place| self.view_place(place, now));
        let head = queue.head().map(|(_, place)| place.share.limit);
        (queue.len().max(lock.tickets_len()), shown.collect(), head)
    }

    fn view_place(&self, place: &Place, now: Now) -> PlaceView {
        let window = place.ticket.as_deref();
        let request = place.request().and_then(|id| self.requests.get(id));
        let is_kept_back = request.is_some_and(|request| !self.may_be_granted(request));
        let until = match request {
            Some(request) => {
                let session = request.terms.session.filter(|_| is_kept_back);
                let session = session.and_then(|no| self.holds.sessions.get(no)?.due);
                let ends = request.until.into_iter().map(|due| due.at);
                ends.chain(session.map(|due| due.at)).min()
            }
            None => window.map(|window| window.until),
        };
        PlaceView {
            owner: place.owner.to_vec(),
            kind: match (request, window) {
                (None, _) => PlaceKind::Absent,
                (Some(_), _) if is_kept_back => PlaceKind::Absent,
                (Some(_), Some(_)) => PlaceKind::Ticket,
                (Some(_), None) => PlaceKind::Waiter,
            },
            share: place.share,
            waited_ms: place.waited_us(now) / 1000,
            left_ms: until.map(|at| at.since(now.steady())),
            session: self
                .session_of_place(place)
                .and_then(|no| self.view_session(no, now)),
            client: request.map_or(ClientId::NONE, |request| request.terms.client),
        }
    }
}
