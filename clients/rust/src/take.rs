// SPDX-License-Identifier: MIT
//! Takes: a request, from its first command to the grant or the end of the wait.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, from_redis_value, Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::random::random;
use crate::settings::{millis, now, Event, FAR};
use crate::state::{Asked, Client, Held, HoldId, Kind, Row, State, Terms, PAUSE, SLICE};

/// How much longer a request whose time is up waits for the row that says so.
const GRACE: Duration = Duration::from_millis(500);
const WARN_EVERY: Duration = Duration::from_secs(10);
/// A time-out that comes no earlier is that of the wait.
const CLOSE: Duration = Duration::from_millis(20);

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
        if self.shared {
            command.arg("SHARED");
        }
        if let Some(limit) = self.limit {
            command.arg("LIMIT").arg(limit);
        }
        if let Some(permits) = self.permits.filter(|permits| *permits > 1) {
            command.arg("PERMITS").arg(permits);
        }
        command
    }
}

impl State {
    /// Notes a request under an owner that was never used. What stands before # is the actor, for the search for deadlocks.
    fn begin(&mut self, name: &str, terms: &Terms, began: Duration) -> Result<(Vec<u8>, UnboundedReceiver<Row>)> {
        if self.closed {
            return Err(Error::Closed);
        }
        self.runtime = Some(Handle::current());
        self.number += 1;
        let number = self.number;
        let owner = match &terms.actor {
            None => format!("{name}/{number}").into_bytes(),
            Some(actor) => [name.as_bytes(), b"/", actor.as_slice(), format!("#{number}").as_bytes()].concat(),
        };
        let (rows, received) = unbounded_channel();
        self.asked.insert(owner.clone(), Asked { terms: terms.clone(), began, session: None, rows });
        Ok((owner, received))
    }

    /// Reads a grant: of a hold that is known, or of a request that is under way. Reports whether it is of either.
    pub(crate) fn granted(&mut self, owner: &[u8], hold: HoldId, session: i64, end: Duration) -> bool {
        if self.held.contains_key(&hold) {
            self.extend(&hold, end);
        } else {
            let Some(asked) = self.asked.get(owner) else { return false };
            let held = Held::new(owner, asked.terms.lease, asked.terms.max_hold, end);
            asked.tell(Row::Granted(held.granted(hold.clone())));
            self.events.push(Event::Granted { key: hold.key.clone(), after: now() - asked.began });
            self.held.insert(hold.clone(), held);
        }
        self.enter_session(&hold, session);
        true
    }

    /// Reads `[token, id]`, `[[token, …], id]`, `[0, place, id]` or null.
    fn read_reply(&mut self, owner: &[u8], sent: Duration, reply: &[Value], is_first: bool) -> Answer {
        let (Some(tokens), Some(Value::Int(session))) = (reply.first(), reply.last()) else { return Answer::Taken };
        let Some(asked) = self.asked.get_mut(owner) else { return Answer::Told }; // the locks are closed
        let (keys, end) = (asked.terms.keys.clone(), sent.saturating_add(asked.terms.lease));
        let tokens = if let Value::Array(tokens) = tokens { tokens } else { std::slice::from_ref(tokens) };
        let tokens: Vec<u64> = tokens.iter().filter_map(|token| from_redis_value(token.clone()).ok()).collect();
        // Asked again, only the row says how long it lasts.
        if !is_first || tokens.contains(&0) {
            asked.session = Some(*session);
            self.keep(*session, &keys[0]);
            return Answer::Waits;
        }
        for (key, token) in keys.into_iter().zip(tokens) {
            self.granted(owner, HoldId { key, token }, *session, self.believed(end, 0));
        }
        Answer::Told
    }
}

enum Answer {
    Taken,
    /// What there is to know is in its rows already.
    Told,
    Waits,
}

/// What an attempt has come to.
enum Attempt {
    Taken,
    Granted,
    /// The wait has ended without an outcome: it asks again.
    Again,
}

impl Client {
    /// Returns the holds; None if the lock is taken. A wait of zero: one attempt.
    pub(crate) async fn take(self: &Arc<Self>, terms: Terms, wait: Duration) -> Result<Option<Vec<Hold>>> {
        let (began, key) = (now(), terms.keys[0].clone());
        let taken = async { Take::begin(self, terms, wait)?.run().await }.await;
        match &taken {
            Ok(Some(_)) => {} // the rules have reported each
            Ok(None) => self.settings.observer.refused(&key, now() - began, None),
            Err(error) => self.settings.observer.refused(&key, now() - began, Some(error)),
        }
        taken
    }
}

