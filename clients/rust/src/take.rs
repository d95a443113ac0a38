// SPDX-License-Identifier: MIT
//! Take: ask, and wait by notifications, until the time is up. Whatever ends it leaves nothing behind.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, OwnedMutexGuard};
use tokio::time::{sleep, timeout};

use crate::core::{Asked, Core, GRACE};
use crate::error::{Error, Result};
use crate::link::Then;
use crate::random::random;
use crate::renewals::{Reentry, Shared};
use crate::request::AcquireRequest;
use crate::settings::{millis, now, FAR};
use crate::state::{number, Notification, Who};

const WARN_EVERY: Duration = Duration::from_secs(10);
/// Between two requests of a waiter who gets no messages.
const POLL: Duration = Duration::from_millis(250);

impl Core {
    /// Returns the hold; None if the lock is taken. A time-out of zero: one attempt.
    pub(crate) async fn take(
        self: &Arc<Self>,
        request: AcquireRequest,
        timeout: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let (began, key) = (now(), request.key.clone());
        let taken = self.take_in_turn(request, timeout, began).await;
        let observer = &self.settings.observer;
        match &taken {
            Ok(Some(_)) => observer.granted(&key, now() - began),
            Ok(None) => observer.refused(&key, now() - began, None),
            Err(error) => observer.refused(&key, now() - began, Some(error)),
        }
        taken
    }

    /// Requests of one named owner for one lock come one after the other, and a second one re-enters what it holds.
    async fn take_in_turn(
        self: &Arc<Self>,
        mut request: AcquireRequest,
        timeout: Option<Duration>,
        began: Duration,
    ) -> Result<Option<Arc<Shared>>> {
        self.check()?;
        self.ensure_running();
        let once = timeout == Some(Duration::ZERO);
        let deadline = timeout.filter(|timeout| *timeout < FAR).map(|timeout| began + timeout);
        let end = if once { Some(began + self.settings.reply_timeout) } else { deadline };
        let mut turn = None;
        if let Some(who) = request.who() {
            turn = match self.turn(who, once, end).await {
                Some(turn) => Some(turn),
                None => return Ok(None),
            };
            loop {
                match self.shelf.with(|state| state.reenter(&request)) {
                    Reentry::Free => break,
                    Reentry::Held(hold) => return Ok(Some(hold)),
                    Reentry::Refused(error) => return Err(error),
                    // A release that came later would end the next hold.
                    Reentry::Ending if end.is_some_and(|end| now() >= end) => return Ok(None),
                    Reentry::Ending => sleep(Duration::from_millis(1)).await,
                }
                self.check()?;
            }
            if let Some(turn) = &turn {
                self.shelf.with(|state| {
                    let Some(named) = state.named.get(&turn.who) else { return };
                    let (name, mut next) = (request.owner.clone(), 0);
                    while named.unanswered.contains(&request.owner) {
                        next += 1;
                        request.owner = [&name, format!(".{next}").as_bytes()].concat();
                    }
                });
            }
        }
        // From here on whatever ends this, dropping the future too, leaves nothing behind.
        let (core, asked, queued, over) = (self.clone(), Asked::default(), false, false);
        let mut taking = Taking { core, asked, request: Arc::new(request), once, deadline, end, queued, over };
        let taken = self.take_until(&mut taking, timeout).await;
        // Granted, or the place is somebody else's.
        taking.over |= matches!(&taken, Ok(Some(_)) | Err(Error::Replaced(_)));
        drop(taking);
        drop(turn);
        taken
    }

    async fn turn(self: &Arc<Self>, who: Who, once: bool, end: Option<Duration>) -> Option<Turn> {
        let mutex = self.shelf.with(|state| state.named.entry(who.clone()).or_default().turn.clone());
        let mut turn = Turn { core: self.clone(), who, guard: None };
        turn.guard = if once { mutex.try_lock_owned().ok() } else { within(end, mutex.lock_owned()).await };
        turn.guard.is_some().then_some(turn)
    }

