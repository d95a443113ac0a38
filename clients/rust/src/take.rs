// SPDX-License-Identifier: MIT
//! Takes: a request, from its first command to the grant or the end of the wait.

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::errand::Errand;
use crate::error::{Error, Result};
use crate::hold::{Granted, Held, Hold, Place};
use crate::random::random;
use crate::session::{int, Sessions, State, PAUSE, SLICE};
use crate::settings::{millis, now, Event, FAR, NEVER};

/// How much longer a take whose time is up waits for the row that says so.
const GRACE: Duration = Duration::from_millis(500);
const WARN_EVERY: Duration = Duration::from_secs(10);
/// A time-out that comes no earlier is that of the wait.
const CLOSE: Duration = Duration::from_millis(20);

/// Who may hold a lock together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Limit { limit: u64, permits: u64 },
    Shared,
}

/// A lock, or several of one slot, as the program asks for it.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) actor: Option<Vec<u8>>,
    pub(crate) mode: Mode,
    /// There are other masters: any failure is returned at once.
    pub(crate) vote: bool,
}

impl Terms {
    /// Returns the command: a try, or a request that waits for so long.
    fn command(&self, session: &str, owner: &[u8], is_try: bool, left: Duration) -> Cmd {
        let mut command = match (self.keys.len(), is_try) {
            (1, true) => cmd("DLOCK.ACQUIRE"),
            (1, false) => cmd("DLOCK.FAIRACQUIRE"),
            (count, _) => cmd("DLOCK.MACQUIRE").arg(count).clone(),
        };
        command.arg(&self.keys).arg(owner).arg(millis(self.lease)).arg("IN").arg(session);
        if !is_try {
            command.arg("BLOCK").arg(if left < FAR { millis(left) } else { 0 });
        }
        match self.mode {
            Mode::Exclusive => {}
            Mode::Shared => drop(command.arg("SHARED")),
            Mode::Limit { limit, permits } => {
                command.arg("LIMIT").arg(limit);
                // Older servers do not know the word.
                if permits > 1 {
                    command.arg("PERMITS").arg(permits);
                }
            }
        }
        command
    }
}

/// The holds, None if others have the lock, or why there are none.
type Outcome = Result<Option<Vec<Granted>>>;

/// A request as the rules see it. Its owner is its own.
pub(crate) struct Take {
    pub(crate) terms: Terms,
    owner: Vec<u8>,
    is_try: bool,
    wait: Duration,
    began: Duration,
    deadline: Duration,
    wake: Arc<Notify>,
    asked: u32,
    /// What was granted, by key.
    found: Vec<Option<(Place, Held)>>,
    session: Option<i64>,
    /// The outcome is a row.
    is_waiting: bool,
    /// It has waited.
    has_waited: bool,
    waits_since: Duration,
    /// Of a row that came before the answer.
    word: Option<String>,
    not_before: Duration,
    /// When it was to be looked at again.
    due: Duration,
    /// A wait is not out of time before.
    grace: Duration,
    warned: Option<Duration>,
    trouble: Option<Error>,
    outcome: Option<Outcome>,
}

enum Step {
    Say(Cmd, Duration),
    Wait(Duration),
    Done(Outcome),
}

impl Sessions {
    /// Returns the holds; None if the lock is taken. A wait of zero: one attempt.
    pub(crate) async fn take(self: &Arc<Self>, terms: Terms, wait: Duration) -> Result<Option<Vec<Hold>>> {
        let (began, key) = (now(), terms.keys[0].clone());
        let taken = self.take_until(terms, wait).await;
        let observer = &self.settings.observer;
        match &taken {
            Ok(Some(_)) => {} // the rules have reported each
            Ok(None) => observer.refused(&key, now() - began, None),
            Err(error) => observer.refused(&key, now() - began, Some(error)),
        }
        taken
    }

