// SPDX-License-Identifier: MIT
//! Sessions: what each server keeps for this client, by the id that it drew; the loop that keeps it; the rows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::errand::{Carried, Errand};
use crate::error::{Error, Result};
use crate::hold::{Held, Place};
use crate::library::{Library, Link, Servers};
use crate::random::{process, unique};
use crate::settings::{millis, now, Event, Settings, NEVER};
use crate::take::Take;

/// How long a loop without work stays: the next turn begins without a new one.
const LINGER: Duration = Duration::from_secs(1);
/// How long a loop pauses after an early answer without rows, and after a failure.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// The longest sleep: timers may stand still while the machine is suspended.
pub(crate) const SLICE: Duration = Duration::from_secs(1);
/// A timer that is this late shows that the process stood still.
const STALL: Duration = Duration::from_millis(500);
/// An answer to SESSION that comes this much before its time is not early: it was on its way.
const EARLY: Duration = Duration::from_millis(10);

/// What one server keeps for this client.
#[derive(Default)]
pub(crate) struct Session {
    /// One that the server serves.
    key: Vec<u8>,
    /// The number of the last row that was read.
    seen: i64,
    pub(crate) holds: HashSet<Place>,
    pub(crate) waits: HashSet<u64>,
    /// When a SESSION was sent, and until when all holds last that its answer spoke of. One that a later one surpasses is gone.
    bounds: VecDeque<(Duration, Duration)>,
    /// When the last SESSION was sent that was answered, with holds or without.
    pub(crate) heard: Duration,
    /// The shortest and the longest lease in it.
    shortest: Option<Duration>,
    longest: Duration,
    /// Whether the session has something to keep.
    pub(crate) is_kept: bool,
    keeper: Option<JoinHandle<()>>,
    /// What the last SESSION failed with.
    pub(crate) trouble: Option<Error>,
}

impl Session {
    /// Returns until when a hold lasts that an answer told of at that time.
    pub(crate) fn bound(&self, told: Duration) -> Duration {
        let at = self.bounds.partition_point(|(sent, _)| *sent < told);
        self.bounds.get(at).map_or(Duration::ZERO, |(_, until)| *until)
    }

    fn told(&mut self, sent: Duration, until: Duration) {
        if self.bounds.back().is_some_and(|(last, _)| *last >= sent) {
            return;
        }
        while self.bounds.back().is_some_and(|(_, before)| *before <= until) {
            self.bounds.pop_back();
        }
        while self.bounds.front().is_some_and(|(_, before)| *before <= now()) {
            self.bounds.pop_front();
        }
        self.bounds.push_back((sent, until));
    }

    pub(crate) fn enter(&mut self, place: Place, lease: Duration) {
        self.holds.insert(place);
        self.longest = self.longest.max(lease);
        self.shortest = Some(self.shortest.map_or(lease, |shortest| shortest.min(lease)));
    }

    pub(crate) fn exit(&mut self, place: &Place) {
        self.holds.remove(place);
        if self.holds.is_empty() {
            (self.shortest, self.longest) = (None, Duration::ZERO);
        }
    }
}

/// All that this client holds and waits for. The rules change it and list what follows, which [`Sessions::with`] does.
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// The sessions' name.
    pub(crate) name: String,
    pub(crate) closed: bool,
    pub(crate) number: u64,
    pub(crate) sessions: HashMap<i64, Session>,
    pub(crate) takes: HashMap<u64, Take>,
    /// Takes by their owner's name.
    pub(crate) asked: HashMap<Vec<u8>, u64>,
    pub(crate) held: HashMap<Place, Held>,
    /// To be said.
    pub(crate) errands: Vec<Errand>,
    /// To be reported, and logged: by whoever holds no lock on this, since the program's own functions may block.
    pub(crate) events: Vec<Event>,
    pub(crate) warnings: Vec<String>,
    pub(crate) runtime: Option<Handle>,
    clock: Option<JoinHandle<()>>,
    /// When the next hold is due.
    pub(crate) alarm: Duration,
    pub(crate) rung: bool,
    /// Until then nothing is over.
    grace: Duration,
}