    async fn take_until(
        self: &Arc<Self>,
        taking: &mut Taking,
        timeout: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let (once, end) = (taking.once, taking.end);
        let mut warned: Option<Duration> = None;
        let mut before: Option<Error> = None;
        let mut nodes = Vec::new();
        loop {
            let (name, _) = self.shelf.with(|state| state.route(&taking.request.key));
            let error = match self.attempt(taking).await {
                Ok(granted) => return Ok(granted),
                Err(error) if taking.request.vote => return Err(error),
                Err(error) if once => {
                    // One attempt; but the primary may be another of the nodes that we know.
                    nodes.push(name);
                    let (next, _) = self.shelf.with(|state| state.route(&taking.request.key));
                    if error.is_of_this_node() && !nodes.contains(&next) {
                        continue;
                    }
                    return Err(error);
                }
                // The grant has ended before it was confirmed.
                Err(error @ Error::NotHeld(_)) => error,
                Err(error) if !error.passes() => return Err(error),
                Err(error) => error,
            };
            let left = end.map(|end| end.saturating_sub(now()));
            if let (Some(after), Some(Duration::ZERO)) = (timeout, left) {
                // The end has cut the last attempt short: the reason is what failed before.
                let cause = before.filter(|_| error.is_silence()).unwrap_or(error);
                return Err(Error::Timeout { after, cause: Some(Arc::new(cause)) });
            }
            if warned.is_none_or(|warned| now() >= warned + WARN_EVERY) {
                tracing::warn!("still waiting for lock {:?}: {error}", String::from_utf8_lossy(&taking.request.key));
                warned = Some(now());
            }
            let pause = Duration::from_millis(20 + random() % 80);
            before = Some(error);
            self.pause(left.map_or(pause, |left| left.min(pause))).await;
        }
    }

    fn until(&self, end: Option<Duration>) -> Duration {
        let until = now() + self.settings.reply_timeout;
        end.map_or(until, |end| until.min(end + GRACE))
    }

    async fn attempt(self: &Arc<Self>, taking: &mut Taking) -> Result<Option<Arc<Shared>>> {
        let (request, end) = (taking.request.clone(), taking.end);
        let (refused, crowded) = self.shelf.with(|state| {
            let (name, _) = state.route(&request.key);
            let Some(node) = state.nodes.get(&name) else { return (false, false) };
            let refused = node.trouble.as_ref().is_some_and(Error::is_refusal);
            (refused, node.is_crowded(&request.key) && !node.subscribe_denied)
        });
        if refused {
            // A new hold could not be kept either.
            let (link, ..) = self.link(&request.key, self.until(end)).await?;
            self.keep_alive(&link, self.until(end)).await?;
        }
        if !taking.queued && !taking.once && crowded {
            taking.queue(); // the answer that it is taken would be a command for nothing
        }
        if !taking.queued {
            if let Some(hold) = self.ask_for(taking).await? {
                return Ok(Some(hold));
            }
            if taking.once {
                taking.over = true;
                return Ok(None);
            }
            taking.queue();
        }
        let (_, name, _) = self.link(&request.key, self.until(end)).await.inspect_err(|error| {
            let (name, _) = self.shelf.with(|state| state.route(&request.key));
            self.refresh_routes(&name, error);
        })?;
        if !self.shelf.with(|state| state.node(&name).subscribe_denied) {
            return self.wait(taking, &name).await;
        }
        if !self.warned_denied.swap(true, Ordering::Relaxed) {
            tracing::warn!("messages cannot be heard: no permission. Each wait asks four times a second");
        }
        self.poll(taking).await
    }

    /// Asks for the lock, or by the ticket for what became of the place.
    async fn ask_for(self: &Arc<Self>, taking: &Taking) -> Result<Option<Arc<Shared>>> {
        let request = &taking.request;
        let one = request.clone();
        // If a reply was lost, the server may have granted it then. How much is left (`dlock.max-hold-ms`) RENEW says.
        let again = taking.asked.is_set();
        let granted: Then = Arc::new(move |state, at, reply| {
            if let (Ok(Value::Array(reply)), false) = (reply, again) {
                let lease = i64::try_from(millis(one.settings.lease)).unwrap_or(i64::MAX);
                state.granted(&one, at, number(reply.first()), lease);
            }
        });
        let command = request.acquire(taking.once);
        let (reply, _) =
            self.call(&request.key, command, self.until(taking.end), Some(granted), Some(&taking.asked)).await?;
        match reply {
            Value::Array(reply) if again => self.confirm(taking, number(reply.first())).await,
            Value::Array(reply) => self.adopt(request, number(reply.first())).map(Some),
            _ => Ok(None),
        }
    }

