// SPDX-License-Identifier: MIT
//! Errands: commands that are sent again until the server has answered them, or until they mean nothing any longer.

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::hold::Place;
use crate::session::{int, milliseconds, Sessions, State, PAUSE};
use crate::settings::{millis, now, NEVER};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Gives the hold back.
    Release,
    /// Stops the server's renewals: the hold ends after this time.
    Leave(Duration),
    /// Brings the hold into the session of the server that serves it now.
    Renew(Duration),
    /// Leaves the queue.
    Cancel,
    /// Reads the rows of a session that nobody keeps.
    Look,
}

pub(crate) struct Errand {
    kind: Kind,
    place: Place,
    owner: Vec<u8>,
    until: Duration,
    tries: u32,
    /// That of the request which is left, if it is known.
    session: Option<i64>,
    /// It takes the place of one that was refused.
    is_other: bool,
}

impl Errand {
    fn new(kind: Kind, place: Place, owner: Vec<u8>, until: Duration) -> Errand {
        Errand { kind, place, owner, until, tries: 0, session: None, is_other: false }
    }

    pub(crate) fn give_back(place: Place, owner: Vec<u8>, until: Duration) -> Errand {
        Errand::new(Kind::Release, place, owner, until)
    }

    pub(crate) fn leave(place: Place, owner: Vec<u8>, lease: Duration, until: Duration) -> Errand {
        Errand::new(Kind::Leave(lease), place, owner, until)
    }

    pub(crate) fn renew(place: Place, owner: Vec<u8>, lease: Duration) -> Errand {
        Errand::new(Kind::Renew(lease), place, owner, NEVER)
    }

    pub(crate) fn cancel(key: Vec<u8>, owner: Vec<u8>, session: Option<i64>, until: Duration) -> Errand {
        Errand { session, ..Errand::new(Kind::Cancel, Place { key, token: 0 }, owner, until) }
    }

    /// Returns how long to wait after a failure: ever longer, since a service has thousands of errands in an outage.
    fn pause(&self) -> Duration {
        let pause = PAUSE * self.tries.clamp(1, 20);
        match self.kind {
            Kind::Renew(lease) => pause.min(lease / 10).max(PAUSE),
            _ => pause,
        }
    }

    fn command(&self, session: &str) -> Cmd {
        let of_hold = |name: &str, lease: Option<Duration>| {
            let mut command = cmd(name);
            command.arg(&self.place.key).arg(&self.owner).arg(lease.map(millis)).arg("TOKEN").arg(self.place.token);
            command
        };
        match self.kind {
            Kind::Release => of_hold("DLOCK.RELEASE", None),
            Kind::Leave(lease) => of_hold("DLOCK.RENEW", Some(lease)),
            Kind::Renew(lease) => of_hold("DLOCK.RENEW", Some(lease)).arg("IN").arg(session).clone(),
            Kind::Cancel => cmd("DLOCK.CANCEL").arg(&self.place.key).arg(&self.owner).clone(),
            Kind::Look => cmd("DLOCK.SESSION").arg(&self.place.key).arg(session).arg(1).clone(),
        }
    }
}

impl Sessions {
    /// Sends it once. Returns the result, or the error after which it is to be sent again.
    async fn say(self: &Arc<Self>, errand: &mut Errand, within: Duration) -> Result<Result<()>> {
        let (sent, command) = (now(), errand.command(&self.with(|state| state.name.clone())));
        let reply = self.client.call(&errand.place.key, command, within).await;
        errand.tries += 1;
        let error = reply.as_ref().err().cloned();
        let is_done = self.with(|state| state.said(errand, sent, reply));
        match error {
            Some(error) if !is_done => Err(error),
            // An earlier one has given it back.
            Some(Error::NotHeld(_)) if errand.kind == Kind::Release && errand.tries > 1 => Ok(Ok(())),
            Some(error) => Ok(Err(error)),
            None => Ok(Ok(())),
        }
    }

    /// Sends an errand in the caller's time. After the time for a reply, or when the caller is gone, it continues in the background.
    pub(crate) async fn hand_in(self: &Arc<Self>, errand: Errand) -> Result<()> {
        let end = now() + self.settings.reply_timeout;
        let mut carried = Carried { sessions: self.clone(), errand: Some(errand), is_in_the_background: false };
        while let Some(errand) = &mut carried.errand {
            match self.say(errand, end.saturating_sub(now())).await {
                Ok(result) => {
                    carried.errand = None;
                    return result;
                }
                Err(error) if now() >= end => return Err(error),
                Err(_) => sleep(PAUSE / 5).await,
            }
            self.check()?;
        }
        Ok(())
    }
}

