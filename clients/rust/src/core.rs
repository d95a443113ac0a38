// SPDX-License-Identifier: MIT
//! What all have together: who serves what, the links there, a call to whoever serves a key, and the end of it all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::link::{self, Link, Reply, Then};
use crate::random::unique;
use crate::servers::{slot, Servers};
use crate::settings::{now, Settings};
use crate::state::{Opening, Shelf, State};

/// So much longer a caller whose time is up waits for a reply that is on its way.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// All that the clones of one [`Locks`](crate::Locks) and its holds share.
pub(crate) struct Core {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) shelf: Shelf,
    /// On which grants are told.
    pub(crate) channel: String,
    count: AtomicU64,
    /// It is closed, for whoever waits for something else.
    ended: watch::Sender<bool>,
    /// It was said that messages cannot be heard.
    pub(crate) said_deaf: AtomicBool,
}

impl Core {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Core {
        let channel = format!("dlock:{}", unique());
        let (count, ended, said_deaf) = (AtomicU64::new(1), watch::Sender::new(false), AtomicBool::new(false));
        Core { servers, settings, shelf: Shelf::default(), channel, count, ended, said_deaf }
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

    /// Who serves the key, as far as we know.
    pub(crate) fn server_of(&self, state: &State, key: &[u8]) -> String {
        state.slots.get(&slot(key)).cloned().unwrap_or_else(|| self.servers.first(state.first))
    }

    pub(crate) fn route(&self, key: &[u8]) -> String {
        self.shelf.with(|state| self.server_of(state, key))
    }

    /// After an error that passes: the key is another node's, or this one may not be there any more, or be no primary.
    pub(crate) fn look_around(&self, node: &str, error: &Error) {
        self.shelf.with(|state| {
            if let Some(redirect) = error.redirect(node) {
                return state.learn(&redirect);
            }
            if error.is_read_only() {
                // Who is primary now is found by connecting.
                state.node(node).link.iter().for_each(|link| link.kill());
            }
            state.slots.retain(|_, name| name != node);
            if self.servers.first(state.first) == node {
                state.first += 1;
            }
        });
    }

    /// The node's link. Whoever comes while it is being opened waits for the same one, as long as it likes.
    pub(crate) async fn link(self: &Arc<Self>, name: &str, until: Duration) -> Result<Arc<Link>> {
        let mut opening = {
            let known = self.shelf.with(|state| {
                if state.closed {
                    return Err(Error::Closed);
                }
                match state.node(name).link.as_ref().filter(|link| !link.is_dead()) {
                    Some(link) => Ok(Ok(link.clone())),
                    None => Ok(Err(self.open(state, name))),
                }
            });
            match known? {
                Ok(link) => return Ok(link),
                Err(opening) => opening,
            }
        };
        let opened = timeout(until.saturating_sub(now()), opening.wait_for(Option::is_some)).await;
        match opened.as_ref().map(|opened| opened.as_deref()) {
            Ok(Ok(Some(result))) => result.clone(),
            Ok(_) => Err(Error::io(std::io::ErrorKind::NotConnected, "the runtime that connected has ended")),
            Err(_) => Err(Error::silent()),
        }
    }

    /// A new link, in the background, or the one that is on its way. It takes the place of one that lives when all is tied to it.
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
            let opened = link::open(&core, &name).await;
            let before = opened.as_ref().ok().and_then(|link| core.linked(&name, link));
            match (&opened, before) {
                (Ok(link), Some(before)) => {
                    let _ = core.retie(&name, link, Duration::ZERO).await; // what is not tied yet is its keeper's to tie
                    before.kill();
                }
                (Err(error), _) => tracing::debug!("node {name}: {error}"),
                _ => {}
            }
            sender.send_replace(Some(opened));
        });
        opening
    }

    /// The node's link from now on; gives the one before, if it lives.
    fn linked(self: &Arc<Self>, name: &str, link: &Arc<Link>) -> Option<Arc<Link>> {
        let before = self.shelf.with(|state| {
            if state.closed || link.is_dead() {
                link.kill();
                return None;
            }
            state.node(name).link.replace(link.clone()).filter(|before| !before.is_dead())
        });
        self.employ(name);
        before
    }

    pub(crate) async fn result(&self, reply: oneshot::Receiver<Reply>, until: Duration) -> Result<Value> {
        match timeout(until.saturating_sub(now()), reply).await {
            Ok(Ok(reply)) => Ok(reply?),
            Ok(Err(_)) => Err(Error::io(std::io::ErrorKind::ConnectionReset, "the connection is lost")),
            Err(_) => Err(Error::silent()),
        }
    }

    /// The reply of whoever serves the key, and who that is.
    pub(crate) async fn call(
        self: &Arc<Self>,
        key: &[u8],
        command: Cmd,
        until: Duration,
        then: Option<Then>,
        asked: Option<&Asked>,
    ) -> Result<(Value, String)> {
        self.check()?;
        let (mut name, mut asking, mut tries) = (self.route(key), false, 0);
        loop {
            let called = match self.link(&name, until).await {
                Ok(link) => {
                    if let Some(asked) = asked {
                        asked.at(&name);
                    }
                    self.result(link.post(command.clone(), asking, then.clone()), until).await
                }
                Err(error) => Err(error),
            };
            tries += 1;
            match called {
                Ok(value) => return Ok((value, name)),
                Err(error) => match error.redirect(&name).filter(|_| tries < 5) {
                    Some(redirect) => {
                        self.shelf.with(|state| state.learn(&redirect));
                        (name, asking) = (redirect.address, redirect.ask);
                    }
                    _ => {
                        if error.passes() && !matches!(error, Error::NoAck(_)) {
                            self.look_around(&name, &error);
                        }
                        return Err(error);
                    }
                },
            }
        }
    }

    /// A plain command about a key.
    pub(crate) async fn ask(self: &Arc<Self>, key: &[u8], command: Cmd) -> Result<Value> {
        Ok(self.call(key, command, now() + self.settings.bound, None, None).await?.0)
    }

    /// Everything ends: what is held is told lost, and lives on until its lease.
    pub(crate) fn close(&self) {
        self.ended.send_replace(true);
        self.shelf.with(|state| {
            state.closed = true;
            let held = state.lose_all("closed", |_| true);
            for node in state.nodes.values_mut() {
                node.tell("closed");
                node.link.take().iter().for_each(|link| link.kill());
                node.rouse();
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

/// Where a wait has asked last, if it has.
#[derive(Default)]
pub(crate) struct Asked(Mutex<Option<String>>);

impl Asked {
    pub(crate) fn at(&self, name: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }

    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