/// What the clones of one [`Locks`](crate::Locks) and its holds share.
pub(crate) struct Sessions {
    pub(crate) settings: Settings,
    pub(crate) library: Arc<Library>,
    pub(crate) client: Link,
    once: Link,
    state: Mutex<State>,
    ring: Notify,
}

impl Sessions {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Arc<Sessions> {
        let library = Library::new(servers, settings.reply_timeout);
        let state = State {
            settings: settings.clone(),
            name: format!("{}{}", process(), unique()),
            closed: false,
            number: 0,
            sessions: HashMap::new(),
            takes: HashMap::new(),
            asked: HashMap::new(),
            held: HashMap::new(),
            errands: Vec::new(),
            events: Vec::new(),
            warnings: Vec::new(),
            runtime: None,
            clock: None,
            alarm: NEVER,
            rung: false,
            grace: Duration::ZERO,
        };
        Arc::new(Sessions {
            settings,
            client: Link::new(&library, false),
            once: Link::new(&library, true),
            library,
            state: Mutex::new(state),
            ring: Notify::new(),
        })
    }

    /// Lets the rules work, and then does what they want.
    pub(crate) fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        let errands = self.perform(&mut state);
        let (events, warnings) = (std::mem::take(&mut state.events), std::mem::take(&mut state.warnings));
        drop(state);
        // Without the guard: a runtime that has ended drops them at once, and they need it to be put back.
        for (runtime, errand) in errands {
            runtime.spawn(Carried::new(self, errand).carry());
        }
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        events.iter().for_each(|event| self.settings.observer.report(event));
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts back an errand whose task has ended.
    pub(crate) fn keep_errand(&self, errand: Errand) {
        self.lock().errands.push(errand);
    }

    /// Begins tasks. One whose runtime has ended is begun again. Returns the errands, and where to run them.
    fn perform(self: &Arc<Self>, state: &mut State) -> Vec<(Handle, Errand)> {
        let is_over = |task: &Option<JoinHandle<()>>| task.as_ref().is_none_or(JoinHandle::is_finished);
        let runtime = || Handle::try_current().ok().or_else(|| state.runtime.clone());
        let errands = match runtime() {
            Some(runtime) if !state.closed => state.errands.drain(..).map(|errand| (runtime.clone(), errand)).collect(),
            _ => Vec::new(),
        };
        for (id, session) in &mut state.sessions {
            if session.is_kept && is_over(&session.keeper) {
                session.keeper = runtime().map(|runtime| runtime.spawn(self.clone().keep(*id)));
            }
        }
        if !state.held.is_empty() && is_over(&state.clock) {
            state.clock = runtime().map(|runtime| runtime.spawn(self.clone().tick()));
        }
        if std::mem::take(&mut state.rung) {
            self.ring.notify_one();
        }
        errands
    }

    pub(crate) fn check(self: &Arc<Self>) -> Result<()> {
        self.with(|state| if state.closed { Err(Error::Closed) } else { Ok(()) })
    }

    /// Returns the reply to a command about a key.
    pub(crate) async fn ask(self: &Arc<Self>, key: &[u8], command: Cmd) -> Result<Value> {
        self.check()?;
        self.client.call(key, command, self.settings.reply_timeout).await
    }

    /// The same, for a command that is not sent again when its reply is lost. One that another server has refused was not run.
    pub(crate) async fn ask_once(self: &Arc<Self>, key: &[u8], command: Cmd) -> Result<Value> {
        self.check()?;
        let link = if self.library.is_cluster() { &self.once } else { &self.client };
        let end = now() + self.settings.reply_timeout;
        loop {
            let reply = link.call(key, command.clone(), self.settings.reply_timeout).await;
            match reply.as_ref().err().and_then(Error::code) {
                Some("ASK") => return self.ask(key, command).await, // the crate's one retry follows it
                Some("MOVED" | "READONLY") if now() + PAUSE < end => sleep(PAUSE / 5).await,
                _ => return reply,
            }
        }
    }

