//! Looking at a lock: changes nothing, ends nothing, and may be done on a replica.

use super::line::{Place, RequestId};
use super::lock::{Hold, Lock};
use super::requests::Stand;
use super::{Engine, Limit, Millis, NameRef, Now, Token};
use crate::error::Error;
use std::rc::Rc;

/// What `DLOCK.INFO` shows of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Held, reserved or quarantined.
    pub state: State,
    /// The strictest limit of the holders, or what the head of the queue asks for.
    pub limit: Limit,
    /// How many hold it.
    pub held: usize,
    /// How many places its queue has.
    pub queued: usize,
    /// The holders, in order of their grants, at most as many as were asked for.
    pub holders: Vec<HoldView>,
    /// The queue, in order, at most as many places as were asked for.
    pub queue: Vec<PlaceView>,
}

/// What a lock is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Somebody holds it.
    Held,
    /// Nobody holds it; it is kept for the head of the queue.
    Reserved,
    /// Nobody holds it, and the server grants nothing for now.
    Quarantined,
}

/// One holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    /// Who.
    pub owner: Vec<u8>,
    /// The fencing token.
    pub token: Token,
    /// The hold count.
    pub holds: u32,
    /// The limit it holds with.
    pub limit: Limit,
    /// Milliseconds until the lease ends.
    pub lease_ms: Millis,
    /// Milliseconds since the grant.
    pub held_ms: Millis,
    /// Whether it ends with a connection.
    pub session: bool,
    /// The client id of that connection, else of the one that last took or entered it; 0 if it is not known.
    pub client: u64,
}

/// One place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceView {
    /// Whose.
    pub owner: Vec<u8>,
    /// What kind of place.
    pub kind: PlaceKind,
    /// What is asked for.
    pub limit: Limit,
    /// Milliseconds since it is there.
    pub waited_ms: Millis,
    /// Milliseconds until its time is up: the wait's, or the claim window's; none without bound.
    pub left_ms: Option<Millis>,
    /// The client id of the first connection that waits here; 0 if none does.
    pub client: u64,
}

/// Kinds of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceKind {
    /// A blocked connection's place.
    Waiter,
    /// The place of a request that waits by a channel.
    Notify,
    /// A ticket with a connection waiting on it.
    Ticket,
    /// A ticket with nobody there.
    Absent,
}

/// One line of `DLOCK.LIST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The holder that was asked for, or the one whose lease ends last: who, and milliseconds until that.
    pub hold: Option<(Vec<u8>, Millis)>,
    /// How many hold it.
    pub holders: usize,
    /// How many places its queue has.
    pub queued: usize,
}

impl Engine {
    /// The locks of a database that somebody is queued for or that are watched: about `most` of them from this point of
    /// their order on, and the point to go on from; none if these were the last.
    pub fn in_line(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        self.lines.from(db, from, most)
    }

    /// What is listed of a lock; none if nobody holds it (or not this owner) and nobody waits. Takes no longer for a lock
    /// with many holders or places.
    pub fn row(
        &self,
        lock: Option<&Lock>,
        now: Now,
        name: NameRef,
        owner: Option<&[u8]>,
    ) -> Option<Row> {
        let hold = match owner {
            Some(owner) => Some(self.held(lock, now, owner)?),
            None => lock
                .and_then(Lock::last)
                .filter(|hold| hold.deadline > now.ms()),
        };
        let line = self.lines.get(name).filter(|line| !line.is_empty());
        let row = Row {
            hold: hold.map(|hold| (hold.owner.to_vec(), hold.deadline - now.ms())),
            holders: lock.map_or(0, |lock| lock.live(now.ms())),
            queued: line.map_or_else(|| lock.map_or(0, Lock::queued), |line| line.len()),
        };
        (row.holders > 0 || row.queued > 0).then_some(row)
    }

