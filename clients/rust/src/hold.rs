// SPDX-License-Identifier: MIT
//! Holds: until when one is believed, how it ends, and what the program has in its hands.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::time::timeout;

use crate::errand::Carried;
use crate::error::{Error, Result};
use crate::settings::{now, Event};
use crate::state::{Client, Errand, Granted, Held, HoldId, Kind, Left, State, SLICE};

impl State {
    pub(crate) fn extend(&mut self, hold: &HoldId, end: Duration) {
        if let Some(held) = self.held.get_mut(hold) {
            held.end = held.end.max(end);
        }
    }

    /// Notes that the hold is in that session now.
    pub(crate) fn enter_session(&mut self, hold: &HoldId, id: i64) {
        let Some(held) = self.held.get_mut(hold) else { return };
        if held.session != Some(id) {
            (held.known_since, held.session) = (now(), Some(id));
        }
        let (is_old, mut due) = (held.is_old(), held.until());
        if is_old {
            self.keep(id, &hold.key);
        } else if !self.sessions.contains_key(&id) {
            due = due.min(held.third());
        }
        self.set_alarm(due);
    }

    /// Takes the hold out of its session: from now on only its own end counts.
    pub(crate) fn leave_session(&mut self, hold: &HoldId) {
        if let Some(held) = self.held.get_mut(hold) {
            held.session = None;
        }
    }

    /// Notes that another one renews it, and that it lasts no longer than that.
    pub(crate) fn taken(&mut self, hold: &HoldId, cut: Duration) {
        let Some(held) = self.held.get_mut(hold) else { return };
        (held.session, held.is_taken, held.end) = (None, true, held.end.min(cut));
        let due = held.end;
        self.set_alarm(due);
    }

    /// Brings the hold into the session of the server that serves it now, and learns how long it lasts.
    pub(crate) fn renew(&mut self, hold: &HoldId) {
        let Some(held) = self.held.get_mut(hold).filter(|held| !held.is_renewed && !held.is_released) else { return };
        held.is_renewed = true;
        let (owner, lease) = (held.owner.clone(), held.lease);
        self.errand(Kind::Renew(lease), hold.clone(), owner, lease);
    }

    /// Ends a hold that the program has not released, and reports it.
    pub(crate) fn lose(&mut self, hold: &HoldId, reason: &str) {
        if self.held.get(hold).is_some_and(|held| !held.is_released) {
            self.lost(hold, reason);
        }
    }

    /// Reports a loss, also of a hold whose release has found it gone.
    pub(crate) fn lost(&mut self, hold: &HoldId, reason: &str) {
        let Some(held) = self.held.remove(hold) else { return };
        held.lost.send_replace(Some(reason.to_owned()));
        self.events.push(Event::Lost {
            key: hold.key.clone(),
            token: hold.token,
            owner: held.owner,
            reason: reason.to_owned(),
        });
    }

    /// Forgets a hold that was released. Returns it if it was there still.
    pub(crate) fn released(&mut self, hold: &HoldId) -> Option<Held> {
        let held = self.held.remove(hold)?;
        self.events.push(Event::Released { key: hold.key.clone(), after: now() - held.since });
        Some(held)
    }

    /// Notes that the hold stays taken for that time. Rows and answers of commands that were sent before may still come.
    pub(crate) fn leave_taken(&mut self, hold: HoldId, time: Duration) {
        let now = now();
        while self.left.front().is_some_and(|left| left.known_until < now) {
            self.left.pop_front();
        }
        let (known_until, end) = (now + 3 * self.settings.reply_timeout, now.saturating_add(time));
        self.left.push_back(Left { hold, known_until, end });
    }

    /// Takes a hold that was left taken out of the session again, into which a late command may have brought it: the server would
    /// renew it there for nobody. Reports whether it was left taken, and its time is not over.
    pub(crate) fn leave_again(&mut self, hold: &HoldId, owner: &[u8]) -> bool {
        let now = now();
        // The newest of its entries has the end that the server has set last.
        let left = self.left.iter().rev().find(|left| left.hold == *hold && left.known_until >= now);
        let time = left.map_or(Duration::ZERO, |left| left.end.saturating_sub(now));
        if !time.is_zero() {
            self.errand(Kind::Leave(time), hold.clone(), owner.to_vec(), Duration::ZERO);
        }
        !time.is_zero()
    }

    /// Reports a hold whose believed end has passed. The server may still keep the hold, so the client releases it.
    pub(crate) fn expire(&mut self, hold: &HoldId) {
        let Some(held) = self.held.get(hold) else { return };
        let session = held.session.and_then(|id| self.sessions.get(&id));
        let trouble = held.trouble.as_ref().or_else(|| session.and_then(|session| session.trouble.as_ref()));
        let reason = match trouble {
            _ if held.bound <= now() => "max_hold is over".into(),
            _ if held.is_taken => "it was taken out of the session, and its lease is over".into(),
            None => "nobody has confirmed it before its end".into(),
            Some(error) => format!("nobody has confirmed it before its end: {error}"),
        };
        let (owner, lease, is_taken) = (held.owner.clone(), held.lease, held.is_taken);
        self.lose(hold, &reason);
        if !is_taken {
            self.errand(Kind::Release, hold.clone(), owner, lease);
        }
    }