    /// Everything ends: what is held is lost, and lives on until its lease.
    pub(crate) fn close(self: &Arc<Self>) {
        self.with(State::close);
        self.library.close();
        self.client.close();
        self.once.close();
    }

    /// The clock. It waits for no server.
    async fn tick(self: Arc<Self>) {
        let mut due = now();
        while let Some(alarm) = self.with(|state| state.ring(due)) {
            let wait = alarm.saturating_sub(now()).min(SLICE);
            due = now() + wait;
            tokio::select! {
                () = sleep(wait) => {}
                () = self.ring.notified() => {}
            }
        }
    }

    /// The loop of a session, as long as there are waits or holds that have grown old. What BLOCKs has a connection of its own.
    async fn keep(self: Arc<Self>, id: i64) {
        let (own, mut turns) = (Link::new(&self.library, false), Turns::default());
        loop {
            let may_block = own.is_ready();
            match self.with(|state| state.turn(id, &mut turns, may_block)) {
                Turn::End => return,
                Turn::Pause(time) => sleep(time).await,
                Turn::Say { key, command, blocks } => {
                    let (sent, link) = (now(), if blocks { &own } else { &self.client });
                    let reply = link.call(&key, command, self.settings.reply_timeout).await;
                    self.with(|state| state.kept(id, &mut turns, sent, reply));
                }
            }
        }
    }
}

/// How a session's loop stands.
#[derive(Default)]
struct Turns {
    /// The last one was answered, so that this one may block.
    is_going: bool,
    is_last: bool,
    is_over: bool,
    /// When there was work last.
    needed: Duration,
    not_before: Duration,
    sent: Duration,
    block: Duration,
    warned: bool,
}

enum Turn {
    Say { key: Vec<u8>, command: Cmd, blocks: bool },
    Pause(Duration),
    End,
}

impl State {
    pub(crate) fn session(&mut self, id: i64, key: &[u8]) -> &mut Session {
        self.sessions.entry(id).or_insert_with(|| Session { key: key.to_vec(), ..Session::default() })
    }

    /// Forgets a session with nothing in it: the server does so as well, and draws another id for the next one.
    pub(crate) fn tidy(&mut self, id: i64) {
        let is_empty =
            |one: &Session| one.keeper.is_none() && !one.is_kept && one.holds.is_empty() && one.waits.is_empty();
        if self.sessions.get(&id).is_some_and(is_empty) {
            self.sessions.remove(&id);
        }
    }

    /// Returns the believed end of what the server counts from the arrival of a command.
    pub(crate) fn believed(&self, sent: Duration, left: Duration) -> Duration {
        sent.saturating_add(left).saturating_sub(Duration::from_millis(2) + self.settings.clock_margin)
    }

    fn close(&mut self) {
        let held: Vec<Place> =
            self.held.iter().filter(|(_, held)| !held.over).map(|(place, _)| place.clone()).collect();
        if !held.is_empty() && !self.closed {
            self.warnings.push(format!("closed with {} locks held: they are lost", held.len()));
        }
        self.closed = true;
        self.errands.clear();
        held.iter().for_each(|place| self.lose(place, "closed"));
        let over: Vec<Place> = self.held.keys().cloned().collect();
        over.iter().for_each(|place| drop(self.released(place)));
        let takes: Vec<u64> = self.takes.keys().copied().collect();
        takes.into_iter().for_each(|id| self.fail(id, Error::Closed));
        let keepers = self.sessions.drain().filter_map(|(_, session)| session.keeper);
        keepers.chain(self.clock.take()).for_each(|task| task.abort());
    }

