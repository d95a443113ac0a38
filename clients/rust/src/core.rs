// SPDX-License-Identifier: MIT
//! What all have together: who serves what, the links there, a call to whoever serves a key, and the end of it all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};
use crate::link::{self, Link, Reply, Then, ANOTHER};
use crate::random::{process, unique};
use crate::servers::Servers;
use crate::settings::{now, Settings};
use crate::state::{Opening, Shelf, State};

/// A caller whose time is up waits this much longer for a reply that is on its way.
pub(crate) const GRACE: Duration = Duration::from_millis(500);
/// How often a request that waits for a link checks whether another node serves the key by now.
const LOOK: Duration = Duration::from_millis(100);

/// All that the clones of one [`Locks`](crate::Locks) and its holds share.
pub(crate) struct Core {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) shelf: Shelf,
    /// On which grants are announced.
    pub(crate) channel: String,
    /// What the names of owners begin with, and what those of named owners end with.
    pub(crate) process: String,
    pub(crate) suffix: String,
    count: AtomicU64,
    /// It is closed, for whoever waits for something else.
    ended: watch::Sender<bool>,
    /// It was logged that no messages are heard.
    pub(crate) warned_denied: AtomicBool,
}

impl Core {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Core {
        let shelf = Shelf::default();
        shelf.with(|state| state.known = servers.seeds());
        Core {
            servers,
            settings,
            shelf,
            channel: format!("dlock:{}", unique()),
            process: process(),
            suffix: format!("#{}", unique()),
            count: AtomicU64::new(1),
            ended: watch::Sender::new(false),
            warned_denied: AtomicBool::new(false),
        }
    }

    /// Returns the name of an owner that nobody else is.
    pub(crate) fn party(&self) -> String {
        format!("{}{}", self.process, unique())
    }

