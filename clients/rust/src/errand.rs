// SPDX-License-Identifier: MIT
//! Errands: commands that are sent again until the server has answered them, or until they mean nothing any longer.

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, from_redis_value, Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::settings::{millis, now, NEVER};
use crate::state::{Client, Errand, HoldId, Kind, State, PAUSE};

impl Errand {
    /// Returns how long to wait after a failure: ever longer, since a service has thousands of errands in an outage.
    fn pause(&self) -> Duration {
        let pause = PAUSE * self.tries.clamp(1, 20);
        match self.kind {
            Kind::Renew(lease) => pause.min(lease / 10).max(PAUSE),
            _ => pause,
        }
    }

    /// Reports whether an earlier attempt, whose answer was lost, may have ended the hold as it should end.
    fn may_have_ended(&self) -> bool {
        self.tries > 1 && now() >= self.over_at
    }

    fn command(&self, session: &str) -> Cmd {
        let of_hold = |name: &str, lease: Option<&Duration>| {
            let mut command = cmd(name);
            command.arg(&self.hold.key).arg(&self.owner).arg(lease.copied().map(millis));
            command.arg("TOKEN").arg(self.hold.token).clone()
        };
        match &self.kind {
            Kind::Release => of_hold("DLOCK.RELEASE", None),
            Kind::Leave(lease) => of_hold("DLOCK.RENEW", Some(lease)),
            Kind::Renew(lease) => of_hold("DLOCK.RENEW", Some(lease)).arg("IN").arg(session).clone(),
            Kind::Cancel(_) => cmd("DLOCK.CANCEL").arg(&self.hold.key).arg(&self.owner).clone(),
            Kind::LastWord => cmd("DLOCK.SESSION").arg(&self.hold.key).arg(session).arg(1).clone(),
        }
    }
}

/// An errand that is not lost when this is dropped: by its caller, or by a runtime that ends.
pub(crate) struct Carried {
    client: Arc<Client>,
    errand: Option<Errand>,
    /// For how long its caller waits for it. None: it is in the background.
    within: Option<Duration>,
}

impl Carried {
    /// Returns an errand for the background, or one in the caller's time: after the time for a reply, or when the caller is gone, it
    /// continues in the background.
    pub(crate) fn new(client: &Arc<Client>, errand: Errand, within: Option<Duration>) -> Carried {
        Carried { client: client.clone(), errand: Some(errand), within }
    }

    /// Sends it until it is done, or until its caller's time is up.
    pub(crate) async fn carry(mut self) -> Result<()> {
        let end = self.within.map(|within| now() + within);
        while let Some(errand) = self.errand.as_mut() {
            if !self.client.with(|state| state.wants(errand)) {
                break;
            }
            let (sent, command) = (now(), errand.command(&self.client.name));
            // The first call has all the time of a reply: a link without one is replaced.
            let within = match end {
                Some(end) if errand.tries > 0 => end.saturating_sub(sent),
                _ => self.client.settings.reply_timeout,
            };
            // A cluster's usual client sends it again after a connection that has ended: the second answer would tell of a loss.
            let is_once = errand.kind == Kind::Release && errand.tries == 0 && self.client.library.is_cluster();
            // Counted before it is sent: whoever waits for the answer may be dropped.
            errand.tries += 1;
            let reply = if is_once && self.client.once.is_ready() {
                // It may have been idle since a failover, and lead to a node that hangs: then the usual client has time left.
                self.client.ask_once(&errand.hold.key, command, within / 3).await
            } else {
                self.client.link.call(&errand.hold.key, command, within).await
            };
            let result = reply.as_ref().map(drop).map_err(Clone::clone);
            if self.client.with(|state| state.read_errand(errand, sent, reply)) {
                let is_ended = errand.may_have_ended();
                self.errand = None;
                return match result {
                    Err(Error::NotHeld(_)) if is_ended => Ok(()),
                    result => result,
                };
            }
            let pause = if end.is_some() { PAUSE / 5 } else { errand.pause() };
            if end.is_some_and(|end| now() >= end) {
                return result;
            }
            sleep(pause).await;
        }
        self.errand = None;
        self.client.check()
    }
}