    /// Waits by NOTIFY.
    async fn wait(self: &Arc<Self>, taking: &Taking, name: &str) -> Result<Option<Arc<Shared>>> {
        let (request, deadline) = (&taking.request, taking.deadline);
        let mut listed = Listed::new(self, name, request);
        let block = match deadline.map(|deadline| deadline.saturating_sub(now())) {
            Some(Duration::ZERO) => return Ok(None),
            block => block,
        };
        let command = request.wait(&self.channel, block);
        let (reply, at) = self.call(&request.key, command, self.until(taking.end), None, Some(&taking.asked)).await?;
        if at != name {
            return Err(Error::io(std::io::ErrorKind::NotConnected, "the slot has moved"));
        }
        let Value::Array(reply) = reply else { return Ok(None) };
        if number(reply.first()) > 0 {
            return self.confirm(taking, number(reply.first())).await;
        }
        let ours = number(reply.get(2));
        loop {
            let notified = within(deadline.map(|deadline| deadline + GRACE), listed.notifications.recv()).await;
            let Some(notification) = notified.flatten() else {
                return Ok(None); // and leaves
            };
            self.check()?;
            if notification.number != 0 && notification.number != ours {
                continue; // of an earlier request of ours
            }
            let text = format!("{} (told by a message)", notification.word.to_uppercase());
            return match notification.word.as_str() {
                "granted" => self.confirm(taking, notification.token).await,
                "timeout" => Ok(None),
                "deadlock" => Err(Error::Deadlock(text)),
                "replaced" => Err(Error::Replaced(text)),
                "notheld" => Err(Error::NotHeld(text)),
                "noack" => Err(Error::NoAck(text)),
                "wrongtype" | "refused" => {
                    Err(Error::Redis((redis::ErrorKind::UnexpectedReturnType, "the wait was refused", text).into()))
                }
                // Moved, gone, cancelled, again.
                word => {
                    let text = format!("the place in the queue was lost: {word}");
                    Err(Error::io(std::io::ErrorKind::NotConnected, &text))
                }
            };
        }
    }

    /// Waits without messages: asks by the ticket.
    async fn poll(self: &Arc<Self>, taking: &Taking) -> Result<Option<Arc<Shared>>> {
        while taking.deadline.is_none_or(|deadline| now() < deadline) {
            if let Some(hold) = self.ask_for(taking).await? {
                return Ok(Some(hold));
            }
            let left = taking.deadline.map_or(POLL, |deadline| deadline.saturating_sub(now()));
            self.pause(POLL.min(left)).await;
            self.check()?;
        }
        Ok(None)
    }

    /// The full lease, and from now on the server renews it as long as our link is there.
    async fn confirm(self: &Arc<Self>, taking: &Taking, token: u64) -> Result<Option<Arc<Shared>>> {
        let request = &taking.request;
        let one = request.clone();
        let then: Then = Arc::new(move |state, at, reply| {
            if let Ok(Value::Int(lease)) = reply {
                state.granted(&one, at, token, *lease);
            }
        });
        self.call(&request.key, request.renew(token), self.until(taking.end), Some(then), Some(&taking.asked)).await?;
        self.adopt(request, token).map(Some)
    }

    /// Returns the hold; an error if it has ended meanwhile.
    fn adopt(&self, request: &Arc<AcquireRequest>, token: u64) -> Result<Arc<Shared>> {
        let hold = Shared::new(request, token);
        if self.shelf.with(|state| state.adopt(&hold)) {
            return Ok(hold);
        }
        self.check()?;
        Err(Error::NotHeld("the lock was lost at once".into()))
    }
}

/// Until then, or without bound.
async fn within<F: std::future::Future>(until: Option<Duration>, work: F) -> Option<F::Output> {
    match until {
        Some(until) => timeout(until.saturating_sub(now()), work).await.ok(),
        None => Some(work.await),
    }
}

/// A named owner's turn to ask for a lock.
struct Turn {
    core: Arc<Core>,
    who: Who,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        self.core.shelf.with(|state| state.tidy(&self.who));
    }
}

/// A request that is abandoned when it is dropped.
struct Taking {
    core: Arc<Core>,
    request: Arc<AcquireRequest>,
    asked: Asked,
    once: bool,
    deadline: Option<Duration>,
    /// The deadline, or a try's bound.
    end: Option<Duration>,
    queued: bool,
    /// There is nothing to abandon.
    over: bool,
}

impl Taking {
    fn queue(&mut self) {
        self.queued = true;
        self.core.settings.observer.waiting(&self.request.key);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if self.queued {
            self.core.settings.observer.waited(&self.request.key);
        }
        if let (false, Some(link)) = (self.over, self.asked.last()) {
            self.core.abandon(&self.request, &link);
        }
    }
}

/// An entry in the list of those who wait.
struct Listed<'a> {
    core: &'a Arc<Core>,
    node: &'a str,
    who: Who,
    notifications: mpsc::UnboundedReceiver<Notification>,
}

impl<'a> Listed<'a> {
    fn new(core: &'a Arc<Core>, node: &'a str, request: &AcquireRequest) -> Listed<'a> {
        let (sender, notifications) = mpsc::unbounded_channel();
        let who = (request.key.clone(), request.owner.clone());
        core.shelf.with(|state| state.node(node).insert_wait(who.clone(), sender));
        core.spawn_keeper(node);
        Listed { core, node, who, notifications }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.core.shelf.with(|state| state.node(self.node).remove_wait(&self.who));
    }
}
