// SPDX-License-Identifier: MIT
//! Holds: until when one is believed, how it ends, and what the program has in its hands.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::errand::Errand;
use crate::error::{Error, Result};
use crate::session::{Sessions, State, SLICE};
use crate::settings::{now, Event, NEVER};

/// Names a hold.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    pub(crate) token: u64,
}

/// What the client knows of one hold.
pub(crate) struct Held {
    owner: Vec<u8>,
    pub(crate) lease: Duration,
    end: Duration,
    since: Duration,
    /// When an answer told that it is in its session.
    told: Duration,
    /// By `max_hold`.
    bound: Duration,
    pub(crate) session: Option<i64>,
    /// It is being given back.
    pub(crate) over: bool,
    /// A RENEW is under way.
    pub(crate) is_renewed: bool,
    /// Another one renews it.
    is_taken: bool,
    /// The error of the last RENEW.
    pub(crate) trouble: Option<Error>,
    lost: watch::Sender<Option<String>>,
}

impl Held {
    pub(crate) fn new(owner: Vec<u8>, lease: Duration, max_hold: Duration, end: Duration) -> Held {
        let (since, bound) = (now(), now().saturating_add(max_hold));
        let (session, over, is_renewed, is_taken, trouble) = (None, false, false, false, None);
        let lost = watch::Sender::new(None);
        Held { owner, lease, end, since, told: since, bound, session, over, is_renewed, is_taken, trouble, lost }
    }

    pub(crate) fn third(&self) -> Duration {
        self.since + self.lease / 3
    }

    /// Reports whether a third of its lease has passed: then its session is kept.
    pub(crate) fn is_old(&self) -> bool {
        now() >= self.third()
    }

    pub(crate) fn granted(&self, place: Place) -> Granted {
        Granted { place, owner: self.owner.clone(), lost: self.lost.subscribe() }
    }
}

/// What a take has come to, for the program's [`Hold`].
pub(crate) struct Granted {
    pub(crate) place: Place,
    owner: Vec<u8>,
    lost: watch::Receiver<Option<String>>,
}

impl State {
    /// Returns the end that is believed. The least lease that a SESSION told counts if it was sent after the answer that told of
    /// this hold.
    pub(crate) fn until(&self, held: &Held) -> Duration {
        let session = held.session.and_then(|id| self.sessions.get(&id));
        held.end.max(session.map_or(Duration::ZERO, |session| session.bound(held.told))).min(held.bound)
    }

    fn left(&self, place: &Place) -> Duration {
        let held = self.held.get(place).filter(|held| !held.over);
        held.map_or(Duration::ZERO, |held| self.until(held).saturating_sub(now()))
    }

    pub(crate) fn extend(&mut self, place: &Place, end: Duration) {
        if let Some(held) = self.held.get_mut(place) {
            held.end = held.end.max(end);
        }
    }

    /// Notes that the hold is in that session now.
    pub(crate) fn join(&mut self, place: &Place, id: i64) {
        if self.held.get(place).is_none_or(|held| held.session != Some(id)) {
            self.part(place);
        }
        let (Some(held), Some(session)) = (self.held.get_mut(place), self.sessions.get_mut(&id)) else { return };
        if held.session.is_none() {
            (held.told, held.session) = (now(), Some(id));
            session.enter(place.clone(), held.lease);
        }
        session.is_kept |= held.is_old();
        let third = if session.is_kept { NEVER } else { held.third() };
        let due = self.held.get(place).map_or(NEVER, |held| self.until(held));
        self.set_alarm(due.min(third));
    }

    /// Takes the hold out of its session: from now on only its own end counts.
    pub(crate) fn part(&mut self, place: &Place) {
        let Some(end) = self.held.get(place).map(|held| self.until(held)) else { return };
        let Some(held) = self.held.get_mut(place) else { return };
        if let Some(id) = held.session.take() {
            held.end = end;
            if let Some(session) = self.sessions.get_mut(&id) {
                session.exit(place);
            }
            self.tidy(id);
        }
    }

    /// Notes that another one renews it, and that it lasts no longer than that.
    pub(crate) fn taken(&mut self, place: &Place, cut: Duration) {
        self.part(place);
        if let Some(held) = self.held.get_mut(place) {
            (held.is_taken, held.end) = (true, held.end.min(cut));
            let due = held.end;
            self.set_alarm(due);
        }
    }

    /// Brings the hold into the session of the server that serves it now, and learns how long it lasts.
    pub(crate) fn renew(&mut self, place: &Place) {
        let Some(held) = self.held.get_mut(place).filter(|held| !held.is_renewed && !held.over) else { return };
        held.is_renewed = true;
        self.errands.push(Errand::renew(place.clone(), held.owner.clone(), held.lease));
    }

    /// Ends a hold, and reports it.
    pub(crate) fn lose(&mut self, place: &Place, reason: &str) {
        self.part(place);
        if self.held.get(place).is_some_and(|held| !held.over) {
            self.lost(place, reason);
        }
    }

    /// Reports a loss, also of a hold whose release has found it gone.
    pub(crate) fn lost(&mut self, place: &Place, reason: &str) {
        let Some(held) = self.held.remove(place) else { return };
        let (key, owner) = (String::from_utf8_lossy(&place.key), String::from_utf8_lossy(&held.owner));
        tracing::warn!(key = &*key, owner = &*owner, token = place.token, reason, "a lock is lost");
        held.lost.send_replace(Some(reason.to_owned()));
        self.events.push(Event::Lost { key: place.key.clone(), reason: reason.to_owned() });
    }

