// SPDX-License-Identifier: MIT
//! Take, wait, keep, lose, leave.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{cmd, Cmd, ProtocolVersion, Value};
use tokio::sync::{mpsc, oneshot, watch, Notify};
use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};
use crate::link::{self, At, Link, Reply, Then};
use crate::servers::{slot, Servers};
use crate::settings::{millis, now, Settings};
use crate::state::{number, Leave, News, Shared, Shelf, Want};

/// So much longer a caller whose time is up waits for a reply that is on its way.
const GRACE: Duration = Duration::from_millis(500);
const WARN_EVERY: Duration = Duration::from_secs(10);

/// All that the clones of one [`Locks`](crate::Locks) and its holds share.
pub(crate) struct Core {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) shelf: Shelf,
    /// On which grants are told.
    pub(crate) channel: String,
    count: AtomicU64,
    said_deaf: AtomicBool,
}

/// Until then, or without bound.
async fn within<F: std::future::Future>(until: Option<Duration>, work: F) -> Option<F::Output> {
    match until {
        Some(until) => timeout(until.saturating_sub(now()), work).await.ok(),
        None => Some(work.await),
    }
}

impl Core {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Core {
        let channel = format!("dlock:{}", unique());
        let (count, said_deaf) = (AtomicU64::new(1), AtomicBool::new(false));
        Core { servers, settings, shelf: Shelf::default(), channel, count, said_deaf }
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

    // Where.

    fn route(&self, key: &[u8]) -> String {
        let slot = slot(key);
        self.shelf.with(|state| state.slots.get(&slot).cloned().unwrap_or_else(|| self.servers.first(state.first)))
    }