    async fn take_until(self: &Arc<Self>, terms: Terms, wait: Duration) -> Result<Option<Vec<Hold>>> {
        let (key, wake) = (terms.keys[0].clone(), Arc::new(Notify::new()));
        let id = self.with(|state| state.begin(terms, wait, wake.clone()))?;
        let mut taking = Taking { sessions: self, id, key: key.clone(), is_told: false };
        loop {
            match self.with(|state| state.step(id)) {
                Step::Done(outcome) => {
                    let hold = |granted| Hold::new(self, granted);
                    return Ok(outcome?.map(|all| all.into_iter().map(hold).collect()));
                }
                Step::Wait(time) => tokio::select! {
                    () = sleep(time) => {}
                    () = wake.notified() => {}
                },
                Step::Say(command, within) => {
                    let sent = now();
                    let mut call = std::pin::pin!(self.client.call(&key, command, within));
                    loop {
                        tokio::select! {
                            reply = &mut call => {
                                self.with(|state| state.answered(id, sent, reply));
                                break;
                            }
                            // Its rows may be faster.
                            () = wake.notified() => if self.with(|state| state.is_done(id)) { break },
                        }
                    }
                    taking.tell();
                }
            }
        }
    }
}

/// A request that is left when it is dropped.
struct Taking<'a> {
    sessions: &'a Arc<Sessions>,
    id: u64,
    key: Vec<u8>,
    /// The observer knows that it waits.
    is_told: bool,
}

impl Taking<'_> {
    fn tell(&mut self) {
        if !self.is_told && self.sessions.with(|state| state.takes.get(&self.id).is_some_and(|take| take.has_waited)) {
            self.is_told = true;
            self.sessions.settings.observer.waiting(&self.key);
        }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.sessions.with(|state| state.leave(self.id));
        if self.is_told {
            self.sessions.settings.observer.waited(&self.key);
        }
    }
}

impl State {
    fn begin(&mut self, terms: Terms, wait: Duration, wake: Arc<Notify>) -> Result<u64> {
        if self.closed {
            return Err(Error::Closed);
        }
        self.runtime = Some(Handle::current());
        let (owner, is_try) = (self.owner(&terms), wait.is_zero());
        let id = self.number;
        let take = Take {
            owner: owner.clone(),
            is_try,
            wait,
            began: now(),
            deadline: now().saturating_add(if is_try { self.settings.reply_timeout } else { wait }),
            wake,
            asked: 0,
            found: terms.keys.iter().map(|_| None).collect(),
            session: None,
            is_waiting: false,
            has_waited: false,
            waits_since: NEVER,
            word: None,
            not_before: Duration::ZERO,
            due: NEVER,
            grace: Duration::ZERO,
            warned: None,
            trouble: None,
            outcome: None,
            terms,
        };
        self.takes.insert(id, take);
        self.asked.insert(owner, id);
        Ok(id)
    }

    /// Returns an owner that was never used. What stands before # is the actor, for the search for deadlocks.
    fn owner(&mut self, terms: &Terms) -> Vec<u8> {
        self.number += 1;
        let (name, number) = (&self.name, self.number);
        match &terms.actor {
            None => format!("{name}/{number}").into_bytes(),
            Some(actor) => [name.as_bytes(), b"/", actor.as_slice(), format!("#{number}").as_bytes()].concat(),
        }
    }

    fn is_done(&self, id: u64) -> bool {
        self.takes.get(&id).is_none_or(|take| take.outcome.is_some())
    }

    fn step(&mut self, id: u64) -> Step {
        let Some(take) = self.takes.get_mut(&id) else { return Step::Done(Err(Error::Closed)) };
        if let Some(outcome) = take.outcome.take() {
            self.takes.remove(&id);
            return Step::Done(outcome);
        }
        // If the process stood still, what the server has said is yet to be read.
        if now() > take.due.saturating_add(PAUSE) {
            take.grace = now() + GRACE;
        }
        let end = if take.is_waiting { take.deadline.saturating_add(GRACE).max(take.grace) } else { take.deadline };
        let left = end.saturating_sub(now());
        take.due = NEVER;
        if take.asked > 0 && left.is_zero() {
            self.out_of_time(id);
            return self.step(id);
        }
        if take.is_waiting {
            let time = left.min(SLICE);
            take.due = now() + time;
            return Step::Wait(time);
        }
        if take.not_before > now() {
            return Step::Wait(left.min(take.not_before - now()));
        }
        take.asked += 1;
        take.word = None;
        let command = take.terms.command(&self.name, &take.owner, take.is_try, left);
        Step::Say(command, left.saturating_add(GRACE))
    }

