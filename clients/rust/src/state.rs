// SPDX-License-Identifier: MIT
//! What a client knows: its sessions, requests, holds and errands. The rules change it: takes, holds, errands and sessions, each in a file
//! of its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{watch, Notify};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::library::{Library, Link, Servers};
use crate::random::{process, unique};
use crate::settings::{now, Event, Settings, NEVER};

/// The pause after an early answer without rows, and after a failure.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// The longest sleep: timers may stall while the machine is suspended.
pub(crate) const SLICE: Duration = Duration::from_secs(1);
/// Names a hold.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct HoldId {
    pub(crate) key: Vec<u8>,
    pub(crate) token: u64,
}

/// What the client knows of one hold.
pub(crate) struct Held {
    pub(crate) owner: Vec<u8>,
    pub(crate) lease: Duration,
    /// The believed end, unless `bound` comes first.
    pub(crate) end: Duration,
    /// By `max_hold`.
    pub(crate) bound: Duration,
    pub(crate) since: Duration,
    pub(crate) session: Option<i64>,
    /// When an answer told that it is in its session.
    pub(crate) known_since: Duration,
    pub(crate) is_released: bool,
    /// A RENEW is under way.
    pub(crate) is_renewed: bool,
    /// Another one renews it.
    pub(crate) is_taken: bool,
    /// The error of the last RENEW.
    pub(crate) trouble: Option<Error>,
    pub(crate) lost: watch::Sender<Option<String>>,
}

impl Held {
    pub(crate) fn new(owner: &[u8], lease: Duration, max_hold: Duration, end: Duration) -> Held {
        let since = now();
        Held {
            owner: owner.to_vec(),
            lease,
            end,
            bound: since.saturating_add(max_hold),
            since,
            session: None,
            known_since: since,
            is_released: false,
            is_renewed: false,
            is_taken: false,
            trouble: None,
            lost: watch::Sender::new(None),
        }
    }

    /// Returns the end that is believed.
    pub(crate) fn until(&self) -> Duration {
        self.end.min(self.bound)
    }

    pub(crate) fn third(&self) -> Duration {
        self.since + self.lease / 3
    }

    /// Reports whether a third of its lease has passed: then its session is kept.
    pub(crate) fn is_old(&self) -> bool {
        now() >= self.third()
    }

    pub(crate) fn granted(&self, hold: HoldId) -> Granted {
        Granted { hold, owner: self.owner.clone(), lost: self.lost.subscribe() }
    }
}

/// A hold that stays taken without this client.
pub(crate) struct Left {
    pub(crate) hold: HoldId,
    /// Until when a row or an answer about it may come.
    pub(crate) known_until: Duration,
    /// When it is to end.
    pub(crate) end: Duration,
}

/// What a request has come to, for the program's [`Hold`].
pub(crate) struct Granted {
    pub(crate) hold: HoldId,
    pub(crate) owner: Vec<u8>,
    pub(crate) lost: watch::Receiver<Option<String>>,
}

/// A lock, or several of one slot, as the program asks for it.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) actor: Option<Vec<u8>>,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u64>,
    pub(crate) permits: Option<u64>,
    /// There are other masters: any failure is returned at once.
    pub(crate) vote: bool,
}

/// A request as the rules see it, from its first command to its end.
pub(crate) struct Asked {
    pub(crate) terms: Terms,
    pub(crate) began: Duration,
    /// The session that it waits in.
    pub(crate) session: Option<i64>,
    pub(crate) rows: UnboundedSender<Row>,
}

/// What a request receives in addition to the answer to its command.
pub(crate) enum Row {
    Granted(Granted),
    /// An outcome that is no grant; `gone`: the session is.
    Ended(String),
    /// The session cannot be kept, or the locks are closed.
    Failed(Error),
}

impl Asked {
    pub(crate) fn key(&self) -> &Vec<u8> {
        &self.terms.keys[0]
    }

    pub(crate) fn is_vote(&self) -> bool {
        self.terms.vote
    }

