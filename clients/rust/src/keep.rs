// SPDX-License-Identifier: MIT
//! Keep: the clock that tells what has ended, and a keeper for each node, which says once a second that we live.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::cmd;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::core::{Core, GRACE};
use crate::error::{Error, Result};
use crate::link::{Link, Then};
use crate::settings::{millis, now};
use crate::ties::Id;
use crate::want::Want;

/// Between two rounds of a keeper.
const PAUSE: Duration = Duration::from_millis(20);

impl Core {
    /// Makes sure that the clock and the keepers run, in this runtime if theirs has ended.
    pub(crate) fn wind(self: &Arc<Self>) {
        self.shelf.with(|state| {
            if state.clock.as_ref().is_none_or(|clock| clock.is_finished()) {
                state.clock = Some(tokio::spawn(clock(Arc::downgrade(self), state.ring.clone())));
            }
        });
    }

    pub(crate) fn employ(self: &Arc<Self>, name: &str) {
        let core = Arc::downgrade(self);
        self.shelf.with(|state| {
            let node = state.node(name);
            if node.keeper.as_ref().is_none_or(|keeper| keeper.is_finished()) {
                let keeping = keep(core, name.to_owned(), node.kick.clone(), self.settings.interval());
                node.keeper = Some(tokio::spawn(keeping));
            }
        });
    }

    fn employ_all(self: &Arc<Self>) {
        let names: Vec<String> = self.shelf.with(|state| state.nodes.keys().cloned().collect());
        names.iter().for_each(|name| self.employ(name));
    }

    async fn round(self: &Arc<Self>, name: &str) -> Result<()> {
        let bound = self.settings.bound;
        let link = self.link(name, now() + bound).await?;
        self.retie(name, &link, Duration::ZERO).await?;
        self.shelf.with(|state| {
            if state.has_orphans(link.id) {
                tracing::warn!("the connection to {name} keeps holds that nobody has: it is replaced");
                self.open(state, name);
            }
        });
        if self.shelf.with(|state| state.has_ties_or_waits(name)) {
            let (mut command, settings) = (cmd("DLOCK.KEEP"), self.settings.clone());
            command.arg(millis(self.settings.auto));
            let then: Then = Arc::new(move |state, at, reply| {
                if let Ok(reply) = reply {
                    state.kept(at, reply, &settings);
                }
            });
            match self.result(link.post(command, false, Some(then)), now() + bound + GRACE).await {
                // What is given back needs no confirmation.
                Err(error @ Error::NoAck(_)) => return self.depart(name, &link).await.and(Err(error)),
                kept => kept?,
            };
            if self.shelf.with(|state| state.is_short(link.id)) {
                self.retie(name, &link, now() + self.settings.near()).await?;
            }
        }
        self.depart(name, &link).await
    }

    /// Ties our holds at this node to this link, all in one go; what is tied to it already, if it ends before `near`.
    pub(crate) async fn retie(&self, name: &str, link: &Arc<Link>, near: Duration) -> Result<()> {
        let loose = self.shelf.with(|state| state.loose(name, link.id, near));
        let ask = |(id, want, asking): (Id, Arc<Want>, bool)| {
            let tied = id.clone();
            let then: Then = Arc::new(move |state, at, reply| state.renewed(&tied, at, reply));
            (link.post(want.renew(id.1), asking, Some(then)), id)
        };
        for (reply, id) in loose.into_iter().map(ask).collect::<Vec<_>>() {
            let Err(error) = self.result(reply, now() + self.settings.bound + GRACE).await else { continue };
            if let Some(redirect) = error.redirect(name) {
                self.shelf.with(|state| {
                    state.learn(&redirect);
                    state.move_tie(&id, &redirect.address, redirect.ask);
                });
            } else if error.is_read_only() || !error.is_said() {
                return Err(error);
            } else if !matches!(error, Error::NotHeld(_) | Error::NoAck(_)) {
                tracing::warn!("lock {:?} cannot be renewed: {error}", String::from_utf8_lossy(&id.0));
            }
        }
        Ok(())
    }

    /// What another node serves by now is that one's to keep.
    fn rehome(&self, name: &str) {
        self.shelf.with(|state| {
            let ties: Vec<Id> =
                state.ties.iter().filter(|(_, tie)| tie.node == name).map(|(id, _)| id.clone()).collect();
            for id in ties {
                let target = self.server_of(state, &id.0);
                state.move_tie(&id, &target, false);
            }
            for leave in std::mem::take(&mut state.node(name).leaving) {
                let target = self.server_of(state, &leave.want.key);
                if leave.deadline <= now() {
                    continue; // its lease has ended
                }
                if target == name {
                    state.node(name).leaving.push_back(leave); // in the next round
                } else {
                    state.leave_at(&target, leave);
                }
            }
            state.node(name).tell("again");
        });
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
            core.upgrade().map(|core| core.shelf.with(|state| (state.closed, state.dozes(&name))))
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
        drop(core);
        // A connection that ends as soon as it is used rouses it again, and so do two nodes that each name the other one.
        sleep(PAUSE).await;
    }
}
