// SPDX-License-Identifier: MIT
//! Take: ask, and wait, by messages or by blocking, until the time is up. Whatever ends it leaves nothing behind.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, Value};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::core::{Asked, Core, GRACE};
use crate::error::{Error, Result};
use crate::link::{self, Then};
use crate::random::random;
use crate::settings::{millis, now, FAR};
use crate::state::{number, News};
use crate::ties::Shared;
use crate::want::Want;

const WARN_EVERY: Duration = Duration::from_secs(10);

impl Core {
    /// The hold; None if it is taken. A time-out of zero: one try.
    pub(crate) async fn take(
        self: &Arc<Self>,
        want: Arc<Want>,
        named: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let began = now();
        let observer = self.settings.observer.clone();
        let at_once = timeout == Some(Duration::ZERO);
        let deadline = timeout.filter(|timeout| *timeout < FAR).map(|timeout| began + timeout);
        let end = if at_once { Some(began + self.settings.bound) } else { deadline };
        let (core, asked, queued, over) = (self.clone(), Asked::default(), false, false);
        // From here on whatever ends this, dropping the future too, leaves nothing behind.
        let mut taking = Taking { core, asked, want, named, at_once, deadline, end, queued, over };
        let taken = self.take_until(&mut taking, timeout).await;
        let key = taking.want.key.clone();
        match &taken {
            Ok(Some(_)) => {
                observer.granted(&key, now() - began);
                taking.over = true;
            }
            Ok(None) => observer.refused(&key, now() - began, None),
            Err(error) => {
                // The place is somebody else's.
                taking.over = matches!(error, Error::Replaced(_));
                observer.refused(&key, now() - began, Some(error));
            }
        }
        taken
    }

    async fn take_until(
        self: &Arc<Self>,
        taking: &mut Taking,
        timeout: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let (at_once, end) = (taking.at_once, taking.end);
        let mut warned: Option<Duration> = None;
        let mut before: Option<Error> = None;
        loop {
            let error = match self.attempt(taking).await {
                Ok(granted) => return Ok(granted),
                Err(error) if taking.want.vote => return Err(error),
                // The grant has ended before it was confirmed.
                Err(error @ Error::NotHeld(_)) if taking.want.outer().1 == 0 => error,
                Err(error) if !error.passes() => return Err(error),
                Err(error @ Error::NoAck(_)) if at_once => return Err(error),
                Err(error) if at_once && error.is_silence() => return Err(error),
                Err(error) => error,
            };
            let left = end.map(|end| end.saturating_sub(now()));
            match timeout {
                Some(_) if at_once && left == Some(Duration::ZERO) => return Err(error),
                Some(after) if left == Some(Duration::ZERO) => {
                    // The end has cut the last try short: the reason is what was heard before.
                    let cause = before.filter(|_| error.is_silence()).unwrap_or(error);
                    return Err(Error::Timeout { after, cause: Some(Arc::new(cause)) });
                }
                _ => {}
            }
            if warned.is_none_or(|warned| now() >= warned + WARN_EVERY) {
                tracing::warn!("still waiting for lock {:?}: {error}", String::from_utf8_lossy(&taking.want.key));
                warned = Some(now());
            }
            let pause = Duration::from_millis(20 + random() % 80);
            before = Some(error);
            sleep(left.map_or(pause, |left| left.min(pause))).await;
        }
    }

    fn until(&self, end: Option<Duration>) -> Duration {
        let bound = now() + self.settings.bound;
        end.map_or(bound, |end| bound.min(end + GRACE))
    }