    /// The owner's hold, if its lease has not run out.
    pub fn held<'l>(&self, lock: Option<&'l Lock>, now: Now, owner: &[u8]) -> Option<Hold<'l>> {
        lock?.hold(owner).filter(|hold| hold.deadline > now.ms())
    }

    /// Whether somebody holds the lock under this token now.
    ///
    /// Errors: `Fenced` if nobody does.
    pub fn check(&self, lock: Option<&Lock>, now: Now, token: Token) -> Result<(), Error> {
        let held = |hold: Hold| hold.token == token && hold.deadline > now.ms();
        lock.is_some_and(|lock| lock.holds().any(held))
            .then_some(())
            .ok_or(Error::Fenced)
    }

    /// How many places stand before the owner's; none if it has no place.
    pub fn position(&self, lock: Option<&Lock>, name: NameRef, owner: &[u8]) -> Option<usize> {
        let line = self.lines.get(name);
        match line.and_then(|line| line.places.rank(line.number_of(owner)?)) {
            Some(rank) => Some(rank),
            // On a replica, and right after a load, only the value knows the tickets.
            None => lock?
                .tickets()
                .position(|(_, ticket)| *ticket.owner == *owner),
        }
    }

    /// How many places stand before a waiting request's at one lock; 0 for a waiting upgrade.
    pub fn rank(&self, id: RequestId) -> usize {
        let rank = match self.requests.get(id) {
            Some(Stand::One(name, number)) => {
                let line = self.lines.get(name.lend());
                line.and_then(|line| line.places.rank(*number))
            }
            _ => None,
        };
        rank.unwrap_or(0)
    }

    /// What there is to see, `most` holders and places at most; none if nobody holds and nobody waits.
    pub fn view(&self, lock: Option<&Lock>, now: Now, name: NameRef, most: usize) -> Option<View> {
        let live = |hold: &Hold| hold.deadline > now.ms();
        let mut holds: Vec<Hold> = lock
            .into_iter()
            .flat_map(Lock::holds)
            .filter(live)
            .collect();
        holds.sort_by_key(|hold| hold.token);
        let (queued, queue, head) = self.queue(lock, now, name, most);
        if holds.is_empty() && queued == 0 {
            return None;
        }
        let strictest = holds.iter().map(|hold| hold.limit).min();
        Some(View {
            state: match () {
                () if !holds.is_empty() => State::Held,
                () if self.policy.quarantined(now) => State::Quarantined,
                () => State::Reserved,
            },
            limit: strictest.or(head).unwrap_or(Limit::EXCLUSIVE),
            held: holds.len(),
            queued,
            holders: holds
                .iter()
                .take(most)
                .map(|hold| HoldView {
                    owner: hold.owner.to_vec(),
                    token: hold.token,
                    holds: hold.holds,
                    limit: hold.limit,
                    lease_ms: hold.deadline - now.ms(),
                    held_ms: now.ms().saturating_sub(hold.token / 1000),
                    session: self.sessions.client(hold.token).is_some(),
                    client: self.sessions.client(hold.token).unwrap_or(hold.client),
                })
                .collect(),
            queue,
        })
    }

    fn queue(
        &self,
        lock: Option<&Lock>,
        now: Now,
        name: NameRef,
        most: usize,
    ) -> (usize, Vec<PlaceView>, Option<Limit>) {
        let Some(line) = self.lines.get(name).filter(|line| !line.is_empty()) else {
            let tickets = || lock.into_iter().flat_map(Lock::tickets);
            let shown = tickets().take(most).map(|(number, ticket)| PlaceView {
                owner: ticket.owner.to_vec(),
                kind: PlaceKind::Absent,
                limit: ticket.limit,
                waited_ms: now.ms().saturating_sub(number / 1000),
                left_ms: None,
                client: 0,
            });
            return (
                tickets().count(),
                shown.collect(),
                tickets().next().map(|(_, ticket)| ticket.limit),
            );
        };
        let places = || {
            line.upgrade
                .as_deref()
                .into_iter()
                .chain(line.places.iter().map(|(_, place)| place))
        };
        let shown = places().take(most).map(|place| place.view(now)).collect();
        (line.len(), shown, places().next().map(|place| place.limit))
    }
}

impl Place {
    fn view(&self, now: Now) -> PlaceView {
        let first = self.requests.first();
        let until = match first {
            Some(request) => request.until.map(|due| due.at),
            None => self.absent(),
        };
        PlaceView {
            owner: self.owner.to_vec(),
            kind: match (&self.ticket, first) {
                (_, None) => PlaceKind::Absent,
                (Some(_), _) => PlaceKind::Ticket,
                (None, Some(request)) if request.channel.is_some() => PlaceKind::Notify,
                (None, _) => PlaceKind::Waiter,
            },
            limit: self.limit,
            waited_ms: now.ms().saturating_sub(self.since),
            left_ms: until.map(|at| at.saturating_sub(now.ms())),
            client: first.map_or(0, |request| request.client),
        }
    }
}
