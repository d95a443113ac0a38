// SPDX-License-Identifier: MIT
//! Keep: the clock that reports what has ended, and a keeper for each node, which says once a second that we live.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::cmd;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::core::{Core, GRACE};
use crate::error::{Error, Result};
use crate::link::{Link, Then};
use crate::renewals::Id;
use crate::request::AcquireRequest;
use crate::settings::{millis, now};

/// Between two rounds of a keeper.
const PAUSE: Duration = Duration::from_millis(20);

impl Core {
    /// Makes sure that the clock runs, in this runtime if its own has ended.
    pub(crate) fn ensure_running(self: &Arc<Self>) {
        self.shelf.with(|state| {
            if state.clock.as_ref().is_none_or(|clock| clock.is_finished()) {
                state.clock = Some(tokio::spawn(clock(Arc::downgrade(self), state.ring.clone())));
            }
        });
    }

    pub(crate) fn spawn_keeper(self: &Arc<Self>, name: &str) {
        let core = Arc::downgrade(self);
        self.shelf.with(|state| {
            let node = state.node(name);
            if node.keeper.as_ref().is_none_or(|keeper| keeper.is_finished()) {
                let keeping = keep(core, name.to_owned(), node.kick.clone(), self.settings.interval());
                node.keeper = Some(tokio::spawn(keeping));
            }
        });
    }

    pub(crate) fn spawn_keepers(self: &Arc<Self>) {
        let names: Vec<String> = self.shelf.with(|state| state.nodes.keys().cloned().collect());
        names.iter().for_each(|name| self.spawn_keeper(name));
    }

    async fn round(self: &Arc<Self>, name: &str) -> Result<()> {
        let until = now() + self.settings.reply_timeout;
        let link = self.link_at(name, until + GRACE, None).await?.ok_or_else(Error::silent)?;
        self.renew(name, &link, Duration::ZERO).await?;
        self.shelf.with(|state| {
            if state.has_orphans(link.id) {
                tracing::warn!("the connection to {name} keeps holds that nobody has: it is replaced");
                self.open(state, name);
            }
        });
        if self.shelf.with(|state| state.has_renewals_or_waits(name)) {
            self.keep_alive(&link, now() + self.settings.reply_timeout + GRACE).await?;
            if self.shelf.with(|state| state.is_short(link.id)) {
                self.renew(name, &link, now() + self.settings.near()).await?;
            }
        }
        Ok(())
    }

    /// Says that we live.
    pub(crate) async fn keep_alive(&self, link: &Link, until: Duration) -> Result<()> {
        let (mut command, settings) = (cmd("DLOCK.KEEP"), self.settings.clone());
        command.arg(millis(self.settings.hang_timeout));
        let then: Then = Arc::new(move |state, at, reply| {
            if let Ok(reply) = reply {
                state.kept(at, reply, &settings);
            }
        });
        self.result(link.post(command, false, Some(then)), until).await.map(drop)
    }

    /// Has the server renew our holds at this node for this link, all in one go; what it renews already, if it ends before `near`.
    pub(crate) async fn renew(&self, name: &str, link: &Arc<Link>, near: Duration) -> Result<()> {
        let unrenewed = self.shelf.with(|state| state.unrenewed(name, link.id, near));
        let ask = |(id, request): (Id, Arc<AcquireRequest>)| {
            let one = id.clone();
            let then: Then = Arc::new(move |state, at, reply| state.renewed(&one, at, reply));
            let asking = self.shelf.with(|state| state.asking.get(&id.0).is_some_and(|at| at == name));
            (link.post(request.renew(id.1), asking, Some(then)), id)
        };
        for (reply, id) in unrenewed.into_iter().map(ask).collect::<Vec<_>>() {
            let until = now() + self.settings.reply_timeout + GRACE;
            let Err(error) = self.result(reply, until).await else { continue };
            if let Some(redirect) = error.redirect(name) {
                self.shelf.with(|state| {
                    state.learn(&id.0, &redirect);
                    state.move_renewal(&id, &redirect.address);
                });
            } else if error.is_read_only() || !error.is_said() {
                return Err(error);
            } else if !matches!(error, Error::NotHeld(_) | Error::NoAck(_)) {
                tracing::warn!("lock {:?} cannot be renewed: {error}", String::from_utf8_lossy(&id.0));
            }
        }
        Ok(())
    }

    /// Remembers why holds are not kept: it is the reason of a loss.
    fn note(&self, name: &str, error: &Error) {
        let refused = error.is_refusal();
        let known = self.shelf.with(|state| state.node(name).trouble.replace(error.clone()));
        if !refused {
            tracing::info!("node {name}: {error}");
        } else if !known.is_some_and(|known| known.is_refusal()) {
            tracing::warn!("node {name} refuses to keep locks: {error}");
        }
    }
}

/// Reports what has ended by the clock. Timers may stand still while the machine is suspended: they sleep a second at most.
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
        let Some((closed, running)) =
            core.upgrade().map(|core| core.shelf.with(|state| (state.closed, state.is_running(&name))))
        else {
            return;
        };
        if closed {
            return;
        }
        if !running {
            kick.notified().await;
            continue;
        }
        let _ = timeout(interval, kick.notified()).await;
        let Some(core) = core.upgrade() else { return };
        if !core.shelf.with(|state| !state.closed && state.is_running(&name)) {
            continue;
        }
        match core.round(&name).await {
            Ok(()) => {}
            // What is believed stays as it was.
            Err(error @ Error::NoAck(_)) => tracing::info!("node {name}: {error}"),
            Err(error) => {
                core.note(&name, &error);
                core.refresh_routes(&name, &error);
                core.shelf.with(|state| state.reroute(&name));
            }
        }
        core.spawn_keepers(); // what has moved to another node is kept there
        drop(core);
        // A connection that ends as soon as it is used wakes it again, and so do two nodes that each name the other one.
        sleep(PAUSE).await;
    }
}