    /// Forgets a hold that was given back. Returns it if it was there still.
    pub(crate) fn released(&mut self, place: &Place) -> Option<Held> {
        let held = self.held.remove(place)?;
        self.events.push(Event::Released { key: place.key.clone(), after: now() - held.since });
        Some(held)
    }

    /// Reports a hold whose believed end has passed. The server may have it still, so it is given back.
    pub(crate) fn expire(&mut self, place: &Place) {
        let Some(held) = self.held.get(place) else { return };
        let session = held.session.and_then(|id| self.sessions.get(&id));
        let trouble = held.trouble.as_ref().or_else(|| session.and_then(|session| session.trouble.as_ref()));
        let reason = match trouble {
            _ if held.bound <= now() => "max_hold is over".into(),
            _ if held.is_taken => "it was taken out of the session, and its lease is over".into(),
            None => "nobody has confirmed it before its end".into(),
            Some(error) => format!("nobody has confirmed it before its end: {error}"),
        };
        let (owner, is_taken, until) = (held.owner.clone(), held.is_taken, self.patience(held.lease));
        self.lose(place, &reason);
        if !is_taken {
            self.errands.push(Errand::give_back(place.clone(), owner, until));
        }
    }

    /// Ends the hold at the program's wish: the errand that gives it back, at once or after so long. None: it was lost.
    fn finish(&mut self, place: &Place, after: Option<Duration>) -> Option<Errand> {
        self.part(place);
        let until = self.held.get(place).map(|held| self.patience(held.lease))?;
        let held = self.held.get_mut(place).filter(|held| !held.over)?;
        held.over = true;
        Some(match after {
            None => Errand::give_back(place.clone(), held.owner.clone(), until),
            Some(lease) => Errand::leave(place.clone(), held.owner.clone(), lease, until),
        })
    }

    /// The same, in the background.
    pub(crate) fn forsake(&mut self, place: &Place) {
        let errand = self.finish(place, None);
        self.errands.extend(errand);
    }
}

/// A lock that is held. Give it back by [`release`](Hold::release); dropping it does so too, but tells no error.
#[must_use = "the lock is given back when this is dropped"]
pub struct Hold {
    sessions: Arc<Sessions>,
    granted: Granted,
    over: AtomicBool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("key", &String::from_utf8_lossy(self.key())).field("token", &self.token()).finish()
    }
}

impl Hold {
    pub(crate) fn new(sessions: &Arc<Sessions>, granted: Granted) -> Hold {
        Hold { sessions: sessions.clone(), granted, over: AtomicBool::new(false) }
    }

    /// The lock's name.
    pub fn key(&self) -> &[u8] {
        &self.granted.place.key
    }

    /// Returns the owner's name on the server: `host/pid/…`.
    pub fn owner(&self) -> &[u8] {
        &self.granted.owner
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.granted.place.token
    }

    /// Returns when the lock is lost, with the reason, and never if it is not.
    pub async fn lost(&self) -> String {
        let mut lost = self.granted.lost.clone();
        loop {
            let told = timeout(SLICE, lost.wait_for(Option::is_some)).await;
            match told.map(|told| told.ok().and_then(|reason| reason.clone())) {
                Ok(Some(reason)) => return reason,
                Ok(None) => std::future::pending().await, // it was given back
                // The clock may have run on a runtime that has ended.
                Err(_) => self.sessions.with(|_| ()),
            }
        }
    }

    /// Whether it is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.granted.lost.borrow().is_some()
    }

    /// Returns how long the hold lasts even if the server is silent from now on.
    pub fn left(&self) -> Duration {
        self.sessions.with(|state| state.left(&self.granted.place))
    }

    /// Runs a command in one step with the look whether the lock is still held under this token. It is sent once; if its
    /// reply is lost it may have run.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it is not held, and the command was not run: then the hold is lost. What the command says.
    pub async fn guard(&self, command: &Cmd) -> Result<Value> {
        let mut guarded = cmd("DLOCK.GUARD");
        guarded.arg(self.key()).arg(self.token());
        for argument in command.args_iter() {
            match argument {
                redis::Arg::Simple(bytes) => guarded.arg(bytes),
                _ => return Err(Error::invalid("command", "must not have a cursor")),
            };
        }
        if command.args_iter().next().is_none() {
            return Err(Error::invalid("command", "must not be empty"));
        }
        let result = self.sessions.ask_once(self.key(), guarded).await;
        if let Err(Error::Fenced(text)) = &result {
            self.sessions.with(|state| state.lose(&self.granted.place, text));
        }
        result
    }

    /// Gives back what was granted here, and nothing else. What no server has answered within the time for a reply goes on in the
    /// background.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost.
    pub async fn release(self) -> Result<()> {
        self.give_back(None).await
    }

    /// Gives the lock back at that time from now, by the server's clock: it stays taken until then, whether or not this program
    /// lives, and nobody renews it.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost; [`Error::Invalid`] for less than a millisecond: then the lock is given back.
    pub async fn release_after(self, time: Duration) -> Result<()> {
        if time < Duration::from_millis(1) {
            return Err(Error::invalid("time", format!("must be at least 1 ms, not {time:?}")));
        }
        self.give_back(Some(time)).await
    }

    pub(crate) async fn give_back(&self, after: Option<Duration>) -> Result<()> {
        self.sessions.check()?;
        self.over.store(true, Ordering::SeqCst);
        let Some(errand) = self.sessions.with(|state| state.finish(&self.granted.place, after)) else {
            let reason = self.granted.lost.borrow().clone();
            return Err(Error::NotHeld(reason.unwrap_or_else(|| "it was given back before".into())));
        };
        self.sessions.hand_in(errand).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.over.swap(true, Ordering::SeqCst) {
            self.sessions.with(|state| state.forsake(&self.granted.place));
        }
    }
}