    pub(crate) fn number(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.shelf.with(|state| state.closed) {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) async fn until_closed(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// After an error that passes: this node may not be there any more, or be no primary.
    pub(crate) fn refresh_routes(&self, name: &str, error: &Error) {
        self.shelf.with(|state| {
            if error.is_read_only() {
                // Who is primary now is found by connecting.
                state.node(name).link.iter().for_each(|link| link.kill());
            }
            if !matches!(error, Error::NoAck(_)) {
                state.forget_routes(name);
            }
        });
    }

    /// Returns the link of the node that serves the key, that node's name, and whether the key is there before its slot. Whoever
    /// comes while a link is being opened waits for the same one, as long as it likes.
    pub(crate) async fn link(self: &Arc<Self>, key: &[u8], until: Duration) -> Result<(Arc<Link>, String, bool)> {
        loop {
            let (name, asking) = self.shelf.with(|state| state.route(key));
            if let Some(link) = self.link_at(&name, until, Some(LOOK)).await? {
                return Ok((link, name, asking));
            }
        }
    }

    /// Returns the node's link; None if it is not there after `look`.
    pub(crate) async fn link_at(
        self: &Arc<Self>,
        name: &str,
        until: Duration,
        look: Option<Duration>,
    ) -> Result<Option<Arc<Link>>> {
        let known = self.shelf.with(|state| match (state.closed, state.link(name)) {
            (true, _) => Err(Error::Closed),
            (_, Some(link)) => Ok(Ok(link)),
            _ => Ok(Err(self.open(state, name))),
        });
        let mut opening = match known? {
            Ok(link) => return Ok(Some(link)),
            Err(opening) => opening,
        };
        let left = until.saturating_sub(now());
        let opened = timeout(look.map_or(left, |look| look.min(left)), opening.wait_for(Option::is_some)).await;
        match opened.as_ref().map(|opened| opened.as_deref()) {
            Ok(Ok(Some(result))) => result.clone().map(Some),
            Ok(_) => Err(Error::io(std::io::ErrorKind::NotConnected, "the runtime that connected has ended")),
            Err(_) if now() < until => Ok(None),
            Err(_) => Err(Error::silent()),
        }
    }

    /// Opens a link, in the background, or returns the opening that is under way.
    pub(crate) fn open(self: &Arc<Self>, state: &mut State, name: &str) -> Opening {
        let node = state.node(name);
        match &node.opening {
            // One that has ended without a result was another runtime's.
            Some(opening) if opening.borrow().is_none() && opening.has_changed().is_ok() => return opening.clone(),
            _ => {}
        }
        let (sender, opening) = watch::channel(None);
        node.opening = Some(opening.clone());
        let (core, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut opened = core.connect(&name).await;
            match &mut opened {
                Ok(link) => {
                    if let Some(before) = core.linked(&name, link) {
                        let _ = core.renew(&name, link, Duration::ZERO).await; // the rest is its keeper's
                        before.kill();
                    }
                }
                Err(error) => tracing::debug!("node {name}: {error}"),
            }
            sender.send_replace(Some(opened));
        });
        opening
    }

    /// While a connect hangs another is begun each second, which asks Sentinel anew; the first one that is there wins. What the
    /// node served is asked for elsewhere.
    async fn connect(self: &Arc<Self>, name: &str) -> Result<Arc<Link>> {
        let end = now() + self.settings.reply_timeout;
        let mut running = FuturesUnordered::new();
        running.push(link::open(self.clone(), name.to_owned()));
        loop {
            let left = end.saturating_sub(now());
            match timeout(left.min(ANOTHER), running.next()).await {
                Ok(Some(Err(error))) if error.passes() && !running.is_empty() => {}
                Ok(Some(opened)) => return opened,
                _ if now() >= end => return Err(Error::silent()),
                _ => {
                    self.look_elsewhere(name);
                    running.push(link::open(self.clone(), name.to_owned()));
                }
            }
        }
    }

    fn look_elsewhere(self: &Arc<Self>, name: &str) {
        self.shelf.with(|state| {
            state.forget_routes(name);
            state.reroute(name);
        });
        self.spawn_keepers();
    }

    /// Connects beside a link whose reply is a second late. Its server may hang, be no primary any more, or only wait for its
    /// replicas. The client looks elsewhere only if this connect also hangs.
    pub(crate) fn overdue(self: &Arc<Self>, name: &str, link: u64) {
        self.shelf.with(|state| {
            if state.link(name).is_some_and(|one| one.id == link) {
                self.open(state, name);
            }
        });
    }

    /// The node's link from now on, unless that lives and leads to the same server; returns the one before, if it lives.
    fn linked(self: &Arc<Self>, name: &str, link: &mut Arc<Link>) -> Option<Arc<Link>> {
        let before = self.shelf.with(|state| {
            if state.closed || link.is_dead() {
                link.kill();
                return None;
            }
            let before = state.link(name);
            match before {
                Some(before) if before.address == link.address && !state.is_stale(before.id) => {
                    link.kill();
                    *link = before;
                    None
                }
                before => {
                    state.node(name).link = Some(link.clone());
                    before
                }
            }
        });
        self.spawn_keeper(name);
        before
    }

    pub(crate) async fn result(&self, reply: Option<oneshot::Receiver<Reply>>, until: Duration) -> Result<Value> {
        let lost = || Error::io(std::io::ErrorKind::ConnectionReset, "the connection is lost");
        let reply = reply.ok_or_else(lost)?;
        match timeout(until.saturating_sub(now()), reply).await {
            Ok(Ok(reply)) => Ok(reply?),
            Ok(Err(_)) => Err(lost()),
            Err(_) => Err(Error::silent()),
        }
    }

    /// Returns the reply of whoever serves the key, and who that is. Redirections are followed.
    pub(crate) async fn call(
        self: &Arc<Self>,
        key: &[u8],
        command: Cmd,
        until: Duration,
        then: Option<Then>,
        asked: Option<&Asked>,
    ) -> Result<(Value, String)> {
        self.check()?;
        let mut tries = 0;
        loop {
            let (link, name, asking) = match self.link(key, until).await {
                Ok(linked) => linked,
                Err(error) => {
                    let (name, _) = self.shelf.with(|state| state.route(key));
                    self.refresh_routes(&name, &error);
                    return Err(error);
                }
            };
            if let Some(asked) = asked {
                asked.at(&link);
            }
            tries += 1;
            match self.result(link.post(command.clone(), asking, then.clone()), until).await {
                Ok(value) => return Ok((value, name)),
                Err(error) => match error.redirect(&name) {
                    Some(redirect) => {
                        self.shelf.with(|state| state.learn(key, &redirect));
                        if tries == 5 {
                            return Err(error);
                        }
                    }
                    None => {
                        if error.passes() {
                            self.refresh_routes(&name, &error);
                        }
                        return Err(error);
                    }
                },
            }
        }
    }

    /// Returns the reply to a plain command about a key.
    pub(crate) async fn ask(self: &Arc<Self>, key: &[u8], command: Cmd) -> Result<Value> {
        Ok(self.call(key, command, now() + self.settings.reply_timeout, None, None).await?.0)
    }

    /// Sleeps, or returns at once when all is closed.
    pub(crate) async fn pause(&self, duration: Duration) {
        tokio::select! {
            () = sleep(duration) => {}
            () = self.until_closed() => {}
        }
    }

    /// Everything ends: what is held is lost, and lives on until its lease.
    pub(crate) fn close(&self) {
        self.ended.send_replace(true);
        self.shelf.with(|state| {
            state.closed = true;
            let held = state.lose_all("closed", |_| true);
            for node in state.nodes.values_mut() {
                node.notify_all("closed", |_| true);
                node.link.take().iter().for_each(|link| link.kill());
                node.wake();
            }
            state.ring.notify_one();
            if held > 0 {
                tracing::warn!("closed with {held} locks held: they are lost");
            }
        });
    }
}

impl Drop for Core {
    /// The clock and the keepers see that there is nothing more to do.
    fn drop(&mut self) {
        self.shelf.with(|state| {
            state.ring.notify_one();
            state.nodes.values().for_each(|node| node.kick.notify_one());
        });
    }
}

/// Where a request was sent last, if it was.
#[derive(Default)]
pub(crate) struct Asked(Mutex<Option<Arc<Link>>>);

impl Asked {
    fn at(&self, link: &Arc<Link>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn last(&self) -> Option<Arc<Link>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
