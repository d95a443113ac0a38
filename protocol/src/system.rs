//! The servers, links and clients, and the effect of one step on them.
//!
//! The replicated data is a tree: each entry knows the line of entries before it, and the state of the one lock after it. A
//! server knows its entry and that entry's line, and nothing else. A history branches when a primary continues while another one
//! exists. A server gives a partial resynchronisation to a joiner whose entry is in the server's line.
//!
//! An impossible step changes nothing and is reported: a search tries steps, and a shortened schedule is replayed.

use crate::action::{Action, Client, Full, Kept, Node};
use crate::conduct::{Conduct, SHORT, SKEW};
use dlock_confirm::{Joined, Standing, Terms};

/// One primary and five replicas.
pub const NODES: usize = 6;
pub const CLIENTS: usize = 2;
/// Entries of one run, one bit of a line each.
pub const ENTRIES: usize = 64;
/// A time in the past.
const PAST: i16 = -1000;
/// No client.
const NOBODY: u8 = u8::MAX;

/// The events that may happen, in addition to the usual ones: requests, answers, replication, links that end, time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub replicas: u8,
    /// Clocks of servers may differ by [`SKEW`].
    pub skew: bool,
    /// Servers restart with their data.
    pub restarts: bool,
    /// They restart without their last entries, under a new history (AOF everysec).
    pub lossy: bool,
    /// Servers restart empty.
    pub losses: bool,
    /// A primary restarts from an older RDB, and gives partial resynchronisations from there.
    pub older_primary: bool,
    /// A replica does so, and asks for a partial one. Outside of the contract.
    pub older_replica: bool,
    /// Replicas follow replicas.
    pub chains: bool,
    /// Operators force holds to end.
    pub force: bool,
    /// Clients learn tokens by HELD, also of unconfirmed holds.
    pub held: bool,
    /// Whether a partial resynchronisation needs the joiner's replication id, as on servers; otherwise it only needs that the
    /// joiner knows no more than the server.
    pub ids: bool,
    /// Failovers as a failure detector makes them; otherwise any server is promoted and follows any other at any time.
    pub orderly: Option<Orderly>,
}

/// Usual failovers: the primary was silent for `detection`, one replica that it cannot reach is promoted, and all reachable
/// servers follow it within `gap` ticks, those that were cut off `gap` ticks after the cut has healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orderly {
    pub detection: i16,
    pub gap: i16,
    /// A Sentinel on each server's machine and none elsewhere: a majority of the machines promotes.
    pub beside: bool,
    /// A cut that led to a promotion heals only when all others follow the new primary.
    pub heals_late: bool,
}

impl World {
    /// Returns everything that the contract covers, at any time.
    #[must_use]
    pub const fn any(replicas: u8) -> Self {
        Self {
            replicas,
            skew: true,
            restarts: true,
            lossy: true,
            losses: true,
            older_primary: true,
            older_replica: false,
            chains: false,
            force: true,
            held: true,
            ids: true,
            orderly: None,
        }
    }

    #[must_use]
    pub const fn orderly(replicas: u8, beside: bool) -> Self {
        Self {
            orderly: Some(Orderly {
                detection: 3,
                gap: 1,
                beside,
                heals_late: true,
            }),
            lossy: false,
            older_primary: false,
            force: false,
            held: false,
            ..Self::any(replicas)
        }
    }

    #[must_use]
    pub const fn nodes(&self) -> u8 {
        self.replicas + 1
    }
}

/// Servers and clients in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub conduct: Conduct,
    pub world: World,
}

impl Setup {
    /// Returns the same in a world where clocks agree, no server restarts, and only owners end holds: fewer states, for the
    /// breadth-first search.
    #[must_use]
    pub fn quiet(self) -> Self {
        let world = World {
            skew: false,
            restarts: false,
            lossy: false,
            losses: false,
            older_primary: false,
            force: false,
            held: false,
            ..self.world
        };
        Self { world, ..self }
    }
}

