//! Sessions in the plainest code: lists that are searched from end to end, and nothing from the engine.
//!
//! A command changes the lists; [`Model::settle`] then does whatever has become possible; [`Model::end_event`] answers those who are
//! blocked. The server alone chooses when between a quarter and a third of a lease it renews a hold, and in which order it tells what
//! happened in one event: the model takes that from it (see `comparison`).

use super::words::{Command, Said, Serial, Share, Take, Verb};
use dlock_engine::Millis;
use std::collections::BTreeMap;

/// How long an absent place is kept if nothing else was asked for.
pub const WINDOW_MS: Millis = 5_000;

/// The shortest lease of a hold that the server renews.
const SHORTEST_MS: Millis = 1_000;

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub now: Millis,
    pub locks: BTreeMap<&'static str, Lock>,
    pub sessions: Vec<Session>,
    waits: Vec<Wait>,
    /// What blocked connections were answered, until a test takes it.
    pub heard: Vec<(u64, Said)>,
    /// Requests of sessions whose places' window has ended: their time is up.
    overdue: Vec<u64>,
    drawn: Serial,
    asked: u64,
    /// The token that the command under way names: its program knows what becomes of that hold.
    named: Option<Serial>,
    /// Whether the reply to the command under way tells of the holds that come into a session.
    replies: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Lock {
    pub holds: Vec<Hold>,
    /// The place of an owner that waits to upgrade its hold: before all others.
    pub upgrade: Option<Place>,
    pub queue: Vec<Place>,
}

#[derive(Debug, Clone)]
pub struct Hold {
    pub owner: &'static str,
    pub token: Serial,
    pub count: u32,
    pub share: Share,
    pub end: Millis,
    pub tie: Tie,
}

/// What a hold belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tie {
    Nothing,
    /// It ends with a connection.
    Connection(u64),
    /// The session of this id renews it for this lease.
    Session {
        id: Serial,
        lease: Millis,
        renewal: Renewal,
    },
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Renewal {
    /// When a quarter to a third of the lease has passed since this instant: the server chooses.
    Since(Millis),
    At(Millis),
}

#[derive(Debug, Clone)]
pub struct Place {
    pub owner: &'static str,
    pub share: Share,
    /// The claim window of a ticket: how long it is kept with nobody there; 0 if it ends with the wait.
    pub claim: Option<Millis>,
    /// The request that waits here.
    pub wait: Option<u64>,
    /// Until when an absent ticket is kept.
    until: Millis,
}

/// A request that waits.
#[derive(Debug, Clone)]
struct Wait {
    id: u64,
    /// Counts the time-outs that were set.
    timer: u64,
    client: u64,
    take: Take,
    until: Option<Millis>,
}

#[derive(Debug, Clone)]
pub struct Session {
    pub name: &'static str,
    pub id: Serial,
    keeper: Option<u64>,
    ms: Millis,
    pub alive: bool,
    /// When its life ends, or, if it is not alive, its places go.
    due: Option<Millis>,
    blocked: Option<Blocked>,
    pub rows: Vec<Row>,
    pub last: u64,
}

/// A SESSION command that is blocked.
#[derive(Debug, Clone, Copy)]
struct Blocked {
    client: u64,
    seen: u64,
    arrived: Millis,
    until: Millis,
}

#[derive(Debug, Clone)]
pub struct Row {
    /// 0 until the event is over: the server chooses the order in which it tells what happened in it.
    pub number: u64,
    pub word: &'static str,
    pub key: &'static str,
    pub owner: &'static str,
    /// 0 of a wait.
    pub token: Serial,
    end: Option<Millis>,
    /// Whether it tells of a hold that is in the session since.
    stands: bool,
    /// Whether the reply to a command says the same.
    repeats: bool,
}

impl Lock {
    pub fn hold(&self, owner: &str) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.owner == owner)
    }

    fn hold_mut(&mut self, owner: &str) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.upgrade.iter().chain(&self.queue)
    }

    fn places_mut(&mut self) -> impl Iterator<Item = &mut Place> {
        self.upgrade.iter_mut().chain(&mut self.queue)
    }

    fn place(&self, owner: &str) -> Option<&Place> {
        self.places().find(|place| place.owner == owner)
    }

    fn keep_places(&mut self, kept: impl Fn(&Place) -> bool) {
        self.upgrade.take_if(|place| !kept(place));
        self.queue.retain(kept);
    }

    /// Returns true if the other holders leave room for this owner.
    fn admits(&self, owner: &str, share: Share) -> bool {
        let others = || self.holds.iter().filter(|hold| hold.owner != owner);
        let all = share.permits + others().map(|hold| hold.share.permits).sum::<u64>();
        let limits = others().map(|hold| hold.share.limit);
        limits.chain([share.limit]).all(|limit| all <= limit)
    }

    /// Returns true if nobody is before this owner.
    fn is_first(&self, owner: &str) -> bool {
        self.places()
            .next()
            .is_none_or(|place| place.owner == owner)
    }
}

impl Take {
    pub fn is_many(&self) -> bool {
        self.verb == Verb::Many
    }
}

impl Model {
    /// Returns the token of the first hold of a lock.
    pub fn first_token(&self, key: &str) -> Option<Serial> {
        let lock = self.locks.get(key)?;
        lock.holds.first().map(|hold| hold.token)
    }