    /// After an error that passes: the node may not be there any more, or be no primary.
    fn look_around(&self, node: &str, error: &Error) {
        self.shelf.with(|state| {
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
    async fn link(self: &Arc<Self>, name: &str, until: Duration) -> Result<Arc<Link>> {
        let mut opening = {
            let (sender, receiver) = watch::channel(None);
            let known = self.shelf.with(|state| {
                if state.closed {
                    return Err(Error::Closed);
                }
                let node = state.node(name);
                if let Some(link) = node.link.as_ref().filter(|link| !link.is_dead()) {
                    return Ok(Ok(link.clone()));
                }
                // One that has ended without a result was another runtime's.
                match &node.opening {
                    Some(opening) if opening.borrow().is_none() && opening.has_changed().is_ok() => {
                        Ok(Err((opening.clone(), false)))
                    }
                    _ => {
                        node.opening = Some(receiver.clone());
                        Ok(Err((receiver, true)))
                    }
                }
            })?;
            let (opening, ours) = match known {
                Ok(link) => return Ok(link),
                Err(opening) => opening,
            };
            if ours {
                let (core, name) = (self.clone(), name.to_owned());
                tokio::spawn(async move {
                    let opened = link::open(&core, &name).await;
                    if let Ok(link) = &opened {
                        core.linked(&name, link);
                        core.employ(&name);
                    }
                    sender.send_replace(Some(opened));
                });
            }
            opening
        };
        let opened = timeout(until.saturating_sub(now()), opening.wait_for(Option::is_some)).await;
        match opened.as_ref().map(|opened| opened.as_deref()) {
            Ok(Ok(Some(result))) => result.clone(),
            Ok(_) => Err(Error::io(std::io::ErrorKind::NotConnected, "the runtime that connected has ended")),
            Err(_) => Err(Error::silent()),
        }
    }

    fn linked(&self, name: &str, link: &Arc<Link>) {
        self.shelf.with(|state| {
            if state.closed || link.is_dead() {
                link.kill();
            } else {
                state.node(name).link = Some(link.clone());
            }
        });
    }

    async fn result(&self, reply: oneshot::Receiver<Reply>, until: Duration) -> Result<Value> {
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
                Err(error) => match (redirected(&error), tries < 5) {
                    (Some((address, slot, ask)), true) => {
                        if !ask {
                            self.shelf.with(|state| state.slots.insert(slot, address.clone()));
                        }
                        (name, asking) = (address, ask);
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

    // Take.

    /// The hold; None if it is taken. A time-out of zero: one try.
    pub(crate) async fn take(
        self: &Arc<Self>,
        want: Arc<Want>,
        named: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        self.wind();
        let began = now();
        let observer = self.settings.observer.clone();
        // From here on whatever ends this, dropping the future too, leaves nothing behind.
        let mut taking =
            Taking { core: self.clone(), asked: Asked::default(), want, queued: false, over: false, named };
        let taken = self.take_until(&mut taking, timeout, began).await;
        let key = taking.want.key.clone();
        match &taken {
            Ok(Some(_)) => {
                taking.over = true;
                observer.granted(&key, now() - began);
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
        began: Duration,
    ) -> Result<Option<Arc<Shared>>> {
        let at_once = timeout == Some(Duration::ZERO);
        let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
        let end = if at_once { Some(began + self.settings.bound) } else { deadline };
        let mut warned: Option<Duration> = None;
        let mut before: Option<Error> = None;
        loop {
            let error = match self.attempt(taking, at_once, deadline, end).await {
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

    async fn attempt(
        self: &Arc<Self>,
        taking: &mut Taking,
        at_once: bool,
        deadline: Option<Duration>,
        end: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let want = taking.want.clone();
        if taking.named {
            // An outer hold of this name is not ours to give back.
            while self.shelf.with(|state| state.nodes.values().any(|node| node.leaves(&want.key, &want.owner))) {
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
                .call(&want.key, want.take(at_once), self.until(end), Some(granted(&want)), Some(&taking.asked))
                .await?;
            if let Value::Array(reply) = reply {
                return Ok(self.adopt(&want, number(reply.first())));
            }
            if at_once {
                taking.over = true;
                return Ok(None);
            }
            taking.queued = true;
            self.settings.observer.waiting(&want.key);
        }
        let name = self.route(&want.key);
        self.link(&name, self.until(end)).await.inspect_err(|error| self.look_around(&name, error))?;
        if !self.shelf.with(|state| state.node(&name).deaf) {
            return self.queue(taking, &name, deadline, end).await;
        }
        if !self.said_deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!("waits block on connections of their own, since messages cannot be heard: no permission");
        }
        self.block(taking, &name, deadline, end).await
    }

    // Wait.

    /// By NOTIFY.
    async fn queue(
        self: &Arc<Self>,
        taking: &Taking,
        name: &str,
        deadline: Option<Duration>,
        end: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let want = &taking.want;
        let mut listed = Listed::new(self, name, want);
        let block = match deadline.map(|deadline| deadline.saturating_sub(now())) {
            Some(Duration::ZERO) => return Ok(None),
            block => block,
        };
        let command = want.wait(&["NOTIFY", &self.channel], block);
        let (reply, at) = self.call(&want.key, command, self.until(end), None, Some(&taking.asked)).await?;
        if at != name {
            return Err(Error::io(std::io::ErrorKind::NotConnected, "the slot has moved"));
        }
        let Value::Array(reply) = reply else { return Ok(None) };
        if number(reply.first()) > 0 {
            return self.confirm(taking, number(reply.first()), end).await;
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
                "granted" => self.confirm(taking, news.token, end).await,
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
    async fn block(
        self: &Arc<Self>,
        taking: &Taking,
        name: &str,
        deadline: Option<Duration>,
        end: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let bound = self.settings.bound;
        let (mut connection, _) = link::connect(self, name, ProtocolVersion::RESP2, None).await?;
        taking.asked.at(name);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(now()));
            if left == Some(Duration::ZERO) {
                return Ok(None); // and leaves
            }
            let part = left.map_or(bound / 2, |left| left.min(bound / 2));
            let command = taking.want.wait(&[], Some(part));
            let reply: Value = match timeout(part + bound, command.query_async(&mut connection)).await {
                Ok(reply) => reply?,
                Err(_) => return Err(Error::silent()),
            };
            self.check()?;
            if let Value::Array(reply) = reply {
                return self.confirm(taking, number(reply.first()), end).await;
            }
        }
    }

    /// The full lease, and from now on the server renews it as long as our link is there.
    async fn confirm(
        self: &Arc<Self>,
        taking: &Taking,
        token: u64,
        end: Option<Duration>,
    ) -> Result<Option<Arc<Shared>>> {
        let want = taking.want.clone();
        let tied = want.clone();
        let then: Then = Arc::new(move |state, at, reply| {
            if let Ok(Value::Int(lease)) = reply {
                state.tie(&tied, &at.node, at.link, token, ends(at, *lease, &tied.settings));
            }
        });
        self.call(&want.key, want.renew(token), self.until(end), Some(then), Some(&taking.asked)).await?;
        self.adopt(&want, token)
            .map_or_else(|| Err(Error::NotHeld("the lock was lost at once".into())), |h| Ok(Some(h)))
    }

    /// None: it has ended meanwhile.
    fn adopt(&self, want: &Arc<Want>, token: u64) -> Option<Arc<Shared>> {
        let (over, lost) = (AtomicBool::new(false), watch::Sender::new(None));
        let hold = Arc::new(Shared { want: want.clone(), token, over, lost });
        self.shelf.with(|state| state.adopt(token, &hold)).then_some(hold)
    }

    // Give back.

    pub(crate) async fn release(self: &Arc<Self>, hold: &Arc<Shared>) -> Result<()> {
        self.check()?;
        let (want, token) = (&hold.want, hold.token);
        if hold.over.swap(true, Ordering::SeqCst) {
            let reason = hold.lost.borrow().clone().unwrap_or_default();
            let key = String::from_utf8_lossy(&want.key);
            return Err(Error::NotHeld(format!("NOTHELD lock {key:?} was lost: {reason}")));
        }
        // Dropped in the middle: it is given back all the same.
        let mut rest = Giving { core: self, hold, over: false };
        let (until, mut heard) = (now() + self.settings.bound, true);
        let result = loop {
            match self.call(&want.key, want.release(token), until, Some(released(token)), None).await {
                Ok(_) => break Ok(()),
                // An earlier one may have given it back.
                Err(Error::NotHeld(_)) if !heard => break Ok(()),
                Err(error) if error.passes() && now() < until => heard &= error.is_said(),
                Err(error @ Error::NotHeld(_)) => break Err(error),
                Err(error) => return Err(error),
            }
            sleep(Duration::from_millis(20)).await;
        };
        rest.over = true;
        result
    }

    /// Gives it back, and waits for nothing: on the link, if it lives, behind all that was asked.
    pub(crate) fn drop_hold(&self, hold: &Arc<Shared>) {
        let (want, token) = (hold.want.clone(), hold.token);
        let name = self.route(&want.key);
        self.shelf.with(|state| {
            let link = state.node(&name).link.clone().filter(|link| !link.is_dead());
            match link {
                Some(link) => {
                    let (command, forgotten) = (want.release(token), released(token));
                    let then: Then = Arc::new(move |state, at, reply| {
                        forgotten(state, at, reply);
                        if reply.is_err() && !is_not_held(reply) {
                            state.leave_later(&at.node, &want, token);
                        }
                    });
                    drop(link.post(command, false, Some(then)));
                }
                None => state.leave_later(&name, &want, token),
            }
        });
    }

    /// No place, and no hold beyond those of before: the same for a wait.
    fn leave(&self, want: &Arc<Want>, name: &str) {
        let want = want.clone();
        self.shelf.with(|state| {
            let link = state.node(name).link.clone().filter(|link| !link.is_dead() && want.outer().1 == 0);
            let Some(link) = link else { return state.leave_later(name, &want, 0) };
            drop(link.post(want.command("DLOCK.CANCEL"), false, None));
            let command = want.release(0);
            let then: Then = Arc::new(move |state, at, reply| {
                if reply.is_err() && !is_not_held(reply) {
                    state.leave_later(&at.node, &want, 0);
                }
                state.forget(&want);
            });
            drop(link.post(command, false, Some(then)));
        });
    }

    /// Gives back what was left, on this link alone: what another node serves is that one's keeper's to give back.
    async fn depart(&self, name: &str, link: &Arc<Link>) -> Result<()> {
        while let Some(Leave { deadline, want, token }) = self
            .shelf
            .with(|state| state.node(name).leaving.front().map(|leave| Leave { want: leave.want.clone(), ..*leave }))
        {
            let departed = self.depart_one(link, &want, token).await;
            let moved = departed.as_ref().err().and_then(redirected);
            match departed {
                Err(error) if moved.is_none() && error.passes() && now() < deadline => return Err(error),
                _ => {}
            }
            self.shelf.with(|state| {
                state.node(name).leaving.pop_front();
                match moved {
                    Some((address, slot, ask)) if now() < deadline => {
                        if !ask {
                            state.slots.insert(slot, address.clone());
                        }
                        let node = state.node(&address);
                        node.leaving.push_back(Leave { deadline, want, token });
                        node.rouse();
                    }
                    _ if token == 0 => state.forget(&want),
                    _ => state.lose_anywhere(token, "released"),
                }
            });
        }
        Ok(())
    }

    async fn depart_one(&self, link: &Arc<Link>, want: &Arc<Want>, token: u64) -> Result<()> {
        let ask = |command| self.result(link.post(command, false, None), now() + self.settings.bound + GRACE);
        let (outer, before) = want.outer();
        if token == 0 {
            ask(want.command("DLOCK.CANCEL")).await?;
            if before > 0 {
                // An upgrade that came first has ended the outer hold: nobody knows its token.
                if let Value::Array(held) = ask(want.command("DLOCK.HELD")).await? {
                    let upgraded = number(held.first());
                    if upgraded != outer {
                        want.within(upgraded, 0);
                        ask(want.release(upgraded)).await?;
                    }
                }
            }
        }
        ask(want.release(token)).await.map(drop)
    }

    // Keep.

    /// Makes sure that the clock and the keepers run, in this runtime if theirs has ended.
    fn wind(self: &Arc<Self>) {
        self.shelf.with(|state| {
            if state.clock.as_ref().is_none_or(|clock| clock.is_finished()) {
                state.clock = Some(tokio::spawn(clock(Arc::downgrade(self), state.ring.clone())));
            }
        });
    }

    fn employ(self: &Arc<Self>, name: &str) {
        let core = Arc::downgrade(self);
        self.shelf.with(|state| {
            let node = state.node(name);
            if node.keeper.as_ref().is_none_or(|keeper| keeper.is_finished()) {
                let keeping = keep(core, name.to_owned(), node.kick.clone(), self.settings.interval());
                node.keeper = Some(tokio::spawn(keeping));
            }
        });
    }

    async fn round(self: &Arc<Self>, name: &str) -> Result<()> {
        let bound = self.settings.bound;
        let mut link = self.link(name, now() + bound).await?;
        let loose = self.shelf.with(|state| state.loose(name, link.id));
        self.retie(name, &link, loose).await?;
        if self.shelf.with(|state| state.books.get(&link.id).is_some_and(|book| book.surplus > 1)) {
            tracing::warn!("the connection to {name} keeps holds that nobody has: it is replaced");
            let fresh = link::open(self, name).await?;
            self.linked(name, &fresh);
            let all = self.shelf.with(|state| state.loose(name, fresh.id));
            let retied = self.retie(name, &fresh, all).await;
            link.kill();
            retied?;
            link = fresh;
        }
        if self.shelf.with(|state| state.node(name).has_ties_or_waits()) {
            let (mut command, allowance) = (cmd("DLOCK.KEEP"), self.settings.allowance);
            command.arg(millis(self.settings.auto));
            let then: Then = Arc::new(move |state, at, reply| {
                if let Ok(reply) = reply {
                    state.kept(&at.node, at.link, at.sent, reply, allowance);
                }
            });
            match self.result(link.post(command, false, Some(then)), now() + bound + GRACE).await {
                // What is given back needs no confirmation.
                Err(error @ Error::NoAck(_)) => return self.depart(name, &link).await.and(Err(error)),
                kept => kept?,
            };
        }
        self.depart(name, &link).await
    }

    /// Ties our holds to this link, all in one go.
    async fn retie(&self, name: &str, link: &Arc<Link>, ties: Vec<(u64, Arc<Want>)>) -> Result<()> {
        let mut asked = Vec::new();
        for (token, want) in ties {
            let tied = want.clone();
            let then: Then = Arc::new(move |state, at, reply| match reply {
                Ok(Value::Int(lease)) => state.retied(&at.node, at.link, token, ends(at, *lease, &tied.settings)),
                reply if is_not_held(reply) => state.lose(&at.node, token, "not held any more"),
                _ => {}
            });
            asked.push((token, link.post(want.renew(token), false, Some(then)), want));
        }
        for (token, reply, want) in asked {
            let Err(error) = self.result(reply, now() + self.settings.bound + GRACE).await else { continue };
            if let Some((address, slot, ask)) = redirected(&error) {
                self.shelf.with(|state| {
                    if !ask {
                        state.slots.insert(slot, address.clone());
                    }
                    state.move_tie(name, &address, token);
                });
            } else if error.is_read_only() || !error.is_said() {
                return Err(error);
            } else if !matches!(error, Error::NotHeld(_) | Error::NoAck(_)) {
                tracing::warn!("lock {:?} cannot be renewed: {error}", String::from_utf8_lossy(&want.key));
            }
        }
        Ok(())
    }

    /// What another node serves by now is that one's to keep.
    fn rehome(self: &Arc<Self>, name: &str) {
        for (token, want) in self.shelf.with(|state| state.ties(name)) {
            let target = self.route(&want.key);
            self.shelf.with(|state| state.move_tie(name, &target, token));
        }
        self.shelf.with(|state| {
            for leave in std::mem::take(&mut state.node(name).leaving) {
                let slot = slot(&leave.want.key);
                let target = state.slots.get(&slot).cloned().unwrap_or_else(|| self.servers.first(state.first));
                let target = state.node(&target);
                target.leaving.push_back(leave);
                target.rouse();
            }
            state.node(name).tell("again");
        });
    }

    /// Everything ends: what is held is told lost, and lives on until its lease.
    pub(crate) fn close(&self) {
        self.shelf.with(|state| {
            state.closed = true;
            let names: Vec<String> = state.nodes.keys().cloned().collect();
            let mut held = 0;
            for name in names {
                for (token, _) in state.ties(&name) {
                    held += 1;
                    state.lose(&name, token, "closed");
                }
                let node = state.node(&name);
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

impl crate::state::State {
    /// What a wait was granted, and nobody has heard of.
    fn forget(&mut self, want: &Arc<Want>) {
        let tied = self.nodes.keys().cloned().collect::<Vec<_>>().into_iter().flat_map(|name| {
            self.ties(&name)
                .into_iter()
                .filter(|(_, one)| Arc::ptr_eq(one, want))
                .map(move |(token, _)| (name.clone(), token))
                .collect::<Vec<_>>()
        });
        for (name, token) in tied.collect::<Vec<_>>() {
            self.lose(&name, token, "left");
        }
    }
}

/// Tells what has ended by the clock. Timers may stand still while the machine is suspended: they sleep a second at most.
async fn clock(core: Weak<Core>, ring: Arc<Notify>) {
    loop {
        let Some(alarm) = core.upgrade().and_then(|core| {
            core.shelf.with(|state| {
                if state.alarm <= now() {
                    state.expire();
                }
                (!state.closed).then_some(state.alarm)
            })
        }) else {
            return;
        };
        if alarm == Duration::MAX {
            ring.notified().await;
        } else {
            let nap = alarm.saturating_sub(now()).min(Duration::from_secs(1));
            let _ = timeout(nap, ring.notified()).await;
        }
    }
}

/// The keeper of a node: does nothing but this, and waits for no other node.
async fn keep(core: Weak<Core>, name: String, kick: Arc<Notify>, interval: Duration) {
    loop {
        let Some((closed, dozes)) =
            core.upgrade().map(|core| core.shelf.with(|state| (state.closed, state.node(&name).dozes())))
        else {
            return;
        };
        if closed {
            return;
        }
        if dozes {
            kick.notified().await;
            continue;
        }
        let _ = timeout(interval, kick.notified()).await;
        let Some(core) = core.upgrade() else { return };
        match core.round(&name).await {
            Ok(()) => {}
            Err(error @ Error::NoAck(_)) => tracing::info!("node {name}: {error}"),
            Err(error) => {
                tracing::info!("node {name}: {error}");
                core.look_around(&name, &error);
                core.rehome(&name);
            }
        }
        core.employ_all(); // what has moved to another node is kept there
    }
}

impl Core {
    fn employ_all(self: &Arc<Self>) {
        let names: Vec<String> = self.shelf.with(|state| state.nodes.keys().cloned().collect());
        names.iter().for_each(|name| self.employ(name));
    }
}

/// Where a wait has asked last, if it has.
#[derive(Default)]
pub(crate) struct Asked(std::sync::Mutex<Option<String>>);

impl Asked {
    fn at(&self, name: &str) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(name.to_owned());
    }

    fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// A wait that leaves for good when it is dropped.
struct Taking {
    core: Arc<Core>,
    want: Arc<Want>,
    asked: Asked,
    named: bool,
    queued: bool,
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

/// A release that goes on in the background when it is dropped.
struct Giving<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Shared>,
    over: bool,
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.core.drop_hold(self.hold);
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

fn granted(want: &Arc<Want>) -> Then {
    let want = want.clone();
    Arc::new(move |state, at, reply| {
        if let Ok(Value::Array(reply)) = reply {
            let lease = i64::try_from(millis(want.settings.lease)).unwrap_or(i64::MAX);
            state.tie(&want, &at.node, at.link, number(reply.first()), ends(at, lease, &want.settings));
        }
    })
}

fn released(token: u64) -> Then {
    Arc::new(move |state, _, reply| {
        if matches!(reply, Ok(Value::Int(0))) || is_not_held(reply) {
            state.lose_anywhere(token, "released");
        }
    })
}

fn is_not_held(reply: &Reply) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("NOTHELD"))
}

/// The believed end of what lasts so long from when it was asked.
fn ends(at: &At, lease: i64, settings: &Settings) -> Duration {
    let lease = Duration::from_millis(u64::try_from(lease).unwrap_or_default());
    (at.sent + lease).saturating_sub(settings.allowance + Duration::from_millis(2))
}

/// Another node of the cluster serves the key: which one, which slot, and only for once.
fn redirected(error: &Error) -> Option<(String, u16, bool)> {
    let Error::Redis(error) = error else { return None };
    let (address, slot) = error.redirect_node()?;
    Some((address.to_owned(), slot, error.code() == Some("ASK")))
}

/// The standard library's hashers are seeded by the operating system.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

pub(crate) fn unique() -> String {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{:016x}{:x}", random(), time.as_nanos() ^ u128::from(random()))
}