    /// Reads `[token, id]`, `[[token, …], id]`, `[0, place, id]`, null or an error.
    fn answered(&mut self, id: u64, sent: Duration, reply: Result<Value>) {
        let Some(take) = self.takes.get(&id).filter(|take| take.outcome.is_none()) else { return };
        let reply = match reply {
            Err(error) => return self.failed(id, error),
            Ok(Value::Array(reply)) if reply.len() > 1 => reply,
            Ok(_) => return self.conclude(id, Ok(None)),
        };
        let (keys, session) = (take.terms.keys.clone(), reply.last().map_or(0, int));
        let (end, is_again) = (self.believed(sent, take.terms.lease), take.asked > 1);
        let tokens = match &reply[0] {
            Value::Array(tokens) => &tokens[..],
            _ => &reply[..1],
        };
        self.session(session, &keys[0]);
        // Asked again, only the row says how long it lasts.
        if is_again || tokens.iter().any(|token| int(token) == 0) {
            return self.wait_in(id, session);
        }
        for (key, token) in keys.into_iter().zip(tokens) {
            let place = Place { key, token: u64::try_from(int(token)).unwrap_or_default() };
            self.granted(id, place, session, end);
        }
    }

    /// Notes that one of its locks was granted. With the last one it holds them all.
    pub(crate) fn granted(&mut self, id: u64, place: Place, session: i64, end: Duration) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.outcome.is_none()) else { return };
        let held = Held::new(take.owner.clone(), take.terms.lease, take.terms.max_hold, end);
        if let Some(at) = take.terms.keys.iter().position(|key| *key == place.key) {
            take.found[at] = Some((place, held));
        }
        if take.found.iter().any(Option::is_none) {
            return;
        }
        let after = now() - take.began;
        let all: Vec<(Place, Held)> = std::mem::take(&mut take.found).into_iter().flatten().collect();
        let granted = all.iter().map(|(place, held)| held.granted(place.clone())).collect();
        self.conclude(id, Ok(Some(granted)));
        for (place, held) in all {
            self.events.push(Event::Granted { key: place.key.clone(), after });
            self.held.insert(place.clone(), held);
            self.join(&place, session);
        }
    }

    /// A row tells of an outcome that is no grant, or the session is gone. While there is time it is asked again.
    pub(crate) fn ended(&mut self, id: u64, word: &str) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.outcome.is_none()) else { return };
        if !take.is_waiting {
            take.word = Some(word.to_owned()); // its answer is yet to come
            return;
        }
        let is_late = take.deadline.saturating_sub(now()) < CLOSE;
        if word == "again" {
            take.trouble =
                Some(Error::NoAck("NOACK the server did not confirm the grant, or serves the lock no more".into()));
        }
        self.stop_waiting(id);
        self.give_back_found(id);
        let Some(take) = self.takes.get_mut(&id) else { return };
        match word {
            "replaced" => {
                self.fail(id, Error::Replaced("REPLACED a newer request of the same owner has taken the place".into()));
            }
            "wrongtype" => {
                let text = "WRONGTYPE the key holds something that is not a lock";
                self.fail(id, Error::Redis(RedisError::from((redis::ErrorKind::UnexpectedReturnType, text))));
            }
            "timeout" if is_late => self.conclude(id, Ok(None)),
            _ if take.is_try || take.terms.vote => {
                let error = take.trouble.clone().unwrap_or_else(Error::silent);
                self.fail(id, error);
            }
            _ => {
                if take.asked > 1 {
                    take.not_before = now() + Duration::from_millis(random() % 50);
                }
                take.wake.notify_one();
            }
        }
    }

    fn failed(&mut self, id: u64, error: Error) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        if take.is_try || take.terms.vote || !error.passes() {
            return self.fail(id, error);
        }
        if take.warned.is_none_or(|warned| now() >= warned + WARN_EVERY) {
            let key = String::from_utf8_lossy(&take.terms.keys[0]);
            self.warnings.push(format!("still waiting for lock {key:?}: {error}"));
            take.warned = Some(now());
        }
        take.not_before = now() + Duration::from_millis(20 + random() % 80);
        take.trouble = Some(error);
    }

    /// Ends it with this error. What may be left of it is taken back.
    pub(crate) fn fail(&mut self, id: u64, error: Error) {
        let Some(take) = self.takes.get(&id).filter(|take| take.outcome.is_none()) else { return };
        let may_be_there = take.asked > 1 || take.session.is_some() || !error.is_said() && !error.is_refused();
        if may_be_there && !matches!(error, Error::Replaced(_)) {
            self.cancel(id);
        }
        self.give_back_found(id);
        self.conclude(id, Err(error));
    }

    fn out_of_time(&mut self, id: u64) {
        let Some(take) = self.takes.get(&id) else { return };
        let session = take.session.and_then(|session| self.sessions.get(&session));
        let trouble = take.trouble.clone().or_else(|| session.and_then(|session| session.trouble.clone()));
        let is_kept = take.is_waiting && session.is_some_and(|session| session.heard > take.waits_since);
        let outcome = match trouble {
            // The server has kept the place meanwhile: others have the lock, though the word about the end is late.
            None if is_kept && !take.is_try => Ok(None),
            trouble => {
                let cause = trouble.unwrap_or_else(Error::silent);
                Err(if take.is_try { cause } else { Error::Timeout { after: take.wait, cause: Some(Arc::new(cause)) } })
            }
        };
        self.cancel(id);
        self.give_back_found(id);
        self.conclude(id, outcome);
    }

    /// Ends it wherever it stands: the program does not want it any longer.
    fn leave(&mut self, id: u64) {
        match self.takes.get(&id).map(|take| &take.outcome) {
            Some(None) => {
                self.cancel(id);
                self.give_back_found(id);
                self.conclude(id, Ok(None));
            }
            Some(Some(Ok(Some(granted)))) => {
                let places: Vec<Place> = granted.iter().map(|granted| granted.place.clone()).collect();
                places.iter().for_each(|place| self.forsake(place));
            }
            _ => {}
        }
        self.takes.remove(&id);
    }

    fn conclude(&mut self, id: u64, outcome: Outcome) {
        self.stop_waiting(id);
        let Some(take) = self.takes.get_mut(&id) else { return };
        self.asked.remove(&take.owner);
        take.outcome = Some(outcome);
        take.wake.notify_one();
    }

    fn wait_in(&mut self, id: u64, session: i64) {
        let (Some(take), Some(one)) = (self.takes.get_mut(&id), self.sessions.get_mut(&session)) else { return };
        (take.session, take.is_waiting, take.waits_since) = (Some(session), true, now());
        take.trouble = None; // the server says now that it waits
        one.waits.insert(id);
        match take.word.take() {
            Some(word) => self.ended(id, &word), // the outcome came first
            None => (take.has_waited, one.is_kept) = (true, true),
        }
    }

    fn stop_waiting(&mut self, id: u64) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        take.is_waiting = false;
        if let Some(session) = take.session {
            if let Some(one) = self.sessions.get_mut(&session) {
                one.waits.remove(&id);
            }
            self.tidy(session);
        }
    }

    /// Gives back half of several locks, which is none. The next request has another owner.
    fn give_back_found(&mut self, id: u64) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        let found: Vec<_> = take.found.iter_mut().filter_map(Option::take).collect();
        if found.is_empty() {
            return;
        }
        let (terms, owner) = (take.terms.clone(), take.owner.clone());
        let until = self.patience(terms.lease);
        self.errands.extend(found.into_iter().map(|(place, _)| Errand::give_back(place, owner.clone(), until)));
        let next = self.owner(&terms);
        self.asked.remove(&owner);
        self.asked.insert(next.clone(), id);
        if let Some(take) = self.takes.get_mut(&id) {
            take.owner = next;
        }
    }

    /// Leaves the queue. If the grant came first, its row belongs to no take any longer, and it is released by its token.
    fn cancel(&mut self, id: u64) {
        let Some(take) = self.takes.get(&id).filter(|take| take.asked > 0) else { return };
        let (key, owner, until) = (take.terms.keys[0].clone(), take.owner.clone(), self.patience(take.terms.lease));
        self.errands.push(Errand::cancel(key, owner, take.session, until));
    }
}