/// An errand that is not lost when this is dropped: by its caller, or by a runtime that ends.
pub(crate) struct Carried {
    sessions: Arc<Sessions>,
    errand: Option<Errand>,
    is_in_the_background: bool,
}

impl Carried {
    /// Returns an errand for the background.
    pub(crate) fn new(sessions: &Arc<Sessions>, errand: Errand) -> Carried {
        Carried { sessions: sessions.clone(), errand: Some(errand), is_in_the_background: true }
    }

    /// Sends it until it is done.
    pub(crate) async fn carry(mut self) {
        let within = self.sessions.settings.reply_timeout;
        while let Some(errand) = &mut self.errand {
            if !self.sessions.with(|state| state.wants(errand)) || self.sessions.say(errand, within).await.is_ok() {
                self.errand = None;
                return;
            }
            let pause = errand.pause();
            sleep(pause).await;
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let Some(errand) = self.errand.take() else { return };
        self.sessions.keep_errand(errand);
        // A runtime that is shutting down drops at once what is begun on it: then the next call continues the errand.
        if !self.is_in_the_background {
            self.sessions.with(|_| ());
        }
    }
}

impl State {
    /// Reports whether it is still to be sent.
    fn wants(&mut self, errand: &Errand) -> bool {
        let is_wanted = match errand.kind {
            Kind::Renew(_) => self.held.get(&errand.place).is_some_and(|held| !held.over),
            _ => errand.until > now(),
        };
        let is_release = matches!(errand.kind, Kind::Release | Kind::Leave(_));
        if !is_wanted && is_release && self.held.get(&errand.place).is_some_and(|held| held.over) {
            self.released(&errand.place);
        }
        is_wanted && !self.closed
    }

    /// Reads the answer. Reports whether the errand is done.
    fn said(&mut self, errand: &Errand, sent: Duration, reply: Result<Value>) -> bool {
        let is_unheld = matches!(reply, Err(Error::NotHeld(_)));
        if reply.as_ref().is_err_and(|error| error.passes() || matches!(errand.kind, Kind::Renew(_)) && !is_unheld) {
            if let (Kind::Renew(_), Some(held), Err(error)) = (errand.kind, self.held.get_mut(&errand.place), reply) {
                held.trouble = Some(error);
            }
            return false;
        }
        match (errand.kind, reply) {
            (Kind::Renew(_), Ok(reply)) => self.renewed(&errand.place, sent, &reply),
            (Kind::Renew(_), Err(error)) => self.lose(&errand.place, &error.to_string()),
            // The server had ended it before.
            (Kind::Release | Kind::Leave(_), Err(Error::NotHeld(text))) if errand.tries == 1 => {
                self.lost(&errand.place, &text);
            }
            (Kind::Release | Kind::Leave(_), reply) => {
                let held = self.released(&errand.place);
                if let (Err(_), false, false, Some(held)) = (reply, is_unheld, errand.is_other, held) {
                    // It may not be done so.
                    let kind = if errand.kind == Kind::Release { Kind::Leave(held.lease) } else { Kind::Release };
                    let (place, owner, until) = (errand.place.clone(), errand.owner.clone(), errand.until);
                    self.errands.push(Errand { is_other: true, ..Errand::new(kind, place, owner, until) });
                }
            }
            (Kind::Cancel, Ok(reply)) => {
                // It may be held, and nobody hears of it.
                let session = errand.session.and_then(|id| self.sessions.get(&id));
                if int(&reply) == 0 && !session.is_some_and(|session| session.is_kept) {
                    self.errands.push(Errand::new(Kind::Look, errand.place.clone(), Vec::new(), errand.until));
                }
            }
            (Kind::Look, Ok(reply)) => {
                let (id, _) = self.told(sent, &reply, &errand.place.key);
                self.tidy(id);
            }
            (Kind::Cancel | Kind::Look, Err(_)) => {}
        }
        true
    }

    fn renewed(&mut self, place: &Place, sent: Duration, reply: &Value) {
        let Value::Array(reply) = reply else { return };
        let ([left, id], Some(held)) = (&reply[..], self.held.get_mut(place)) else { return };
        (held.is_renewed, held.trouble) = (false, None);
        if !held.over {
            self.extend(place, self.believed(sent, milliseconds(left)));
            self.session(int(id), &place.key);
            self.join(place, int(id));
        }
    }
}