/// The lock after an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The entries that lead here and this one, a bit each.
    pub line: u64,
    pub holder: u8,
    pub token: u8,
    /// The end of the lease, by the wall clock of the server that granted it.
    pub deadline: i16,
    /// Whether this very entry is the notice of a full resynchronisation, or of a primary's start.
    pub notice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Down,
    /// It receives the snapshot at this entry, and is empty.
    Loading(u8),
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its entry.
    pub pos: u8,
    /// The server that it follows; itself if it is a primary.
    pub master: Node,
    pub link: Link,
    /// Whether it remembers its history, by which it may ask for a partial resynchronisation.
    pub remembers: bool,
    /// The replication id of its history.
    pub id: u8,
    /// The id before, which was its own up to the entry `shared`.
    pub id_before: u8,
    pub shared: u8,
    /// Its part of the rule of confirmations.
    pub standing: Standing<i16>,
    /// Without `dlock.replicas` it grants nothing before this time, during which all renewals continue.
    pub quarantine_until: i16,
    /// How much its clock is ahead.
    pub clock: i16,
}

/// A primary's knowledge of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    pub on: bool,
    /// Whether the joiner knows that it has joined.
    pub joined: bool,
    /// When its confirmations begin to count.
    pub counts: i16,
    /// The entry that it has acknowledged, read or still under way.
    pub got: u8,
    pub lived: i16,
}

/// A request that waits for its confirmations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub on: bool,
    pub at: Node,
    pub entry: u8,
    pub token: u8,
    /// Until when the client will believe, once it is answered.
    pub until: i16,
    /// How long it believes, if it counts from the answer.
    pub length: i16,
    pub grant: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Believer {
    /// It believes that it holds the lock before this time.
    pub until: i16,
    /// The last entry whose answer it believed.
    pub entry: u8,
    /// The entries that the operator's server knew when the operator ended its hold, and the entry of that end. On a server without
    /// the latter, an answer for one of the former is void.
    pub void: u64,
    pub forced: u8,
    /// Whether it has asked for the lock since it last released it, and so renews the holds in its name.
    pub wants: bool,
    /// The token that it knows. 0: none.
    pub token: u8,
    pub asked: Asked,
}

/// The whole system: a value of a kilobyte and a half, copied by searches.
#[derive(Clone, Copy, Debug)]
pub struct System {
    pub now: i16,
    pub entries: [Entry; ENTRIES],
    pub len: u8,
    pub servers: [Server; NODES],
    /// `followers[s][x]`: the knowledge of s about x.
    pub followers: [[Follower; NODES]; NODES],
    pub clients: [Believer; CLIENTS],
    pub tokens: u8,
    pub ids: u8,
    /// Of orderly failovers: the servers that are cut off, since when, whether a promotion followed, the primary, and until when
    /// all reachable servers must follow it.
    pub cut: u8,
    pub cut_since: i16,
    pub cut_answered: bool,
    pub lead: Node,
    pub follow_by: i16,
}