impl Client {
    /// Runs errands in the background.
    pub(crate) fn carry_all(self: &Arc<Self>, errands: Vec<(Handle, Errand)>) {
        for (runtime, errand) in errands {
            runtime.spawn(Carried::new(self, errand, None).carry());
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let Some(errand) = self.errand.take() else { return };
        self.client.put_back(errand);
        // One in the background is dropped by a runtime that ends, which would drop the next task at once as well.
        if self.within.is_some() {
            self.client.with(|_| ());
        }
    }
}

impl State {
    /// Returns when nothing of a client can be left at a server that does not hear of it.
    fn patience(&self, lease: Duration) -> Duration {
        now() + self.settings.hang_timeout + 2 * lease.max(self.settings.lease)
    }

    pub(crate) fn new_errand(&self, kind: Kind, hold: HoldId, owner: Vec<u8>, lease: Duration) -> Errand {
        let until = if matches!(kind, Kind::Renew(_)) { NEVER } else { self.patience(lease) };
        let over_at = if let Kind::Leave(time) = kind { now().saturating_add(time) } else { Duration::ZERO };
        Errand { kind, hold, owner, until, over_at, tries: 0 }
    }

    /// Sends it in the background. A lease is that of the hold or the request.
    pub(crate) fn errand(&mut self, kind: Kind, hold: HoldId, owner: Vec<u8>, lease: Duration) {
        let errand = self.new_errand(kind, hold, owner, lease);
        self.errands.push(errand);
    }

    /// Reports whether it is still to be sent.
    fn wants(&mut self, errand: &Errand) -> bool {
        if let Kind::Renew(_) = errand.kind {
            return self.held.get(&errand.hold).is_some_and(|held| !held.is_released);
        }
        let is_wanted = errand.until > now() && !self.closed;
        if !is_wanted {
            self.released(&errand.hold);
        }
        is_wanted
    }

    /// Reads the answer. Reports whether the errand is done.
    fn read_errand(&mut self, errand: &Errand, sent: Duration, reply: Result<Value>) -> bool {
        match (&errand.kind, reply) {
            (Kind::Renew(_), Ok(reply)) => match from_redis_value(reply) {
                Ok(reply) => self.renewed(errand, sent, reply),
                Err(_) => return false,
            },
            (Kind::Renew(_), Err(Error::NotHeld(text))) => self.lose(&errand.hold, &text),
            (Kind::Renew(_), Err(error)) => {
                if let Some(held) = self.held.get_mut(&errand.hold) {
                    held.trouble = Some(error);
                }
                return false;
            }
            (_, Err(error)) if error.is_retryable() => return false,
            // The server had ended it before.
            (Kind::Release | Kind::Leave(_), Err(Error::NotHeld(text))) if !errand.may_have_ended() => {
                self.lost(&errand.hold, &text);
            }
            (Kind::Release | Kind::Leave(_), reply) => {
                let refused = reply.is_err_and(|error| !matches!(error, Error::NotHeld(_)));
                if let (Kind::Leave(time), false) = (&errand.kind, refused) {
                    self.leave_taken(errand.hold.clone(), *time);
                }
                if let Some(held) = self.released(&errand.hold).filter(|_| refused) {
                    // It may not be done so.
                    let is_release = errand.kind == Kind::Release;
                    let kind = if is_release { Kind::Leave(held.lease) } else { Kind::Release };
                    self.errand(kind, errand.hold.clone(), errand.owner.clone(), held.lease);
                }
            }
            // It may be held, and no task reads its row.
            (Kind::Cancel(session), Ok(Value::Int(0)))
                if !session.is_some_and(|id| self.sessions.contains_key(&id)) =>
            {
                let (hold, owner) = (errand.hold.clone(), errand.owner.clone());
                let last = Errand {
                    kind: Kind::LastWord,
                    hold,
                    owner,
                    until: errand.until,
                    over_at: Duration::ZERO,
                    tries: 0,
                };
                self.errands.push(last);
            }
            (Kind::LastWord, Ok(reply)) => match from_redis_value(reply) {
                Ok(answer) => self.read_last(sent, answer, &errand.hold.key),
                Err(_) => return false,
            },
            (Kind::Cancel(_) | Kind::LastWord, _) => {}
        }
        true
    }

    fn renewed(&mut self, errand: &Errand, sent: Duration, (left, id): (u64, i64)) {
        let hold = &errand.hold;
        if let Some(held) = self.held.get_mut(hold).filter(|held| !held.is_released) {
            (held.is_renewed, held.trouble) = (false, None);
            self.extend(hold, self.believed(sent, left));
            self.enter_session(hold, id);
        } else {
            self.leave_again(hold, &errand.owner);
        }
    }
}