/// A request of one owner. Dropped early, it leaves the queue, and releases what it was granted.
struct Take<'a> {
    client: &'a Arc<Client>,
    terms: Terms,
    owner: Vec<u8>,
    rows: UnboundedReceiver<Row>,
    /// What was granted, of several locks until all are.
    holds: Vec<Hold>,
    wait: Duration,
    began: Duration,
    deadline: Duration,
    asked: u32,
    /// The server may still have the request in a queue, or may have granted it.
    may_be_there: bool,
    /// The observer knows that it waits.
    is_told: bool,
    trouble: Option<Error>,
}

impl Take<'_> {
    fn begin(client: &Arc<Client>, terms: Terms, wait: Duration) -> Result<Take<'_>> {
        let began = now();
        let (owner, rows) = client.with(|state| state.begin(&client.name, &terms, began))?;
        let deadline = began.saturating_add(if wait.is_zero() { client.settings.reply_timeout } else { wait });
        let (holds, trouble) = (Vec::new(), None);
        let (asked, may_be_there, is_told) = (0, false, false);
        Ok(Take { client, terms, owner, rows, holds, wait, began, deadline, asked, may_be_there, is_told, trouble })
    }

    fn is_try(&self) -> bool {
        self.wait.is_zero()
    }

    async fn run(mut self) -> Result<Option<Vec<Hold>>> {
        let mut warned: Option<Duration> = None;
        loop {
            let attempt = self.attempt().await;
            let pause = match attempt {
                Ok(Attempt::Taken) => return Ok(None),
                Ok(Attempt::Granted) => return Ok(Some(std::mem::take(&mut self.holds))),
                Err(error) if self.is_try() || self.terms.vote || !error.is_retryable() => return Err(error),
                Ok(Attempt::Again) => Duration::from_millis(if self.asked > 1 { random() % 50 } else { 0 }),
                Err(error) => {
                    if warned.is_none_or(|warned| now() >= warned + WARN_EVERY) {
                        let key = String::from_utf8_lossy(&self.terms.keys[0]);
                        tracing::warn!("still waiting for lock {key:?}: {error}");
                        warned = Some(now());
                    }
                    self.trouble = Some(error);
                    Duration::from_millis(20 + random() % 80)
                }
            };
            self.leave_session()?;
            sleep(pause.min(self.deadline.saturating_sub(now()))).await;
            if now() >= self.deadline {
                return self.out_of_time(None);
            }
        }
    }

    /// Asks once, and waits for the outcome.
    async fn attempt(&mut self) -> Result<Attempt> {
        let (client, owner, is_try) = (self.client, self.owner.clone(), self.is_try());
        let left = self.deadline.saturating_sub(now());
        let command = self.terms.command(&client.name, &owner, is_try, left);
        (self.asked, self.may_be_there) = (self.asked + 1, true);
        let (sent, is_first, key) = (now(), self.asked == 1, self.terms.keys[0].clone());
        let mut call = pin!(client.link.call(&key, command, left.saturating_add(GRACE)));
        let mut end = pin!(sleep_until(self.deadline.saturating_add(GRACE)));
        // Since when it waits; and a word that came before the answer.
        let (mut is_answered, mut waits, mut word) = (false, None, None);
        loop {
            tokio::select! {
                reply = &mut call, if !is_answered => {
                    is_answered = true;
                    match self.read_reply(sent, reply, is_first)? {
                        Answer::Taken => {
                            self.may_be_there = false;
                            return Ok(Attempt::Taken);
                        }
                        Answer::Told => {}
                        Answer::Waits => {
                            (waits, self.trouble) = (Some(now()), None);
                            if word.is_none() && !self.is_told {
                                self.is_told = true;
                                client.settings.observer.waiting(&key);
                            }
                        }
                    }
                }
                Some(row) = self.rows.recv() => match row {
                    Row::Granted(granted) => {
                        self.holds.push(Hold::new(client, granted));
                        if client.library.is_cluster() {
                            client.once.is_ready(); // or is made now: the release goes out by it
                        }
                        if self.holds.len() == self.terms.keys.len() {
                            self.may_be_there = false;
                            return Ok(Attempt::Granted);
                        }
                    }
                    Row::Failed(error) => return Err(error),
                    Row::Ended(ended) => word = Some(ended),
                },
                () = &mut end, if waits.is_some() => {
                    return self.out_of_time(waits).map(|_| Attempt::Taken);
                }
            }
            if let (Some(_), Some(word)) = (waits, &word) {
                return self.ended(word);
            }
        }
    }

    fn read_reply(&mut self, sent: Duration, reply: Result<Value>, is_first: bool) -> Result<Answer> {
        let reply = reply.and_then(|reply| Ok(from_redis_value::<Vec<Value>>(reply)?));
        let read = |reply: Vec<Value>| self.client.with(|state| state.read_reply(&self.owner, sent, &reply, is_first));
        reply.map(read).inspect_err(|error| {
            let is_new = is_first && (error.is_answer() || error.is_refused());
            self.may_be_there = !is_new && !matches!(error, Error::Replaced(_));
        })
    }

    /// Reads an outcome that is no grant.
    fn ended(&mut self, word: &str) -> Result<Attempt> {
        match word {
            "replaced" => {
                self.may_be_there = false;
                Err(Error::Replaced("REPLACED a newer request of the same owner has taken the place".into()))
            }
            "wrongtype" => {
                let text = "WRONGTYPE the key holds something that is not a lock";
                Err(RedisError::from((redis::ErrorKind::UnexpectedReturnType, text)).into())
            }
            "timeout" if self.deadline.saturating_sub(now()) < CLOSE => {
                self.may_be_there = false;
                Ok(Attempt::Taken)
            }
            _ => {
                if word == "again" {
                    let text = "NOACK the server did not confirm the grant, or serves the lock no more";
                    self.trouble = Some(Error::NoAck(text.into()));
                }
                if self.is_try() || self.terms.vote {
                    return Err(self.trouble.take().unwrap_or_else(Error::silent));
                }
                Ok(Attempt::Again)
            }
        }
    }

    /// Returns what a request has come to that has got no word in time, and since when it waits in its session.
    fn out_of_time(&mut self, waits: Option<Duration>) -> Result<Option<Vec<Hold>>> {
        let session = |state: &mut State| {
            let session = state.sessions.get(&state.asked.get(&self.owner)?.session?)?;
            Some((session.heard, session.trouble.clone()))
        };
        let (heard, failure) = self.client.with(session).unwrap_or_default();
        let trouble = self.trouble.take().or(failure);
        // The server has kept the place meanwhile: others have the lock, though the word about the end is late.
        if trouble.is_none() && !self.is_try() && waits.is_some_and(|since| heard > since) {
            return Ok(None);
        }
        let cause = trouble.unwrap_or_else(Error::silent);
        Err(if self.is_try() { cause } else { Error::Timeout { after: self.wait, cause: Some(Arc::new(cause)) } })
    }

    /// Waits no longer. Half of several locks, which is none, is released; then the next request has another owner.
    fn leave_session(&mut self) -> Result<()> {
        if self.holds.is_empty() {
            let leave = |state: &mut State| state.asked.get_mut(&self.owner).map(|asked| asked.session = None);
            return self.client.with(leave).ok_or(Error::Closed);
        }
        self.forget();
        (self.owner, self.rows) = self.client.with(|state| state.begin(&self.client.name, &self.terms, self.began))?;
        Ok(())
    }

    /// Takes it out of those that are under way, and releases what it was granted.
    fn forget(&mut self) {
        self.client.with(|state| state.asked.remove(&self.owner));
        while let Ok(row) = self.rows.try_recv() {
            if let Row::Granted(granted) = row {
                drop(Hold::new(self.client, granted));
            }
        }
        self.holds.clear();
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let session = self.client.with(|state| state.asked.get(&self.owner)?.session);
        self.forget();
        if self.may_be_there {
            let hold = HoldId { key: self.terms.keys[0].clone(), token: 0 };
            let owner = std::mem::take(&mut self.owner);
            self.client.with(|state| state.errand(Kind::Cancel(session), hold, owner, self.terms.lease));
        }
        if self.is_told {
            self.client.settings.observer.waited(&self.terms.keys[0]);
        }
    }
}

/// Sleeps until then, and longer if the process stalled: what the server has said is yet to be read.
async fn sleep_until(mut end: Duration) {
    while now() < end {
        let due = now() + SLICE.min(end - now());
        sleep(due.saturating_sub(now())).await;
        if now() > due + PAUSE {
            end = end.max(now() + GRACE);
        }
    }
}