impl System {
    /// Returns the beginning: `P` is the primary, all others have followed it for long, and the lock is free.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let server = Server {
            pos: 0,
            master: 0,
            link: Link::Up,
            remembers: true,
            id: 1,
            id_before: 0,
            shared: 0,
            standing: Standing::default(),
            quarantine_until: PAST,
            clock: 0,
        };
        let gone = Follower {
            on: false,
            joined: false,
            counts: PAST,
            got: 0,
            lived: PAST,
        };
        let asked = Asked {
            on: false,
            at: 0,
            entry: 0,
            token: 0,
            until: PAST,
            length: 0,
            grant: false,
        };
        let mut system = Self {
            now: 0,
            entries: [Entry {
                line: 1,
                holder: NOBODY,
                token: 0,
                deadline: PAST,
                notice: false,
            }; ENTRIES],
            len: 1,
            servers: [server; NODES],
            followers: [[gone; NODES]; NODES],
            clients: [Believer {
                until: PAST,
                entry: 0,
                void: 0,
                forced: 0,
                wants: false,
                token: 0,
                asked,
            }; CLIENTS],
            tokens: 0,
            ids: 1,
            cut: 0,
            cut_since: 0,
            cut_answered: false,
            lead: 0,
            follow_by: i16::MAX,
        };
        for x in 1..usize::from(world.nodes()) {
            system.servers[x].standing.on_role(false);
            system.followers[0][x] = Follower {
                on: true,
                joined: true,
                lived: 0,
                ..gone
            };
        }
        system
    }

    /// Returns true if two clients believe at once that they hold the lock.
    #[must_use]
    pub fn two_owners(&self) -> bool {
        self.clients.iter().all(|client| client.until > self.now)
    }

    /// Returns how near two owners are, as a search guesses: 0 while no client believes, otherwise higher with each server that
    /// does not know the believed entry, with another client's request at one of them, and with the servers that have received
    /// that.
    #[must_use]
    pub fn nearness(&self, nodes: u8) -> usize {
        let Some(c) = self
            .clients
            .iter()
            .position(|client| client.until > self.now)
        else {
            return 0;
        };
        let servers = &self.servers[..usize::from(nodes)];
        let believed = self.clients[c].entry;
        let ignorant = servers
            .iter()
            .filter(|server| !self.knows(server.pos, believed))
            .count();
        let asked = self.clients[1 - c].asked;
        if !asked.on || self.knows(asked.entry, believed) {
            return 1 + ignorant;
        }
        2 + ignorant
            + servers
                .iter()
                .filter(|server| self.knows(server.pos, asked.entry))
                .count()
    }

    fn server(&self, x: Node) -> &Server {
        &self.servers[usize::from(x)]
    }

    fn server_mut(&mut self, x: Node) -> &mut Server {
        &mut self.servers[usize::from(x)]
    }

    fn follower_mut(&mut self, s: Node, x: Node) -> &mut Follower {
        &mut self.followers[usize::from(s)][usize::from(x)]
    }

    fn client_mut(&mut self, c: Client) -> &mut Believer {
        &mut self.clients[usize::from(c)]
    }

    fn entry(&self, e: u8) -> &Entry {
        &self.entries[usize::from(e)]
    }

    fn is_primary(&self, x: Node) -> bool {
        self.server(x).master == x
    }

    /// Returns true if a server at `at` knows the entry.
    fn knows(&self, at: u8, entry: u8) -> bool {
        self.entry(at).line >> entry & 1 == 1
    }

    fn clock(&self, s: Node) -> i16 {
        self.now + self.server(s).clock
    }

    /// Returns the lock as this server sees it, if it is held.
    fn held(&self, s: Node) -> Option<Entry> {
        let entry = *self.entry(self.server(s).pos);
        (entry.holder != NOBODY && entry.deadline > self.clock(s)).then_some(entry)
    }

    fn terms(&self, setup: &Setup, s: Node) -> Terms<i16> {
        setup.conduct.terms(self.is_primary(s))
    }

    fn is_full(&self) -> bool {
        usize::from(self.len) + 3 > ENTRIES
    }

    /// Puts an entry after another, or at the beginning of a history of its own.
    fn push(&mut self, after: Option<u8>, entry: Entry) -> u8 {
        let index = self.len;
        let before = after.map_or(0, |e| self.entry(e).line);
        self.entries[usize::from(index)] = Entry {
            line: before | 1 << index,
            ..entry
        };
        self.len += 1;
        index
    }

    /// Writes an entry at a primary.
    fn write(&mut self, s: Node, entry: Entry) {
        let pos = self.push(Some(self.server(s).pos), entry);
        self.server_mut(s).pos = pos;
    }

    /// Writes a new state of the lock at a primary.
    fn set(&mut self, s: Node, holder: u8, token: u8, deadline: i16) {
        self.write(
            s,
            Entry {
                line: 0,
                holder,
                token,
                deadline,
                notice: false,
            },
        );
    }

    /// Returns true if the server accepts writes.
    fn writable(&self, setup: &Setup, s: Node) -> bool {
        if !self.is_primary(s) {
            return false;
        }
        let (min, lag) = (setup.conduct.min_replicas, setup.conduct.lag);
        let good = |f: &&Follower| f.on && f.joined && f.lived + lag >= self.now;
        min == 0 || self.followers[usize::from(s)].iter().filter(good).count() >= usize::from(min)
    }

    /// Returns true if two servers reach each other.
    fn reach(&self, x: Node, s: Node) -> bool {
        (self.cut >> x & 1) == (self.cut >> s & 1)
    }

    /// Makes the followers of this server notice that the link is gone.
    fn lose_followers(&mut self, s: Node) {
        for x in 0..NODES {
            self.followers[usize::from(s)][x].on = false;
            let server = &mut self.servers[x];
            if server.master == s && usize::from(s) != x {
                server.link = Link::Down;
            }
        }
        for client in &mut self.clients {
            if client.asked.at == s {
                client.asked.on = false;
            }
        }
    }

    /// Answers a request; at once if it needs no confirmation.
    fn ask(&mut self, setup: &Setup, c: Client, s: Node, length: i16, grant: bool) {
        let pos = self.server(s).pos;
        let token = self.entry(pos).token;
        let until = self.now + length - setup.conduct.allowance;
        self.client_mut(c).asked = Asked {
            on: true,
            at: s,
            entry: pos,
            token,
            until,
            length,
            grant,
        };
        if setup.conduct.confirmations() == 0 {
            self.answer(setup, c);
        }
    }

    fn answer(&mut self, setup: &Setup, c: Client) -> bool {
        let asked = self.clients[usize::from(c)].asked;
        if !asked.on {
            return false;
        }
        let terms = self.terms(setup, asked.at);
        let (standing, alone) = (&self.server(asked.at).standing, terms.replicas == 1);
        // Offsets of two values: one that has the entry, and one that has not.
        let (mut acknowledged, mut counting) = ([0; NODES], 0);
        for f in &self.followers[usize::from(asked.at)] {
            if f.on && standing.counts(&terms, alone, f.counts, self.now) {
                let has = f.joined && self.knows(f.got, asked.entry);
                acknowledged[counting] = u64::from(has);
                counting += 1;
            }
        }
        let needed = setup.conduct.confirmations();
        if terms.rule.confirmed(&mut acknowledged[..counting], needed) == 0 {
            return false;
        }
        let at = self.server(asked.at).pos;
        let Believer { void, forced, .. } = self.clients[usize::from(c)];
        let void = void >> asked.entry & 1 == 1 && !self.knows(at, forced);
        let held = self
            .held(asked.at)
            .is_some_and(|hold| hold.holder == c && hold.token == asked.token);
        let now = self.now;
        let client = self.client_mut(c);
        client.asked.on = false;
        if !void && terms.rule.sends(held) {
            let late = now + asked.length - setup.conduct.allowance;
            let until = if setup.conduct.counts_from_sending {
                asked.until
            } else {
                late
            };
            client.until = client.until.max(until);
            client.token = asked.token;
            client.entry = asked.entry;
        }
        true
    }

    /// Takes one step. Returns false, and has changed nothing, if it is not possible.
    pub fn apply(&mut self, setup: &Setup, action: Action) -> bool {
        if self.is_full() {
            return false;
        }
        match action {
            Action::Tick => self.tick(setup),
            Action::Ahead(x) => self.ahead(setup, x),
            Action::Acquire(c, s) => self.acquire(setup, c, s),
            Action::Renew {
                client,
                at,
                token,
                short,
            } => self.renew(setup, client, at, token, short),
            Action::Keep(c, s) => self.keep(setup, c, s),
            Action::Held(c, s) => self.ask_held(setup, c, s),
            Action::Release(c, s) => self.release(setup, c, s),
            Action::Auto(s) => self.auto(setup, s),
            Action::Force(s) => self.force(setup, s),
            Action::Answer(c) => self.answer(setup, c),
            Action::TimeOut(c) => self.time_out(setup, c),
            Action::Stream(x) => self.stream(setup, x),
            Action::Live(x) => self.live(setup, x),
            Action::Promote(x) => self.promote(setup, x),
            Action::Follow(x, s) => self.follow(setup, x, s),
            Action::Partial { node, heard } => self.partial(setup, node, heard),
            Action::Full(x, how) => self.full(setup, x, how),
            Action::Loaded(x) => self.loaded(setup, x),
            Action::Break(x) => self.break_link(x),
            Action::Drop(s, x) => self.drop_follower(s, x),
            Action::Restart(x, kept) => self.restart(setup, x, kept),
            Action::Cut(nodes) => self.cut_off(setup, nodes),
            Action::Heal => self.heal(setup),
        }
    }

    fn tick(&mut self, setup: &Setup) -> bool {
        if self.now >= self.follow_by {
            let waits = |x: Node| {
                x != self.lead && self.cut >> x & 1 == 0 && self.server(x).master != self.lead
            };
            // An old primary may live on for any time; a replica may not keep following it.
            if (0..setup.world.nodes()).any(|x| waits(x) && !self.is_primary(x)) {
                return false;
            }
        }
        self.end_chains(setup);
        self.now += 1;
        true
    }

    /// Ends the links of replicas that follow replicas.
    fn end_chains(&mut self, setup: &Setup) {
        for x in 0..setup.world.nodes() {
            let master = self.server(x).master;
            if master != x && self.terms(setup, master).ends_links() {
                self.drop_follower(master, x);
            }
        }
    }

    fn ahead(&mut self, setup: &Setup, x: Node) -> bool {
        let possible =
            setup.world.skew && self.now == 0 && self.len == 1 && self.server(x).clock == 0;
        if possible {
            self.server_mut(x).clock = SKEW;
        }
        possible
    }

    /// Returns the lease that a server gives.
    fn lease(&self, setup: &Setup, s: Node) -> i16 {
        self.terms(setup, s).longest_lease(setup.conduct.lease)
    }

    fn acquire(&mut self, setup: &Setup, c: Client, s: Node) -> bool {
        let server = self.server(s);
        let gate = server.standing.gate(&self.terms(setup, s), self.now);
        let closed = gate.closed_until.max(server.quarantine_until) > self.now || !gate.grants;
        if closed || !self.writable(setup, s) {
            return false;
        }
        let lease = self.lease(setup, s);
        let end = self.clock(s) + lease;
        if self.held(s).is_some_and(|hold| hold.holder != c) {
            return false;
        }
        self.client_mut(c).wants = true;
        match self.held(s) {
            Some(hold) => {
                self.set(s, c, hold.token, hold.deadline.max(end));
                self.ask(setup, c, s, lease, false);
            }
            None => {
                self.tokens += 1;
                self.set(s, c, self.tokens, end);
                self.ask(setup, c, s, lease, true);
            }
        }
        true
    }

    /// Returns the client's hold here, if a renewal of it is answered now, or the `left-ms` of its session.
    fn renewable(&self, setup: &Setup, c: Client, s: Node, token: bool) -> Option<Entry> {
        let Believer {
            token: known,
            wants,
            ..
        } = self.clients[usize::from(c)];
        let terms = self.terms(setup, s);
        let standing = &self.server(s).standing;
        let closed = terms.on() && standing.closed_until > self.now;
        let refused = standing.gate(&terms, self.now).closed_until > self.now
            || closed && !token && setup.conduct.names_token;
        let hold = self
            .held(s)
            .filter(|hold| hold.holder == c && if token { hold.token == known } else { wants })?;
        (self.writable(setup, s) && !refused).then_some(hold)
    }

    fn renew(&mut self, setup: &Setup, c: Client, s: Node, token: bool, short: bool) -> bool {
        let Some(hold) = self.renewable(setup, c, s, token) else {
            return false;
        };
        let lease = self.lease(setup, s);
        let length = if short { SHORT.min(lease) } else { lease };
        self.set(s, c, hold.token, self.clock(s) + length);
        let end = self.now + length - setup.conduct.allowance;
        if short && setup.conduct.believes_earlier {
            let client = self.client_mut(c);
            client.until = client.until.min(end);
        }
        self.ask(setup, c, s, length, false);
        true
    }

    /// Asks by SESSION how long its hold lasts, as far as replicas confirm that: only a hold whose token it knows.
    fn keep(&mut self, setup: &Setup, c: Client, s: Node) -> bool {
        let Some(hold) = self.renewable(setup, c, s, true) else {
            return false;
        };
        self.ask(setup, c, s, hold.deadline - self.clock(s), false);
        true
    }

    fn ask_held(&mut self, setup: &Setup, c: Client, s: Node) -> bool {
        let known = self.clients[usize::from(c)].token;
        match self.held(s) {
            Some(hold) if setup.world.held && hold.holder == c && hold.token != known => {
                self.client_mut(c).token = hold.token;
                true
            }
            _ => false,
        }
    }

    fn release(&mut self, setup: &Setup, c: Client, s: Node) -> bool {
        let possible = self.writable(setup, s) && self.held(s).is_some_and(|hold| hold.holder == c);
        if possible {
            self.set(s, NOBODY, 0, PAST);
            let client = self.client_mut(c);
            client.until = PAST;
            client.token = 0;
            client.wants = false;
            client.asked.on = false;
        }
        possible
    }

    fn auto(&mut self, setup: &Setup, s: Node) -> bool {
        let end = self.clock(s) + self.lease(setup, s);
        match self.held(s) {
            Some(hold) if self.writable(setup, s) && hold.deadline < end => {
                self.set(s, hold.holder, hold.token, end);
                true
            }
            _ => false,
        }
    }

    /// Ends the hold by force: the client no longer believes in it. An answer of a server without that entry does not violate the
    /// rule: the operator has decided. (`ended_is_not_confirmed` is about answers of a server with that entry.)
    fn force(&mut self, setup: &Setup, s: Node) -> bool {
        let Some(hold) = self
            .held(s)
            .filter(|_| setup.world.force && self.writable(setup, s))
        else {
            return false;
        };
        let known = self.entry(self.server(s).pos).line;
        self.set(s, NOBODY, 0, PAST);
        let forced = self.server(s).pos;
        let client = self.client_mut(hold.holder);
        client.until = PAST;
        client.void |= known;
        client.forced = forced;
        true
    }

    /// Revokes a new grant that no later command has touched.
    fn time_out(&mut self, setup: &Setup, c: Client) -> bool {
        let asked = self.clients[usize::from(c)].asked;
        if !asked.on {
            return false;
        }
        self.client_mut(c).asked.on = false;
        if asked.grant && self.server(asked.at).pos == asked.entry && self.writable(setup, asked.at)
        {
            self.set(asked.at, NOBODY, 0, PAST);
        }
        true
    }

    fn stream(&mut self, setup: &Setup, x: Node) -> bool {
        let Server {
            pos, master, link, ..
        } = *self.server(x);
        if master == x || link != Link::Up || !self.reach(x, master) {
            return false;
        }
        let ahead = self.entry(self.server(master).pos).line & !self.entry(pos).line;
        if ahead == 0 {
            return false;
        }
        let next = ahead.trailing_zeros() as u8;
        let (notice, now) = (self.entry(next).notice, self.now);
        let terms = self.terms(setup, x);
        let server = self.server_mut(x);
        server.pos = next;
        if notice {
            server.standing.on_full_sync(&terms, now);
        }
        let follower = self.follower_mut(master, x);
        if follower.on {
            follower.got = next;
            follower.lived = now;
        }
        true
    }

    fn live(&mut self, setup: &Setup, x: Node) -> bool {
        let Server { master, link, .. } = *self.server(x);
        let now = self.now;
        let follower = self.followers[usize::from(master)][usize::from(x)];
        let possible = setup.conduct.min_replicas > 0
            && master != x
            && link == Link::Up
            && self.reach(x, master)
            && follower.on
            && follower.lived < now;
        if possible {
            self.follower_mut(master, x).lived = now;
        }
        possible
    }

    /// Gives its history an id of its own from here on; a joiner with the one before is still accepted, up to here.
    fn renew_id(&mut self, x: Node) {
        self.ids += 1;
        let id = self.ids;
        let server = self.server_mut(x);
        server.id_before = server.id;
        server.shared = server.pos;
        server.id = id;
    }

    fn promote(&mut self, setup: &Setup, x: Node) -> bool {
        if self.is_primary(x) {
            return false;
        }
        if let Some(orderly) = setup.world.orderly {
            let nodes = setup.world.nodes();
            let outside = u32::from(nodes) - self.cut.count_ones();
            let majority = outside > u32::from(nodes) / 2 || !orderly.beside;
            let silent = self.cut != 0 && self.now >= self.cut_since + orderly.detection;
            if !silent || self.cut_answered || self.cut >> x & 1 == 1 || !majority {
                return false;
            }
            self.cut_answered = true;
            self.lead = x;
            self.follow_by = self.now + orderly.gap;
        }
        self.lose_followers(x);
        self.renew_id(x);
        self.quarantine(setup, x);
        let server = self.server_mut(x);
        server.master = x;
        server.link = Link::Down;
        server.standing.on_role(true);
        true
    }

    fn follow(&mut self, setup: &Setup, x: Node, s: Node) -> bool {
        if x == s || self.server(x).master == s {
            return false;
        }
        if setup.world.orderly.is_some() && (s != self.lead || self.cut >> x & 1 == 1) {
            return false;
        }
        self.lose_followers(x);
        let server = self.server_mut(x);
        server.master = s;
        server.link = Link::Down;
        server.standing.on_role(false);
        true
    }

    /// Returns true if `x` can ask its master to accept it.
    fn can_join(&self, setup: &Setup, x: Node) -> bool {
        let Server { master, link, .. } = *self.server(x);
        let server = self.server(master);
        let serves = master == server.master
            || setup.world.chains
                && !self.terms(setup, master).refuses_requests()
                && server.link == Link::Up;
        master != x && link == Link::Down && serves && self.reach(x, master)
    }

    fn partial(&mut self, setup: &Setup, x: Node, heard: bool) -> bool {
        let Server {
            pos,
            master,
            remembers,
            id,
            ..
        } = *self.server(x);
        let server = *self.server(master);
        let known = id == server.id
            || id == server.id_before && self.knows(server.shared, pos)
            || !setup.world.ids;
        if !self.can_join(setup, x) || !remembers || !known || !self.knows(server.pos, pos) {
            return false;
        }
        let terms = self.terms(setup, master);
        let (_, counts) = server.standing.joins(&terms, Joined::Partial, self.now);
        let lived = self.now;
        *self.follower_mut(master, x) = Follower {
            on: true,
            joined: heard,
            counts,
            got: pos,
            lived,
        };
        if heard {
            let joiner = self.server_mut(x);
            joiner.link = Link::Up;
            if id != server.id {
                joiner.id_before = id;
                joiner.shared = pos;
                joiner.id = server.id;
            }
        }
        true
    }

    fn full(&mut self, setup: &Setup, x: Node, how: Full) -> bool {
        if !self.can_join(setup, x) {
            return false;
        }
        let master = self.server(x).master;
        let terms = self.terms(setup, master);
        let (lived, snapshot) = (self.now, self.server(master).pos);
        let standing = &mut self.server_mut(master).standing;
        let (_, counts) = standing.joins(&terms, Joined::Full, lived);
        standing.on_full_sync(&terms, lived);
        self.announce(setup, master);
        let got = self.server(x).pos;
        *self.follower_mut(master, x) = Follower {
            on: true,
            joined: false,
            counts,
            got,
            lived,
        };
        match how {
            Full::Unheard => {}
            Full::Fails => self.server_mut(x).remembers = false,
            Full::Begins => {
                if !setup.conduct.learns_when_loaded {
                    self.begin(setup, x);
                }
                let empty = self.blank();
                let server = self.server_mut(x);
                server.pos = empty;
                server.remembers = false;
                server.link = Link::Loading(snapshot);
            }
        }
        true
    }

    /// Tells a server that it has new data.
    fn begin(&mut self, setup: &Setup, x: Node) {
        let (terms, now) = (self.terms(setup, x), self.now);
        self.server_mut(x).standing.begin(&terms, now);
        self.announce(setup, x);
    }

    /// Writes the notice that is due.
    fn announce(&mut self, setup: &Setup, s: Node) {
        let terms = self.terms(setup, s);
        if self.server_mut(s).standing.take_notice(&terms) {
            let entry = *self.entry(self.server(s).pos);
            self.write(
                s,
                Entry {
                    notice: true,
                    ..entry
                },
            );
        }
    }

    /// Begins the quarantine of a server without `dlock.replicas`.
    fn quarantine(&mut self, setup: &Setup, x: Node) {
        if setup.conduct.replicas == 0 {
            self.server_mut(x).quarantine_until = self.now + setup.conduct.quarantine;
        }
    }

    /// Returns a history of its own without entries.
    fn blank(&mut self) -> u8 {
        self.push(
            None,
            Entry {
                line: 0,
                holder: NOBODY,
                token: 0,
                deadline: PAST,
                notice: false,
            },
        )
    }

    fn loaded(&mut self, setup: &Setup, x: Node) -> bool {
        let Server {
            master,
            link: Link::Loading(snapshot),
            ..
        } = *self.server(x)
        else {
            return false;
        };
        if !self.reach(x, master) {
            return false;
        }
        if setup.conduct.learns_when_loaded {
            self.begin(setup, x);
        }
        let id = self.server(master).id;
        let server = self.server_mut(x);
        server.pos = snapshot;
        server.link = Link::Up;
        server.remembers = true;
        server.id = id;
        server.id_before = 0;
        let follower = self.follower_mut(master, x);
        follower.joined = true;
        follower.got = snapshot;
        true
    }

    fn break_link(&mut self, x: Node) -> bool {
        let possible = !self.is_primary(x) && self.server(x).link != Link::Down;
        if possible {
            self.server_mut(x).link = Link::Down;
        }
        possible
    }

    fn drop_follower(&mut self, s: Node, x: Node) -> bool {
        if !self.followers[usize::from(s)][usize::from(x)].on {
            return false;
        }
        self.follower_mut(s, x).on = false;
        if self.server(x).master == s {
            self.server_mut(x).link = Link::Down;
        }
        true
    }

    /// Returns the entry of a server that lacks its last `n` entries.
    fn before(&self, pos: u8, n: u8) -> Option<u8> {
        let mut line = self.entry(pos).line;
        for _ in 0..n {
            line &= !(1 << (63 - line.leading_zeros()));
            if line == 0 {
                return None;
            }
        }
        Some(63 - line.leading_zeros() as u8)
    }

    fn restart(&mut self, setup: &Setup, x: Node, kept: Kept) -> bool {
        let (world, pos, primary) = (&setup.world, self.server(x).pos, self.is_primary(x));
        let allowed = match kept {
            Kept::All | Kept::AllAnew => world.restarts,
            Kept::LessAnew(_) => world.lossy,
            Kept::Less(_) if primary => world.older_primary,
            Kept::Less(_) => world.older_replica,
            Kept::Nothing => world.losses,
        };
        if !allowed {
            return false;
        }
        let stands = match kept {
            Kept::All | Kept::AllAnew => Some(pos),
            Kept::Less(n) | Kept::LessAnew(n) => self.before(pos, n),
            Kept::Nothing => Some(self.blank()),
        };
        let Some(stands) = stands else {
            return false;
        };
        let anew = matches!(kept, Kept::AllAnew | Kept::LessAnew(_));
        let stands = if anew {
            self.push(None, *self.entry(stands))
        } else {
            stands
        };
        self.lose_followers(x);
        let server = self.server_mut(x);
        server.pos = stands;
        server.link = Link::Down;
        server.standing = Standing::default();
        if anew || kept == Kept::Nothing {
            self.renew_id(x);
            self.server_mut(x).id_before = 0;
        } else if primary {
            // From an RDB: its replicas are accepted by the old id, and it asks for nothing by it.
            self.renew_id(x);
        } else {
            server.id_before = 0;
        }
        self.quarantine(setup, x);
        self.begin(setup, x);
        true
    }

    fn cut_off(&mut self, setup: &Setup, nodes: u8) -> bool {
        let inside =
            nodes >> self.lead & 1 == 1 && u32::from(setup.world.nodes()) > nodes.count_ones();
        let settled = (0..setup.world.nodes()).all(|x| self.server(x).master == self.lead);
        let possible = setup.world.orderly.is_some() && self.cut == 0 && inside && settled;
        if possible {
            self.follow_by = i16::MAX;
            self.cut = nodes;
            self.cut_since = self.now;
            self.cut_answered = false;
        }
        possible
    }

    fn heal(&mut self, setup: &Setup) -> bool {
        let Some(orderly) = setup.world.orderly else {
            return false;
        };
        let behind = |x: Node| self.cut >> x & 1 == 0 && self.server(x).master != self.lead;
        let early = self.cut_answered && orderly.heals_late && (0..setup.world.nodes()).any(behind);
        let possible = self.cut != 0 && !early;
        if possible {
            self.cut = 0;
            if self.cut_answered {
                self.follow_by = self.now + orderly.gap;
            }
        }
        possible
    }
}