    pub(crate) fn tell(&self, row: Row) {
        let _ = self.rows.send(row); // the request may have ended
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Releases the hold by its token.
    Release,
    /// Stops the server's renewals: the hold ends after this time.
    Leave(Duration),
    /// Brings the hold into the session of the server that serves it now.
    Renew(Duration),
    /// Leaves the queue. The session is the one that the request waited in.
    Cancel(Option<i64>),
    /// Ends a session that no task keeps, and reads its rows.
    LastWord,
}

/// An errand about a hold, or about a request: then its token is 0.
pub(crate) struct Errand {
    pub(crate) kind: Kind,
    pub(crate) hold: HoldId,
    pub(crate) owner: Vec<u8>,
    pub(crate) until: Duration,
    /// From then on the hold is over as it should be.
    pub(crate) over_at: Duration,
    pub(crate) tries: u32,
}

/// What one server keeps for this client. There is one while something needs it: a wait, or a hold that is older than a third of its
/// lease. Most holds are released before, and cost no SESSION.
#[derive(Default)]
pub(crate) struct Session {
    /// A key that this server serves.
    pub(crate) key: Vec<u8>,
    /// The number of the last row that was read.
    pub(crate) seen: i64,
    /// When the last SESSION was sent that was answered.
    pub(crate) heard: Duration,
    /// The error of the last SESSION.
    pub(crate) trouble: Option<Error>,
    pub(crate) task: Option<JoinHandle<()>>,
}

/// An answer to SESSION: the id, the last row's number, the least that is left of a lease, and the rows of number, word, key, owner,
/// token, and what is left of the lease.
pub(crate) type Answer = (i64, i64, Option<u64>, Vec<(i64, String, Vec<u8>, Vec<u8>, u64, u64)>);

/// All that this client holds and waits for. The rules change it and list what follows, which [`Client::with`] does.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) closed: bool,
    /// Of the last owner.
    pub(crate) number: u64,
    pub(crate) sessions: HashMap<i64, Session>,
    /// The requests that are under way, by owner.
    pub(crate) asked: HashMap<Vec<u8>, Asked>,
    pub(crate) held: HashMap<HoldId, Held>,
    pub(crate) left: VecDeque<Left>,
    pub(crate) errands: Vec<Errand>,
    pub(crate) events: Vec<Event>,
    /// The runtime of the last take, for a hold that is dropped outside of any.
    pub(crate) runtime: Option<Handle>,
    pub(crate) clock: Option<JoinHandle<()>>,
    pub(crate) alarm: Arc<Notify>,
    /// When the clock looks at the holds again.
    pub(crate) next_check: Duration,
    /// Until then the clock reports no loss.
    pub(crate) grace: Duration,
}

/// What the clones of one [`Locks`](crate::Locks) and its holds share.
pub(crate) struct Client {
    pub(crate) settings: Settings,
    /// The name of its sessions.
    pub(crate) name: String,
    pub(crate) library: Arc<Library>,
    pub(crate) link: Link,
    pub(crate) once: Link,
    pub(crate) state: Mutex<State>,
    pub(crate) alarm: Arc<Notify>,
}

impl Client {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Arc<Client> {
        let (library, alarm) = (Library::new(servers, settings.reply_timeout), Arc::new(Notify::new()));
        let state = State { settings: settings.clone(), alarm: alarm.clone(), next_check: NEVER, ..State::default() };
        Arc::new(Client {
            settings,
            name: format!("{}{}", process(), unique()),
            link: Link::new(&library, false),
            once: Link::new(&library, true),
            library,
            state: Mutex::new(state),
            alarm,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the rules work, and then does what they want.
    pub(crate) fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        let errands = self.begin_tasks(&mut state);
        let events = std::mem::take(&mut state.events);
        drop(state);
        // Without the guard: a runtime that is shutting down drops these at once, and they need it to be put back.
        self.carry_all(errands);
        events.iter().for_each(|event| self.settings.observer.report(event));
        result
    }

    /// Puts back an errand whose task was dropped: the next call continues it.
    pub(crate) fn put_back(&self, errand: Errand) {
        let mut state = self.lock();
        if !state.closed {
            state.errands.push(errand);
        }
    }

    pub(crate) fn check(self: &Arc<Self>) -> Result<()> {
        self.with(|state| if state.closed { Err(Error::Closed) } else { Ok(()) })
    }

    /// Returns the reply to a command about a key.
    pub(crate) async fn ask(self: &Arc<Self>, key: &[u8], command: Cmd) -> Result<Value> {
        self.check()?;
        self.link.call(key, command, self.settings.reply_timeout).await
    }

    /// Returns the reply to a command that is not sent again when its reply is lost. One that another server has refused was not run.
    pub(crate) async fn ask_once(self: &Arc<Self>, key: &[u8], command: Cmd, within: Duration) -> Result<Value> {
        self.check()?;
        let link = if self.library.is_cluster() { &self.once } else { &self.link };
        let end = now() + within;
        loop {
            let reply = link.call_within(key, command.clone(), within, true).await;
            match reply.as_ref().err().and_then(Error::code) {
                Some("ASK") => return self.ask(key, command).await, // the crate's one retry follows it
                Some("MOVED" | "READONLY") if now() + PAUSE < end => sleep(PAUSE / 5).await,
                _ => return reply,
            }
        }
    }

    /// Ends everything. What is held is lost, and lives on in the server until its lease.
    pub(crate) fn close(self: &Arc<Self>) {
        let lost = self.with(State::close);
        if lost > 0 {
            tracing::warn!("closed with {lost} locks held: they are lost");
        }
        self.library.close();
        self.link.close();
        self.once.close();
    }
}