    /// Returns the id of a session and the number of its last row.
    pub fn last_row(&self, session: &str) -> Option<(Serial, u64)> {
        let session = self.sessions.iter().find(|its| its.name == session)?;
        Some((session.id, session.last))
    }

    pub fn new(now: Millis) -> Model {
        Model {
            now,
            ..Model::default()
        }
    }

    fn lock(&mut self, key: &'static str) -> &mut Lock {
        self.locks.entry(key).or_default()
    }

    fn draw(&mut self) -> Serial {
        self.drawn += 1;
        self.drawn
    }

    fn session(&mut self, name: &str) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|its| its.name == name)
    }

    /// Finds or begins a session. Returns its id.
    fn enter(&mut self, name: &'static str) -> Serial {
        if let Some(session) = self.session(name) {
            return session.id;
        }
        let id = self.draw();
        self.sessions.push(Session {
            name,
            id,
            keeper: None,
            ms: 0,
            alive: false,
            due: None,
            blocked: None,
            rows: Vec::new(),
            last: 0,
        });
        id
    }

    /// Returns what a command is answered. `client` is none for a script.
    pub fn command(&mut self, client: Option<u64>, command: &Command) -> Said {
        self.replies = true;
        self.named = match command {
            Command::Renew { token, .. } | Command::Release { token, .. } => *token,
            _ => None,
        };
        let said = self.decide(client, command);
        (self.replies, self.named) = (false, None);
        // What a living session may have is granted, and renewed, after the answer.
        if !matches!(command, Command::Session { ms: 1.., .. }) {
            self.settle();
        }
        match said {
            Waiting::Said(said) => said,
            Waiting::On(id, Some(session)) => {
                let place = self.rank(id);
                Said::List(vec![
                    Said::Number(0),
                    Said::Number(place),
                    Said::Id(session),
                ])
            }
            Waiting::On(id, None) if self.waits.iter().any(|wait| wait.id == id) => Said::Waits,
            // The settlement has granted it already.
            Waiting::On(..) => self.heard.pop().map_or(Said::Waits, |(_, said)| said),
        }
    }

    fn decide(&mut self, client: Option<u64>, command: &Command) -> Waiting {
        let said = match command {
            Command::Take(take) if take.is_many() => return self.take_many(client, take),
            Command::Take(take) => return self.take_one(client, take),
            Command::Renew { .. } => self.renew(client, command),
            Command::Release {
                key,
                owner,
                leave,
                token,
            } => self.release(key, owner, *leave, *token),
            Command::ReleaseMany { keys, owner } => {
                let each = |key: &&'static str| match self.release(key, owner, None, None) {
                    Said::Error(_) => Said::Null,
                    said => said,
                };
                Said::List(keys.iter().map(each).collect())
            }
            Command::Downgrade {
                key,
                owner,
                limit,
                token,
            } => self.downgrade(key, owner, *limit, *token),
            Command::Cancel { key, owner } => self.cancel(key, owner),
            Command::Force { key, owner } => {
                let holds = self.lock(key).holds.iter();
                let chosen = holds.filter(|hold| owner.is_none_or(|owner| owner == hold.owner));
                let owners: Vec<&'static str> = chosen.map(|hold| hold.owner).collect();
                for owner in &owners {
                    self.end_hold(key, owner, "forced");
                }
                Said::Number(owners.len() as u64)
            }
            Command::Session { session, ms: 0, .. } => self.end_session(session),
            Command::Session {
                session,
                ms,
                seen,
                block,
            } => self.keep(client, session, *ms, *seen, *block),
        };
        Waiting::Said(said)
    }

    // Taking

    fn take_one(&mut self, client: Option<u64>, take: &Take) -> Waiting {
        let (key, owner, share) = (take.keys[0], take.owner, take.share);
        let session = take.session.map(|name| self.enter(name));
        let block = take.block.filter(|_| client.is_some() || session.is_some());
        let lock = self.lock(key).clone();
        let place = lock.place(owner);
        let older = place.and_then(|place| place.wait);
        if older.is_some() && block.is_none() {
            return Said::Null.into();
        }
        if let Some(hold) = lock.hold(owner) {
            let upgrades = share.limit < hold.share.limit;
            let refused = match upgrades {
                true => hold.share.permits > 1 || session.is_some(),
                false => share.permits > hold.share.permits,
            };
            if refused {
                return Said::Error("ERR").into();
            }
        }
        let again =
            older.is_some_and(|id| self.waits_in(id, take) && !self.wait(id).take.is_many());
        if again && place.is_some_and(|place| place.share != share) {
            return Said::Error("ERR").into();
        }
        let upgrades = lock
            .hold(owner)
            .is_some_and(|its| share.limit < its.share.limit);
        let now = match lock.hold(owner) {
            Some(_) => !upgrades || lock.admits(owner, share),
            None => lock.is_first(owner) && lock.admits(owner, share),
        };
        if now {
            self.take_over(older, again, key);
            self.lock(key).keep_places(|place| place.owner != owner);
            return self.answer(client, take).into();
        }
        let claim = match (take.verb, take.claim) {
            (Verb::Fair, Some(claim)) => Some(claim),
            (Verb::Fair, None) if block.is_none() && session.is_none() => Some(WINDOW_MS),
            (Verb::Fair, None) if block.is_some() => Some(0),
            _ => None,
        };
        let Some(block) = block else {
            if !upgrades && (place.is_some() || claim.is_some()) {
                self.stand(take, key, claim, None);
            }
            return Said::Null.into();
        };
        let others = |place: &Place| place.owner != owner;
        if upgrades && lock.upgrade.as_ref().is_some_and(others) {
            return Said::Error("DEADLOCK").into();
        }
        self.take_over(older, again, key);
        let id = self.register(client, take, block);
        match upgrades {
            true => {
                self.lock(key).upgrade = Some(Place {
                    owner,
                    share,
                    claim: None,
                    wait: Some(id),
                    until: 0,
                })
            }
            false => self.stand(take, key, claim, Some(id)),
        }
        Waiting::On(id, session)
    }

    /// Gives the owner of a request a place in a queue, or lets it have its own for this request. A place where nobody waits is kept
    /// for its window.
    fn stand(&mut self, take: &Take, key: &'static str, claim: Option<Millis>, wait: Option<u64>) {
        let (now, owner, share) = (self.now, take.owner, take.share);
        let queue = &mut self.lock(key).queue;
        let at = queue.iter().position(|place| place.owner == owner);
        let at = at.unwrap_or_else(|| {
            queue.push(Place {
                owner,
                share,
                claim: None,
                wait: None,
                until: 0,
            });
            queue.len() - 1
        });
        let place = &mut queue[at];
        (place.share, place.wait) = (share, wait);
        place.claim = claim.or(place.claim);
        if wait.is_none() {
            place.until = now + place.claim.filter(|ms| *ms > 0).unwrap_or(WINDOW_MS);
        }
    }

    fn take_many(&mut self, client: Option<u64>, take: &Take) -> Waiting {
        let (owner, share) = (take.owner, take.share);
        let session = take.session.map(|name| self.enter(name));
        let block = take.block.filter(|_| client.is_some() || session.is_some());
        let places = take
            .keys
            .iter()
            .filter_map(|key| self.locks.get(key)?.place(owner));
        let mut older: Vec<u64> = places.filter_map(|place| place.wait).collect();
        older.dedup();
        if let [id] = older[..] {
            if self.waits_in(id, take) && self.asks_for_the_same(id, take) {
                if let Some(block) = block {
                    return self.go_on(client, take, id, block);
                }
            }
        }
        if !older.is_empty() && block.is_none() {
            return Said::Null.into();
        }
        let holds = take
            .keys
            .iter()
            .filter_map(|key| self.locks.get(key)?.hold(owner));
        let holds: Vec<&Hold> = holds.collect();
        let refused = |hold: &&&Hold| match share.limit < hold.share.limit {
            true => hold.share.permits > 1 || session.is_some(),
            false => share.permits > hold.share.permits,
        };
        if holds.iter().any(|hold| refused(&hold)) {
            return Said::Error("ERR").into();
        }
        let holding = !holds.is_empty();
        // The owner's own places count as gone.
        let free = |key: &&'static str| {
            let Some(lock) = self.locks.get(key) else {
                return true;
            };
            let alone = lock.places().all(|place| place.owner == owner);
            match lock.hold(owner) {
                Some(hold) => share.limit >= hold.share.limit || lock.admits(owner, share),
                None => alone && lock.admits(owner, share),
            }
        };
        let now = take.keys.iter().all(free);
        let Some(block) = block.or(now.then_some(0)) else {
            return Said::Null.into();
        };
        if !now && holding {
            return Said::Error("HOLDING").into();
        }
        for id in older {
            self.end_wait(id, "replaced", None);
        }
        for key in &take.keys {
            self.lock(key).keep_places(|place| place.owner != owner);
        }
        if now {
            return self.answer(client, take).into();
        }
        let id = self.register(client, take, block);
        for key in &take.keys {
            self.stand(take, key, None, Some(id));
        }
        Waiting::On(id, session)
    }

    fn asks_for_the_same(&self, id: u64, take: &Take) -> bool {
        let sorted = |take: &Take| {
            let mut keys = take.keys.clone();
            keys.sort();
            keys
        };
        let other = &self.wait(id).take;
        other.is_many() && sorted(other) == sorted(take)
    }

    /// Continues a session's wait for many locks when it is asked for again, or grants it.
    fn go_on(&mut self, client: Option<u64>, take: &Take, id: u64, block: Millis) -> Waiting {
        if self.wait(id).take.share != take.share {
            return Said::Error("ERR").into();
        }
        let first = |key: &&'static str| {
            let lock = &self.locks[*key];
            lock.is_first(take.owner) && lock.admits(take.owner, take.share)
        };
        if take.keys.iter().all(first) {
            self.forget_wait(id);
            for key in &take.keys {
                self.lock(key)
                    .keep_places(|place| place.owner != take.owner);
            }
            return self.answer(client, take).into();
        }
        self.forget_wait(id);
        let fresh = self.register(client, take, block);
        for key in &take.keys {
            let places = self.lock(key).places_mut();
            for place in places.filter(|place| place.owner == take.owner) {
                place.wait = Some(fresh);
            }
        }
        let session = take.session.map(|name| self.enter(name));
        Waiting::On(fresh, session)
    }

    /// Grants all of a request's locks. Returns the reply.
    fn answer(&mut self, client: Option<u64>, take: &Take) -> Said {
        let (tokens, count) = self.award(client, take);
        let tokens = Said::List(tokens.into_iter().map(Said::Token).collect());
        let id = take.session.map(|name| Said::Id(self.enter(name)));
        match (tokens, take.is_many(), id) {
            (tokens, true, Some(id)) => Said::List(vec![tokens, id]),
            (tokens, true, None) => tokens,
            (Said::List(mut token), false, id) => {
                token.push(id.unwrap_or(Said::Number(count.into())));
                Said::List(token)
            }
            (said, ..) => said,
        }
    }

    /// Returns true if a request waits in the session of this one.
    fn waits_in(&self, id: u64, take: &Take) -> bool {
        take.session.is_some() && self.wait(id).take.session == take.session
    }

    fn wait(&self, id: u64) -> &Wait {
        let wait = self.waits.iter().find(|wait| wait.id == id);
        wait.expect("a place names a request that waits")
    }

    fn register(&mut self, client: Option<u64>, take: &Take, block: Millis) -> u64 {
        self.asked += 1;
        self.waits.push(Wait {
            id: self.asked,
            timer: self.asked,
            client: client.unwrap_or(0),
            take: take.clone(),
            until: (block > 0).then_some(self.now + block),
        });
        let gone = self.now + WINDOW_MS;
        let session = take.session.and_then(|name| self.session(name));
        if let Some(session) = session.filter(|its| !its.alive) {
            session.due = Some(gone);
        }
        self.asked
    }

    /// Ends an older request, whose place at this lock the newer one has. A wait that is asked for again just continues.
    fn take_over(&mut self, older: Option<u64>, again: bool, key: &'static str) {
        match older {
            Some(id) if again => self.forget_wait(id),
            Some(id) => self.end_wait(id, "replaced", Some(key)),
            None => {}
        }
    }

    /// Removes a request. Its places stay.
    fn forget_wait(&mut self, id: u64) {
        self.waits.retain(|wait| wait.id != id);
    }

    /// Ends a wait, and says why: to its session, or to its connection. Its place at the lock `stays` stays.
    fn end_wait(&mut self, id: u64, why: &'static str, stays: Option<&str>) {
        let take = self.wait(id).take.clone();
        let client = self.wait(id).client;
        self.leave(id, stays);
        match take.session {
            Some(name) => {
                for key in &take.keys {
                    self.tell(name, why, key, take.owner, 0, None);
                }
            }
            None => self.heard.push((
                client,
                match why {
                    "replaced" => Said::Error("REPLACED"),
                    "notheld" => Said::Error("NOTHELD"),
                    _ => Said::Null,
                },
            )),
        }
    }

    /// Removes a request and its places, except at the lock `stays`. A ticket with a window is absent from now on.
    fn leave(&mut self, id: u64, stays: Option<&str>) {
        let (keys, now) = (self.wait(id).take.keys.clone(), self.now);
        self.forget_wait(id);
        for key in keys {
            let lock = self.lock(key);
            for place in lock.places_mut().filter(|place| place.wait == Some(id)) {
                place.until = now + place.claim.unwrap_or(0);
                if place.until > now || stays == Some(key) {
                    place.wait = None;
                }
            }
            lock.keep_places(|place| place.wait != Some(id));
        }
    }

    /// Makes the owner a holder of all locks. Returns the tokens, and the count at the first.
    fn award(&mut self, client: Option<u64>, take: &Take) -> (Vec<Serial>, u32) {
        let tokens: Vec<Serial> = take
            .keys
            .iter()
            .map(|key| self.enter_lock(client, key, take))
            .collect();
        let first = self.locks[take.keys[0]].hold(take.owner);
        (tokens, first.expect("it was granted").count)
    }

    /// Makes the owner a holder of a lock, or lets it enter once more. Returns the token.
    fn enter_lock(&mut self, client: Option<u64>, key: &'static str, take: &Take) -> Serial {
        let (owner, least) = (take.owner, take.holds);
        let lease = match take.session {
            Some(_) => take.lease.max(SHORTEST_MS),
            None => take.lease,
        };
        let end = self.now + lease;
        let hold = self.lock(key).hold(owner).cloned();
        let token = match hold {
            None => {
                let token = self.draw();
                self.lock(key).holds.push(Hold {
                    owner,
                    token,
                    count: least.unwrap_or(1),
                    share: take.share,
                    end,
                    tie: Tie::Nothing,
                });
                token
            }
            Some(mut hold) => {
                hold.count = match (least, take.session) {
                    (Some(least), _) => hold.count.max(least),
                    (None, Some(_)) => hold.count,
                    (None, None) => hold.count + 1,
                };
                let before = hold.end;
                hold.end = hold.end.max(end);
                if take.share.limit < hold.share.limit {
                    // It is a new hold, in no session.
                    if let Tie::Session { .. } = hold.tie {
                        self.leave_session(key, owner, "taken", Some(before));
                        hold.tie = Tie::Nothing;
                    }
                    (hold.token, hold.share) = (self.draw(), take.share);
                } else if let Tie::Session { lease: its, .. } = &mut hold.tie {
                    *its = lease.max(*its);
                }
                let token = hold.token;
                *self.lock(key).hold_mut(owner).expect("it was found") = hold;
                token
            }
        };
        match take.session {
            Some(name) => self.join(key, owner, name, lease),
            None if take.ephemeral => self.tie_to_connection(key, owner, client.unwrap_or(0)),
            None => {}
        }
        token
    }

    // Sessions

    /// Brings a hold into a session. The length of its renewals becomes no shorter.
    fn join(&mut self, key: &'static str, owner: &'static str, name: &'static str, lease: Millis) {
        let (id, now) = (self.enter(name), self.now);
        let hold = self.lock(key).hold(owner).expect("it is held").clone();
        let (stays, longest) = match hold.tie {
            Tie::Session { id: its, lease, .. } => (its == id, lease),
            _ => (false, SHORTEST_MS),
        };
        if !stays {
            self.leave_session(key, owner, "taken", Some(hold.end));
            self.tell(name, "granted", key, owner, hold.token, None);
        }
        let hold = self.lock(key).hold_mut(owner).expect("it is held");
        hold.tie = Tie::Session {
            id,
            lease: lease.max(longest),
            renewal: Renewal::Since(now),
        };
    }

    fn tie_to_connection(&mut self, key: &'static str, owner: &'static str, client: u64) {
        let end = self.lock(key).hold(owner).map(|hold| hold.end);
        self.leave_session(key, owner, "taken", end);
        let hold = self.lock(key).hold_mut(owner).expect("it is held");
        hold.tie = Tie::Connection(client);
    }

    /// Takes a hold out of its session, if it is in one. The session gets a row, unless a command that names the token did it.
    fn leave_session(
        &mut self,
        key: &'static str,
        owner: &'static str,
        why: &'static str,
        end: Option<Millis>,
    ) {
        let hold = self.lock(key).hold_mut(owner).expect("it is held");
        let Tie::Session { id, .. } = hold.tie else {
            return;
        };
        hold.tie = Tie::Nothing;
        let token = hold.token;
        let Some(session) = self.sessions.iter_mut().find(|its| its.id == id) else {
            return;
        };
        let its = |row: &Row| row.stands && row.token == token;
        if self.named == Some(token) {
            return session.rows.retain(|row| !its(row));
        }
        for row in session.rows.iter_mut().filter(|row| its(row)) {
            row.stands = false;
        }
        let name = session.name;
        self.tell(name, why, key, owner, token, end);
    }

    fn tell(
        &mut self,
        name: &str,
        word: &'static str,
        key: &'static str,
        owner: &'static str,
        token: Serial,
        end: Option<Millis>,
    ) {
        let repeats = word == "granted" && self.replies;
        if let Some(session) = self.session(name) {
            session.last += 1;
            session.rows.push(Row {
                number: 0,
                word,
                key,
                owner,
                token,
                end,
                stands: word == "granted",
                repeats,
            });
        }
    }

    fn keep(
        &mut self,
        client: Option<u64>,
        name: &'static str,
        ms: Millis,
        seen: Option<(Serial, u64)>,
        block: Option<Millis>,
    ) -> Said {
        let (now, known) = (self.now, self.session(name).map(|session| session.id));
        let seen = seen
            .filter(|(id, _)| Some(*id) == known)
            .map_or(0, |(_, n)| n);
        self.enter(name);
        let session = self.session(name).expect("it has begun");
        if seen > session.last {
            return Said::Error("ERR");
        }
        session.rows.retain(|row| row.number > seen);
        self.answer_blocked(name);
        let session = self.session(name).expect("it has begun");
        (session.ms, session.keeper, session.alive) = (ms, client, true);
        let news = session.has_news(seen);
        if let Some((client, block)) = client.zip(block).filter(|_| !news) {
            session.due = None;
            session.blocked = Some(Blocked {
                client,
                seen,
                arrived: now,
                until: now + block,
            });
            return Said::Waits;
        }
        session.due = Some(now + ms);
        self.news(name, seen, now)
    }

    /// Returns the reply to a SESSION command that arrived then.
    fn news(&mut self, name: &str, seen: u64, arrived: Millis) -> Said {
        let now = self.now;
        let left = |end: Millis| match end > now {
            true => end - arrived,
            false => 0,
        };
        let session = self.session(name).expect("it is there").clone();
        let holds = self.locks.values().flat_map(|lock| &lock.holds);
        let its = |hold: &&Hold| matches!(hold.tie, Tie::Session { id, .. } if id == session.id);
        let holds: Vec<&Hold> = holds.filter(its).collect();
        let least = holds.iter().map(|hold| left(hold.end)).min();
        let row = |row: &Row| {
            let hold = holds.iter().find(|hold| hold.token == row.token);
            let end = match row.stands {
                true => hold.map(|hold| hold.end),
                false => row.end,
            };
            Said::List(vec![
                Said::Number(row.number),
                Said::Text(row.word.to_string()),
                Said::Text(row.key.to_string()),
                Said::Text(row.owner.to_string()),
                match row.token {
                    0 => Said::Number(0),
                    token => Said::Token(token),
                },
                Said::Number(end.map_or(0, left)),
            ])
        };
        let rows = session.rows.iter().filter(|row| row.number > seen);
        Said::List(vec![
            Said::Id(session.id),
            Said::Number(session.last),
            least.map_or(Said::Null, Said::Number),
            Said::List(rows.map(row).collect()),
        ])
    }

    /// Answers the blocked SESSION command of a session. It keeps the session from its answer on.
    fn answer_blocked(&mut self, name: &str) {
        let now = self.now;
        let session = self.session(name).expect("it is there");
        let Some(blocked) = session.blocked.take() else {
            return;
        };
        session.due = Some(now + session.ms);
        let said = self.news(name, blocked.seen, blocked.arrived);
        self.heard.push((blocked.client, said));
    }

    fn end_session(&mut self, name: &'static str) -> Said {
        let Some(session) = self.session(name) else {
            let nothing = [
                Said::Number(0),
                Said::Number(0),
                Said::Null,
                Said::List(Vec::new()),
            ];
            return Said::List(nothing.to_vec());
        };
        let (id, last) = (session.id, session.last);
        self.answer_blocked(name);
        self.sessions.retain(|session| session.name != name);
        for lock in self.locks.values_mut() {
            let its = |hold: &Hold| matches!(hold.tie, Tie::Session { id: of, .. } if of == id);
            lock.holds.retain(|hold| !its(hold));
        }
        let waits = self
            .waits
            .iter()
            .filter(|wait| wait.take.session == Some(name));
        for id in waits.map(|wait| wait.id).collect::<Vec<_>>() {
            self.leave(id, None);
        }
        Said::List(vec![
            Said::Id(id),
            Said::Number(last),
            Said::Null,
            Said::List(Vec::new()),
        ])
    }

    fn no_longer_alive(&mut self, at: usize) {
        let name = self.sessions[at].name;
        let waits = self
            .waits
            .iter()
            .any(|wait| wait.take.session == Some(name));
        let session = &mut self.sessions[at];
        (session.alive, session.blocked) = (false, None);
        session.due = waits.then_some(self.now + WINDOW_MS);
    }

    // Keeping and giving back

    fn renew(&mut self, client: Option<u64>, command: &Command) -> Said {
        let Command::Renew {
            keys,
            owner,
            lease,
            token,
            ephemeral,
            session,
            ..
        } = command
        else {
            return Said::Null;
        };
        let session = session.map(|name| (name, self.enter(name)));
        let held = |key: &&'static str| self.locks.get(*key)?.hold(owner).cloned();
        let holds: Vec<Option<Hold>> = keys.iter().map(held).collect();
        let good = |hold: &Option<Hold>| {
            let token = |hold: &Hold| token.is_none_or(|token| token == hold.token);
            hold.as_ref().is_some_and(token)
        };
        if !holds.iter().all(good) {
            return Said::Error("NOTHELD");
        }
        let now = self.now;
        let mut least = Millis::MAX;
        for key in keys {
            let lease = session.map_or(*lease, |_| SHORTEST_MS.max(*lease));
            let hold = self.lock(key).hold_mut(owner).expect("it is held");
            hold.end = match session {
                Some(_) => hold.end.max(now + lease),
                None => now + lease,
            };
            let (end, tie) = (hold.end, hold.tie);
            least = least.min(end - now);
            match (session, tie) {
                (Some((name, _)), _) => self.join(key, owner, name, lease),
                (None, _) if *ephemeral => self.tie_to_connection(key, owner, client.unwrap_or(0)),
                (None, _) => self.leave_session(key, owner, "taken", Some(end)),
            }
        }
        match session {
            Some((_, id)) => Said::List(vec![Said::Number(least), Said::Id(id)]),
            None => Said::Number(least),
        }
    }

    fn release(
        &mut self,
        key: &'static str,
        owner: &'static str,
        leave: Option<u32>,
        token: Option<Serial>,
    ) -> Said {
        let hold = self.lock(key).hold_mut(owner);
        let Some(hold) = hold.filter(|hold| token.is_none_or(|token| token == hold.token)) else {
            return Said::Error("NOTHELD");
        };
        let left = leave.unwrap_or(hold.count - 1);
        if left > hold.count {
            return Said::Error("ERR");
        }
        hold.count = left;
        if left == 0 {
            self.end_hold(key, owner, "released");
        }
        Said::Number(left.into())
    }

    fn downgrade(
        &mut self,
        key: &'static str,
        owner: &'static str,
        limit: u64,
        token: Option<Serial>,
    ) -> Said {
        let hold = self.lock(key).hold_mut(owner);
        let Some(hold) = hold.filter(|hold| token.is_none_or(|token| token == hold.token)) else {
            return Said::Error("NOTHELD");
        };
        let needs_token = token.is_none() && matches!(hold.tie, Tie::Session { .. });
        if needs_token || limit < hold.share.limit {
            return Said::Error("ERR");
        }
        hold.share.limit = limit;
        Said::List(vec![
            Said::Token(hold.token),
            Said::Number(hold.count.into()),
        ])
    }

    fn cancel(&mut self, key: &'static str, owner: &'static str) -> Said {
        let Some(place) = self.lock(key).place(owner) else {
            return Said::Number(0);
        };
        if let Some(id) = place.wait {
            self.end_wait(id, "cancelled", None);
        }
        // The ticket goes, whatever its window.
        self.lock(key).keep_places(|place| place.owner != owner);
        Said::Number(1)
    }

    fn end_hold(&mut self, key: &'static str, owner: &'static str, why: &'static str) {
        self.leave_session(key, owner, why, None);
        self.lock(key).holds.retain(|hold| hold.owner != owner);
    }

    // Events

    /// Ends a connection.
    pub fn dies(&mut self, client: u64) {
        let blocked = |wait: &&Wait| wait.client == client && wait.take.session.is_none();
        let waits = self.waits.iter().filter(blocked);
        for id in waits.map(|wait| wait.id).collect::<Vec<_>>() {
            self.leave(id, None);
        }
        for lock in self.locks.values_mut() {
            lock.holds
                .retain(|hold| hold.tie != Tie::Connection(client));
        }
        for at in 0..self.sessions.len() {
            if self.sessions[at].keeper == Some(client) {
                self.no_longer_alive(at);
                self.sessions[at].keeper = None;
            }
        }
        self.settle();
    }

    /// Removes the value at a key: its holds end, and its absent tickets go. Its waiters stay.
    pub fn del(&mut self, key: &'static str) {
        let holds = self.lock(key).holds.iter();
        for owner in holds.map(|hold| hold.owner).collect::<Vec<_>>() {
            self.end_hold(key, owner, "removed");
        }
        self.lock(key).queue.retain(|place| place.wait.is_some());
        self.settle();
    }

    /// Forgets what only a running primary knows: sessions, ties, and who waits. Tickets are absent from now on.
    pub fn begin_again(&mut self) {
        let now = self.now;
        self.waits.clear();
        self.sessions.clear();
        self.overdue.clear();
        for lock in self.locks.values_mut() {
            lock.keep_places(|place| place.claim.is_some());
            for hold in &mut lock.holds {
                hold.tie = Tie::Nothing;
            }
            for place in &mut lock.queue {
                place.wait = None;
                place.until = now + place.claim.unwrap_or(0).max(WINDOW_MS);
            }
        }
        self.settle();
    }

    /// Returns when something is due next; now if the server is yet to choose the time of a renewal.
    pub fn next_due(&self) -> Option<Millis> {
        let locks = || self.locks.values();
        let holds = locks().flat_map(|lock| &lock.holds);
        let renewals = holds.filter_map(|hold| match hold.tie {
            Tie::Session {
                id,
                renewal: Renewal::At(at),
                ..
            } if self.is_alive(id) => Some(at),
            _ => None,
        });
        let ends = locks().flat_map(|lock| &lock.holds).map(|hold| hold.end);
        let absent = locks()
            .flat_map(|lock| &lock.queue)
            .filter(|place| place.wait.is_none());
        let windows = absent.map(|place| place.until);
        let waits = self.waits.iter().filter_map(|wait| wait.until);
        let waiting = |session: &&Session| session.alive || self.waits_at_all(session.name);
        let lives = self
            .sessions
            .iter()
            .filter(waiting)
            .filter_map(|session| session.due);
        let blocked = self
            .sessions
            .iter()
            .filter_map(|session| Some(session.blocked?.until));
        let dues = renewals
            .chain(ends)
            .chain(windows)
            .chain(waits)
            .chain(lives)
            .chain(blocked);
        dues.min()
    }

    /// Returns true if the time of a request is up then.
    pub fn times_out_at(&self, at: Millis) -> bool {
        self.waits.iter().any(|wait| wait.until == Some(at))
    }

    fn is_alive(&self, id: Serial) -> bool {
        self.sessions
            .iter()
            .any(|session| session.id == id && session.alive)
    }

    fn waits_at_all(&self, name: &str) -> bool {
        self.waits
            .iter()
            .any(|wait| wait.take.session == Some(name))
    }

    /// Processes everything that is due.
    pub fn tick(&mut self) {
        for at in 0..self.sessions.len() {
            let due = self.sessions[at].due.is_some_and(|due| due <= self.now);
            if due && self.sessions[at].alive {
                self.no_longer_alive(at);
            } else if due {
                self.sessions[at].due = None;
                let name = self.sessions[at].name;
                let waits = self
                    .waits
                    .iter()
                    .filter(|wait| wait.take.session == Some(name));
                self.overdue.extend(waits.map(|wait| wait.id));
            }
        }
        self.settle();
    }

    /// Does whatever has become possible: renewals first, then the ends of leases and windows, then grants, then time-outs.
    pub fn settle(&mut self) {
        self.renew_by_itself();
        self.end_leases();
        self.serve();
        loop {
            let up = self
                .waits
                .iter()
                .filter(|wait| wait.until.is_some_and(|at| at <= self.now));
            let first = up
                .min_by_key(|wait| (wait.until, wait.timer))
                .map(|wait| wait.id);
            let overdue = self
                .overdue
                .iter()
                .find(|id| self.waits.iter().any(|wait| wait.id == **id));
            let Some(id) = first.or(overdue.copied()) else {
                break;
            };
            self.end_wait(id, "timeout", None);
            self.serve();
        }
        self.overdue.clear();
    }

    fn renew_by_itself(&mut self) {
        let now = self.now;
        let alive: Vec<Serial> = self
            .sessions
            .iter()
            .filter(|its| its.alive)
            .map(|its| its.id)
            .collect();
        for hold in self.locks.values_mut().flat_map(|lock| &mut lock.holds) {
            let Tie::Session { id, lease, renewal } = &mut hold.tie else {
                continue;
            };
            let due = matches!(renewal, Renewal::At(at) if *at <= now);
            // A hold that has ended before is not renewed.
            if due && alive.contains(id) && hold.end >= now {
                hold.end = hold.end.max(now + *lease);
                *renewal = Renewal::Since(now);
            }
        }
    }

    fn end_leases(&mut self) {
        let now = self.now;
        let over: Vec<(&'static str, &'static str)> = self
            .locks
            .iter()
            .flat_map(|(key, lock)| lock.holds.iter().map(move |hold| (*key, hold)))
            .filter(|(_, hold)| hold.end <= now)
            .map(|(key, hold)| (key, hold.owner))
            .collect();
        for (key, owner) in over {
            self.end_hold(key, owner, "expired");
        }
        for lock in self.locks.values_mut() {
            lock.queue
                .retain(|place| place.wait.is_some() || place.until > now);
        }
    }

    /// Grants all that can be granted.
    fn serve(&mut self) {
        loop {
            let lost = self.locks.values().find_map(|lock| {
                let place = lock.upgrade.as_ref()?;
                place.wait.filter(|_| lock.hold(place.owner).is_none())
            });
            if let Some(id) = lost {
                self.end_wait(id, "notheld", None);
                continue;
            }
            let Some(wait) = self.waits.iter().find(|wait| self.grantable(wait)).cloned() else {
                break;
            };
            self.forget_wait(wait.id);
            for key in &wait.take.keys {
                self.lock(key)
                    .keep_places(|place| place.wait != Some(wait.id));
            }
            let client = Some(wait.client);
            match wait.take.session {
                Some(_) => drop(self.award(client, &wait.take)),
                None => {
                    let said = self.answer(client, &wait.take);
                    self.heard.push((wait.client, said));
                }
            }
        }
    }

    /// Returns true if a request heads all of its queues, and could have all of its locks; and if its session is alive.
    fn grantable(&self, wait: &Wait) -> bool {
        let turn = |key: &&'static str| {
            let lock = &self.locks[*key];
            let first = lock
                .places()
                .next()
                .is_some_and(|place| place.wait == Some(wait.id));
            first && lock.admits(wait.take.owner, wait.take.share)
        };
        let named = |name: &str| {
            self.sessions
                .iter()
                .any(|its| its.name == name && its.alive)
        };
        wait.take.session.is_none_or(named) && wait.take.keys.iter().all(turn)
    }

    /// Returns how many places are before a request's, the most of those of a request for many locks.
    fn rank(&self, id: u64) -> u64 {
        let ranks = self
            .locks
            .values()
            .filter_map(|lock| lock.queue.iter().position(|place| place.wait == Some(id)));
        ranks.max().unwrap_or(0) as u64
    }

    /// Ends an event, when its rows have their numbers: answers the SESSION commands whose time is up or that have something to tell,
    /// and forgets the sessions that are over.
    pub fn end_event(&mut self) {
        for name in self.sessions.iter().map(|its| its.name).collect::<Vec<_>>() {
            let now = self.now;
            let session = self.session(name).expect("it is there");
            let answered = |its: Blocked| session.has_news(its.seen) || its.until <= now;
            if session.blocked.is_some_and(answered) {
                self.answer_blocked(name);
            }
        }
        let over: Vec<Serial> = self
            .sessions
            .iter()
            .filter(|its| self.is_over(its))
            .map(|its| its.id)
            .collect();
        self.sessions.retain(|session| !over.contains(&session.id));
    }

    /// Returns true if a session is to be forgotten: it is not alive, and nothing is in it.
    pub fn is_over(&self, session: &Session) -> bool {
        let mut holds = self.locks.values().flat_map(|lock| &lock.holds);
        let holds =
            holds.any(|hold| matches!(hold.tie, Tie::Session { id, .. } if id == session.id));
        !session.alive && !holds && !self.waits_at_all(session.name)
    }

    /// Returns the session that a place's request belongs to, and whether the place is absent: nobody is there, or the session is not
    /// alive.
    pub fn there(&self, place: &Place) -> (&'static str, bool) {
        let Some(id) = place.wait else {
            return ("", true);
        };
        let name = self.wait(id).take.session.unwrap_or("");
        let session = self.sessions.iter().find(|its| its.name == name);
        (name, session.is_some_and(|its| !its.alive))
    }

    /// Returns the name of the session that a hold is in.
    pub fn session_of(&self, hold: &Hold) -> &'static str {
        let Tie::Session { id, .. } = hold.tie else {
            return "";
        };
        let session = self.sessions.iter().find(|its| its.id == id);
        session.map_or("", |its| its.name)
    }
}

impl Session {
    /// Returns true if there is a row above this one that no reply has told already.
    fn has_news(&self, seen: u64) -> bool {
        self.rows
            .iter()
            .any(|row| !row.repeats && row.number > seen)
    }
}

/// The reply to a command.
enum Waiting {
    /// It begins a wait, in the session of this id or on its connection: what to reply is known once all has been done that the
    /// command made possible.
    On(u64, Option<Serial>),
    Said(Said),
}

impl From<Said> for Waiting {
    fn from(said: Said) -> Waiting {
        Waiting::Said(said)
    }
}
