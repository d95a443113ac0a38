// SPDX-License-Identifier: MIT
//! Leave: giving back a hold or a place in the queue, at once or in the background.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::sleep;

use crate::core::{Core, GRACE};
use crate::error::{Error, Result};
use crate::link::{is_not_held, Link, Then};
use crate::settings::now;
use crate::state::{number, Leave};
use crate::ties::{Id, Shared};
use crate::want::Want;

impl Core {
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
            match self.call(&want.key, want.release(token), until, Some(released(hold.id())), None).await {
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
                    let (command, forgotten) = (want.release(token), released(want.id(token)));
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
    pub(crate) fn leave(&self, want: &Arc<Want>, name: &str) {
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

    /// Gives back what was left, in one go, on this link alone: what another node serves is that one's keeper's to give back.
    pub(crate) async fn depart(&self, name: &str, link: &Arc<Link>) -> Result<()> {
        let leaving: Vec<Leave> = self.shelf.with(|state| state.node(name).leaving.iter().cloned().collect());
        let departed = join_all(leaving.iter().map(|leave| self.depart_one(link, leave))).await;
        self.shelf.with(|state| {
            // Those that have come meanwhile stand behind. Nobody but the keeper takes any out.
            let queue = &mut state.node(name).leaving;
            queue.drain(..leaving.len().min(queue.len()));
            let mut result = Ok(());
            for (mut leave, departed) in leaving.into_iter().zip(departed) {
                match departed {
                    Err(error) if now() < leave.deadline && error.passes() => match error.redirect(name) {
                        Some(redirect) => {
                            state.learn(&redirect);
                            leave.asking = redirect.ask;
                            state.leave_at(&redirect.address, leave);
                        }
                        None => {
                            state.node(name).leaving.push_back(leave);
                            // What is said of one key is no reason to look for the others elsewhere.
                            if error.is_read_only() || !error.is_said() {
                                result = Err(error);
                            }
                        }
                    },
                    _ if leave.token == 0 => state.forget(&leave.want),
                    Ok(1..) => {} // the outer hold goes on
                    _ => state.lose(&leave.want.id(leave.token), "released"),
                }
            }
            result
        })
    }

    /// Gives how many holds remain.
    async fn depart_one(&self, link: &Arc<Link>, Leave { want, token, asking, .. }: &Leave) -> Result<u64> {
        let ask = |command| self.result(link.post(command, *asking, None), now() + self.settings.bound + GRACE);
        let (outer, before) = want.outer();
        if *token == 0 {
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
        Ok(number(Some(&ask(want.release(*token)).await?)))
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

fn released(id: Id) -> Then {
    Arc::new(move |state, _, reply| {
        if matches!(reply, Ok(Value::Int(0))) || is_not_held(reply) {
            state.lose(&id, "released");
        }
    })
}