    /// Reports what has ended, and has old holds be kept. Returns when it is to look again; None: nothing is held.
    fn ring(&mut self, due: Duration) -> Option<Duration> {
        let now = now();
        if now > due + STALL {
            // The server is asked before a loss is reported.
            self.grace = now + self.settings.reply_timeout;
        }
        if self.held.is_empty() {
            (self.clock, self.alarm) = (None, NEVER);
            return None;
        }
        if now < self.alarm {
            return Some(self.alarm);
        }
        let (mut ended, mut old) = (Vec::new(), HashSet::new());
        self.alarm = NEVER;
        for (place, held) in self.held.iter().filter(|(_, held)| !held.over) {
            let end = self.until(held);
            if end <= now && self.grace <= now {
                ended.push(place.clone());
                continue;
            }
            let mut due = end.max(now + PAUSE / 2);
            if let Some(id) = held.session.filter(|id| self.sessions.get(id).is_some_and(|session| !session.is_kept)) {
                if held.is_old() {
                    old.insert(id);
                } else {
                    due = due.min(held.third());
                }
            }
            self.alarm = self.alarm.min(due);
        }
        ended.iter().for_each(|place| self.expire(place));
        for id in old {
            self.session(id, &[]).is_kept = true;
        }
        Some(self.alarm)
    }

    fn turn(&mut self, id: i64, turns: &mut Turns, may_block: bool) -> Turn {
        let now = now();
        let Some(session) = self.sessions.get(&id) else { return Turn::End };
        let is_old = |place: &Place| self.held.get(place).is_some_and(Held::is_old);
        let is_needed = !session.waits.is_empty() || session.holds.iter().any(is_old);
        if turns.is_over && !is_needed {
            let third = session.holds.iter().filter_map(|place| self.held.get(place)).map(Held::third).min();
            if let Some(session) = self.sessions.get_mut(&id) {
                (session.is_kept, session.keeper) = (false, None);
            }
            self.set_alarm(third.unwrap_or(NEVER));
            self.tidy(id);
            return Turn::End;
        }
        // Something has come in the last moment.
        if turns.is_over {
            *turns = Turns::default();
        }
        if turns.not_before > now {
            return Turn::Pause(turns.not_before - now);
        }
        // Its own connection is yet to be made, which takes long where a node of a cluster hangs.
        if turns.is_going && !may_block && turns.sent + PAUSE > now {
            return Turn::Pause(PAUSE / 20);
        }
        turns.sent = now;
        if is_needed || turns.needed.is_zero() {
            turns.needed = now;
        }
        // Else what an answer that was lost has granted would be renewed for nobody.
        turns.is_last = turns.needed + LINGER < now;
        let wait = session.waits.iter().next().and_then(|wait| self.takes.get(wait)).map(|take| &take.terms.keys[0]);
        let key = wait.or_else(|| session.holds.iter().next().map(|place| &place.key)).unwrap_or(&session.key).clone();
        let mut command = cmd("DLOCK.SESSION");
        let ms = if turns.is_last { 1 } else { millis(self.settings.hang_timeout) };
        command.arg(&key).arg(&self.name).arg(ms).arg("SEEN").arg(id).arg(session.seen);
        let blocks = turns.is_going && may_block && !turns.is_last;
        turns.block = Duration::ZERO;
        if blocks {
            let lease = session.shortest.unwrap_or(self.settings.lease);
            turns.block = SLICE.min(lease / 3).min(self.settings.reply_timeout / 2);
            command.arg("BLOCK").arg(millis(turns.block));
        }
        Turn::Say { key, command, blocks }
    }

    fn kept(&mut self, id: i64, turns: &mut Turns, sent: Duration, reply: Result<Value>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.key.clone();
        turns.is_going = reply.is_ok();
        session.trouble = reply.as_ref().err().cloned();
        match reply {
            Ok(reply) => {
                turns.warned = false;
                let (answered, rows) = self.told(sent, &reply, &key);
                turns.is_over = turns.is_last || answered != id;
                if answered != id {
                    self.tidy(answered);
                    self.gone(id);
                } else if rows == 0 && now() + EARLY < sent + turns.block {
                    turns.not_before = sent + PAUSE;
                }
            }
            Err(error) => {
                turns.is_over = turns.is_last;
                turns.not_before = now() + PAUSE;
                if !turns.warned && !self.closed {
                    self.warnings.push(format!("what is held and waited for is not kept: {error}"));
                    turns.warned = true;
                }
                for wait in session.waits.clone() {
                    if !error.passes() || self.takes.get(&wait).is_some_and(|take| take.terms.vote) {
                        self.fail(wait, error.clone());
                    }
                }
            }
        }
    }