    /// Ends the hold at the program's wish. Returns the errand that releases it, at once or after that time; None: it is gone.
    fn release(&mut self, hold: &HoldId, after: Option<Duration>) -> Option<Errand> {
        let held = self.held.get_mut(hold).filter(|held| !held.is_released)?;
        (held.is_released, held.session) = (true, None);
        let (owner, lease) = (held.owner.clone(), held.lease);
        if let Some(time) = after {
            self.leave_taken(hold.clone(), time);
        }
        Some(self.new_errand(after.map_or(Kind::Release, Kind::Leave), hold.clone(), owner, lease))
    }
}

/// A lock that is held. [`release`](Hold::release) it; dropping it does so too, but tells no error.
#[must_use = "the lock is released when this is dropped"]
pub struct Hold {
    client: Arc<Client>,
    granted: Granted,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("key", &String::from_utf8_lossy(self.key())).field("token", &self.token()).finish()
    }
}

impl Hold {
    pub(crate) fn new(client: &Arc<Client>, granted: Granted) -> Hold {
        Hold { client: client.clone(), granted }
    }

    /// Returns the lock's name.
    pub fn key(&self) -> &[u8] {
        &self.granted.hold.key
    }

    /// Returns the owner's name on the server: `host/pid/…`.
    pub fn owner(&self) -> &[u8] {
        &self.granted.owner
    }

    /// Returns the fencing token: higher than that of every earlier grant.
    pub fn token(&self) -> u64 {
        self.granted.hold.token
    }

    /// Returns when the lock is lost, with the reason, and never if it is not.
    pub async fn lost(&self) -> String {
        let mut lost = self.granted.lost.clone();
        loop {
            let told = timeout(SLICE, lost.wait_for(Option::is_some)).await;
            match told.map(|told| told.ok().and_then(|reason| reason.clone())) {
                Ok(Some(reason)) => return reason,
                Ok(None) => std::future::pending().await, // it was released
                // The clock may have run on a runtime that has ended.
                Err(_) => self.client.with(|_| ()),
            }
        }
    }

    /// Reports whether the client knows that the hold is lost.
    pub fn is_lost(&self) -> bool {
        self.granted.lost.borrow().is_some()
    }

    /// Returns how long the hold lasts even if the server is silent from now on.
    pub fn left(&self) -> Duration {
        let until =
            |state: &mut State| state.held.get(&self.granted.hold).filter(|held| !held.is_released).map(Held::until);
        self.client.with(until).map_or(Duration::ZERO, |until| until.saturating_sub(now()))
    }

    /// Reports it lost, since its believed end has passed. The client gives it back in the background.
    pub(crate) fn expire(&self) {
        self.client.with(|state| state.expire(&self.granted.hold));
    }

    /// Runs a command only if the lock is still held under this token; the server checks and runs it in one step. The client sends
    /// it once; if the reply is lost, it may have run.
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
        let result = self.client.ask_once(self.key(), guarded, self.client.settings.reply_timeout).await;
        if let Err(Error::Fenced(text)) = &result {
            self.client.with(|state| state.lose(&self.granted.hold, text));
        }
        result
    }

    /// Releases this hold. If no server answers within `reply_timeout`, it returns the error, and the client keeps trying in the
    /// background.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost.
    pub async fn release(self) -> Result<()> {
        self.give_back(None).await
    }

    /// Leaves the lock taken for that time from now, by the server's clock, whether or not this program lives. Nobody renews it.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost; [`Error::Invalid`] for less than a millisecond: then the lock is released.
    pub async fn release_after(self, time: Duration) -> Result<()> {
        if time < Duration::from_millis(1) {
            return Err(Error::invalid("time", format!("must be at least 1 ms, not {time:?}")));
        }
        self.give_back(Some(time)).await
    }

    pub(crate) async fn give_back(&self, after: Option<Duration>) -> Result<()> {
        self.client.check()?;
        let Some(errand) = self.client.with(|state| state.release(&self.granted.hold, after)) else {
            let reason = self.granted.lost.borrow().clone();
            return Err(Error::NotHeld(reason.unwrap_or_else(|| "it was released before".into())));
        };
        Carried::new(&self.client, errand, Some(self.client.settings.reply_timeout)).carry().await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.client.with(|state| {
            let errand = state.release(&self.granted.hold, None);
            state.errands.extend(errand);
        });
    }
}