    async fn attempt(self: &Arc<Self>, taking: &mut Taking) -> Result<Option<Arc<Shared>>> {
        self.wind();
        let (want, end) = (taking.want.clone(), taking.end);
        if taking.named {
            // An outer hold of this name is not ours to give back.
            while self.shelf.with(|state| state.nodes.values().any(|node| node.leaves(&want.key, &want.owner))) {
                self.check()?;
                if end.is_some_and(|end| now() >= end) {
                    return Err(Error::io(std::io::ErrorKind::TimedOut, "this owner's last wait is still to be left"));
                }
                sleep(Duration::from_millis(10)).await;
            }
            let (held, _) = self.call(&want.key, want.command("DLOCK.HELD"), self.until(end), None, None).await?;
            if let Value::Array(held) = held {
                want.within(number(held.first()), number(held.get(1)));
            }
            taking.named = false;
        }
        if !taking.queued {
            let (reply, _) = self
                .call(&want.key, want.take(taking.at_once), self.until(end), Some(granted(&want)), Some(&taking.asked))
                .await?;
            if let Value::Array(reply) = reply {
                return self.adopt(&want, number(reply.first())).map(Some);
            }
            if taking.at_once {
                taking.over = true;
                return Ok(None);
            }
            taking.queued = true;
            self.settings.observer.waiting(&want.key);
        }
        let name = self.route(&want.key);
        self.link(&name, self.until(end)).await.inspect_err(|error| self.look_around(&name, error))?;
        if !self.shelf.with(|state| state.node(&name).deaf) {
            return self.queue(taking, &name).await;
        }
        if !self.said_deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!("waits block on connections of their own, since messages cannot be heard: no permission");
        }
        self.block(taking, &name).await
    }

    /// By NOTIFY.
    async fn queue(self: &Arc<Self>, taking: &Taking, name: &str) -> Result<Option<Arc<Shared>>> {
        let (want, deadline) = (&taking.want, taking.deadline);
        let mut listed = Listed::new(self, name, want);
        let block = match deadline.map(|deadline| deadline.saturating_sub(now())) {
            Some(Duration::ZERO) => return Ok(None),
            block => block,
        };
        let command = want.wait(&["NOTIFY", &self.channel], block);
        let (reply, at) = self.call(&want.key, command, self.until(taking.end), None, Some(&taking.asked)).await?;
        if at != name {
            return Err(Error::io(std::io::ErrorKind::NotConnected, "the slot has moved"));
        }
        let Value::Array(reply) = reply else { return Ok(None) };
        if number(reply.first()) > 0 {
            return self.confirm(taking, number(reply.first())).await;
        }
        let ours = number(reply.get(2));
        loop {
            let Some(news) = within(deadline.map(|deadline| deadline + GRACE), listed.news.recv()).await.flatten()
            else {
                return Ok(None); // and leaves
            };
            self.check()?;
            if news.number != 0 && news.number != ours {
                continue; // of an earlier asking of ours
            }
            let text = format!("{} (told by a message)", news.word.to_uppercase());
            return match news.word.as_str() {
                "granted" => self.confirm(taking, news.token).await,
                "timeout" => Ok(None),
                "deadlock" => Err(Error::Deadlock(text)),
                "replaced" => Err(Error::Replaced(text)),
                "notheld" => Err(Error::NotHeld(text)),
                "noack" => Err(Error::NoAck(text)),
                "wrongtype" | "refused" => {
                    Err(Error::Redis((redis::ErrorKind::UnexpectedReturnType, "the wait was refused", text).into()))
                }
                // Moved, gone, cancelled, again.
                word => Err(Error::io(std::io::ErrorKind::NotConnected, &format!("the wait has ended: {word}"))),
            };
        }
    }

    /// By BLOCK in slices, on a connection of its own.
    async fn block(self: &Arc<Self>, taking: &Taking, name: &str) -> Result<Option<Arc<Shared>>> {
        let bound = self.settings.bound;
        let (mut connection, _) = link::connect(self, name, ProtocolVersion::RESP2, None).await?;
        taking.asked.at(name);
        loop {
            let left = taking.deadline.map(|deadline| deadline.saturating_sub(now()));
            if left == Some(Duration::ZERO) {
                return Ok(None); // and leaves
            }
            let part = left.map_or(bound / 2, |left| left.min(bound / 2));
            let command = taking.want.wait(&[], Some(part));
            let replied = tokio::select! {
                replied = timeout(part + bound, command.query_async(&mut connection)) => replied,
                () = self.until_closed() => return Err(Error::Closed),
            };
            let reply: Value = match replied {
                Ok(Ok(reply)) => reply,
                Ok(Err(error)) => {
                    let error = error.into();
                    self.look_around(name, &error); // the key may be another node's by now
                    return Err(error);
                }
                Err(_) => return Err(Error::silent()),
            };
            self.check()?;
            if let Value::Array(reply) = reply {
                return self.confirm(taking, number(reply.first())).await;
            }
        }
    }

    /// The full lease, and from now on the server renews it as long as our link is there.
    async fn confirm(self: &Arc<Self>, taking: &Taking, token: u64) -> Result<Option<Arc<Shared>>> {
        let want = taking.want.clone();
        let tied = want.clone();
        let then: Then = Arc::new(move |state, at, reply| {
            if let Ok(Value::Int(lease)) = reply {
                state.tie(&tied, at, token, *lease);
            }
        });
        self.call(&want.key, want.renew(token), self.until(taking.end), Some(then), Some(&taking.asked)).await?;
        self.adopt(&want, token).map(Some)
    }

    /// An error if it has ended meanwhile.
    fn adopt(&self, want: &Arc<Want>, token: u64) -> Result<Arc<Shared>> {
        let hold = Shared::new(want, token);
        if self.shelf.with(|state| state.adopt(&hold)) {
            return Ok(hold);
        }
        self.check()?;
        Err(Error::NotHeld("the lock was lost at once".into()))
    }
}

fn granted(want: &Arc<Want>) -> Then {
    let want = want.clone();
    Arc::new(move |state, at, reply| {
        if let Ok(Value::Array(reply)) = reply {
            let lease = i64::try_from(millis(want.settings.lease)).unwrap_or(i64::MAX);
            state.tie(&want, at, number(reply.first()), lease);
        }
    })
}

/// Until then, or without bound.
async fn within<F: std::future::Future>(until: Option<Duration>, work: F) -> Option<F::Output> {
    match until {
        Some(until) => timeout(until.saturating_sub(now()), work).await.ok(),
        None => Some(work.await),
    }
}

/// A wait that leaves for good when it is dropped.
struct Taking {
    core: Arc<Core>,
    want: Arc<Want>,
    asked: Asked,
    /// The program has named the owner, and nobody has looked yet what it holds.
    named: bool,
    at_once: bool,
    deadline: Option<Duration>,
    /// The deadline, or a try's bound.
    end: Option<Duration>,
    queued: bool,
    /// There is nothing to leave.
    over: bool,
}

impl Drop for Taking {
    fn drop(&mut self) {
        if self.queued {
            self.core.settings.observer.waited(&self.want.key);
        }
        if let (false, Some(name)) = (self.over, self.asked.last()) {
            self.core.leave(&self.want, &name);
        }
    }
}

/// An entry in the list of those who wait.
struct Listed<'a> {
    core: &'a Arc<Core>,
    node: &'a str,
    who: (Vec<u8>, Vec<u8>),
    sender: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
}

impl<'a> Listed<'a> {
    fn new(core: &'a Arc<Core>, node: &'a str, want: &Want) -> Listed<'a> {
        let (sender, news) = mpsc::unbounded_channel();
        let who = (want.key.clone(), want.owner.clone());
        core.shelf.with(|state| state.node(node).hear(who.clone(), sender.clone()));
        core.employ(node);
        Listed { core, node, who, sender, news }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.core.shelf.with(|state| state.node(self.node).unhear(&self.who, &self.sender));
    }
}