    /// Reads an answer to SESSION. Returns the id that it is of, and how many rows it has.
    pub(crate) fn told(&mut self, sent: Duration, reply: &Value, key: &[u8]) -> (i64, usize) {
        let Value::Array(reply) = reply else { return (0, 0) };
        let [id, _, left, Value::Array(rows)] = &reply[..] else { return (0, 0) };
        let id = int(id);
        let session = self.session(id, key);
        session.heard = session.heard.max(sent);
        for row in rows {
            let Value::Array(row) = row else { continue };
            let [number, word, key, owner, token, left] = &row[..] else { continue };
            let session = self.session(id, key_of(key));
            if int(number) > session.seen {
                session.seen = int(number);
                let place = Place { key: key_of(key).to_vec(), token: u64::try_from(int(token)).unwrap_or_default() };
                let end = self.believed(sent, milliseconds(left));
                self.row(id, key_of(word), place, key_of(owner), end);
            }
        }
        if let Value::Int(_) = left {
            let until = self.believed(sent, milliseconds(left));
            let session = self.session(id, key);
            session.told(sent, until);
            // The least lease says little of the others.
            if until < now() + session.longest / 2 {
                for place in session.holds.clone() {
                    if self.held.get(&place).is_some_and(|held| self.until(held) < now() + held.lease / 2) {
                        self.renew(&place);
                    }
                }
            }
        }
        (id, rows.len())
    }

    fn row(&mut self, id: i64, word: &[u8], place: Place, owner: &[u8], end: Duration) {
        let is_held = self.held.get(&place).map(|held| !held.over);
        match (word, is_held) {
            (b"granted", Some(false)) => {}
            (b"granted", Some(true)) => {
                self.extend(&place, end);
                self.join(&place, id);
            }
            (b"granted", None) => match self.asked.get(owner).copied() {
                Some(take) => self.granted(take, place, id, end),
                // A place that was left, or a command that came late.
                None => self.errands.push(Errand::give_back(place, owner.to_vec(), self.patience(Duration::ZERO))),
            },
            (b"timeout" | b"cancelled" | b"replaced" | b"wrongtype" | b"again", _) => {
                if let Some(take) = self.asked.get(owner).copied() {
                    self.ended(take, &String::from_utf8_lossy(word));
                }
            }
            (b"taken", Some(true)) => self.taken(&place, end),
            (b"moved", Some(true)) => {
                self.part(&place);
                self.renew(&place);
            }
            (_, Some(true)) => self.lose(&place, &String::from_utf8_lossy(word)),
            _ => {}
        }
    }

    /// Brings all that was in this session to where the servers say: a key's server has another one.
    fn gone(&mut self, id: i64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (holds, waits) = (session.holds.clone(), session.waits.clone());
        for place in holds {
            self.part(&place);
            self.renew(&place);
        }
        waits.into_iter().for_each(|take| self.ended(take, "gone"));
    }

    pub(crate) fn set_alarm(&mut self, due: Duration) {
        if due < self.alarm {
            (self.alarm, self.rung) = (due, true);
        }
    }

    /// Returns when nothing of a client can be left at a server that does not hear of it.
    pub(crate) fn patience(&self, lease: Duration) -> Duration {
        now() + self.settings.hang_timeout + 2 * lease.max(self.settings.lease)
    }
}

pub(crate) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        _ => 0,
    }
}

pub(crate) fn milliseconds(value: &Value) -> Duration {
    Duration::from_millis(u64::try_from(int(value)).unwrap_or_default())
}

fn key_of(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.as_bytes(),
        _ => &[],
    }
}
