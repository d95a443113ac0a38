// SPDX-License-Identifier: MIT
//! Release: giving back a hold; and abandon: a place in the queue, and what it was granted.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::link::{is_not_held, Link, Then};
use crate::renewals::Shared;
use crate::request::AcquireRequest;
use crate::settings::now;
use crate::state::State;

impl Core {
    pub(crate) async fn release(self: &Arc<Self>, hold: &Arc<Shared>) -> Result<()> {
        self.check()?;
        let (request, token) = (&hold.request, hold.token);
        if hold.over.swap(true, Ordering::SeqCst) {
            let reason = hold.lost.borrow().clone().unwrap_or_default();
            let key = String::from_utf8_lossy(&request.key);
            return Err(Error::NotHeld(format!("NOTHELD lock {key:?} was lost: {reason}")));
        }
        if !self.shelf.with(|state| state.depart(hold)) {
            return Ok(()); // its owner holds it yet
        }
        self.shelf.with(|state| state.retire(request));
        // Dropped in the middle: it is given back all the same.
        let mut rest = Releasing { core: self, hold, over: false };
        let (until, mut heard) = (now() + self.settings.reply_timeout, true);
        let result = loop {
            let then = Some(released(request, token, false));
            match self.call(&request.key, request.release(Some(token)), until, then, None).await {
                Ok(_) => break Ok(()),
                // An earlier one may have given it back.
                Err(Error::NotHeld(_)) if !heard => break Ok(()),
                Err(error) if error.passes() && now() < until => heard &= error.is_said(),
                Err(error) => break Err(error),
            }
            sleep(Duration::from_millis(20)).await;
        };
        rest.over = true;
        // Nothing more is sent. If the server keeps it all the same, KEEP's count tells.
        self.shelf.with(|state| state.lose(&hold.id(), "it cannot be given back"));
        result
    }

    /// Gives it back, and waits for nothing: on the link, if it lives, behind all that was asked.
    pub(crate) fn drop_hold(&self, hold: &Arc<Shared>) {
        self.shelf.with(|state| {
            if state.depart(hold) {
                state.post_release(&hold.request, hold.token);
            }
        });
    }

    /// Gives back what nobody waits for any more, behind the request and on its link. Nothing is sent again: if the link ends, the
    /// place and the first lease end by themselves, and KEEP's count finds a hold that nobody has.
    pub(crate) fn abandon(&self, request: &Arc<AcquireRequest>, link: &Link) {
        let asking = self.shelf.with(|state| state.asking.contains_key(&request.key));
        let one = request.clone();
        let then: Then = Arc::new(move |state, _, reply| {
            if reply.is_ok() || is_not_held(reply) {
                state.forget(&one);
            }
            if reply.as_ref().err().is_none_or(|error| Error::from(error.clone()).is_said()) {
                state.answered(&one);
            }
        });
        self.shelf.with(|state| state.retire(request));
        if link.post(request.command("DLOCK.CANCEL"), asking, None).is_some() {
            let _ = link.post(request.release(None), asking, Some(then));
        }
    }
}

impl State {
    /// Takes a named owner's name out of use, before a RELEASE is sent that ends what it has. Until that is answered it may be
    /// read late, and must end nothing that the owner is granted later, perhaps by another link.
    pub(crate) fn retire(&mut self, request: &AcquireRequest) {
        if let Some(who) = request.who() {
            self.named.entry(who).or_default().unanswered.insert(request.owner.clone());
        }
    }

    /// The server has read it: the name may be used again.
    fn answered(&mut self, request: &AcquireRequest) {
        let Some(who) = request.who() else { return };
        if let Some(named) = self.named.get_mut(&who) {
            named.unanswered.remove(&request.owner);
        }
        self.tidy(&who);
    }
}

/// A release that goes on in the background when it is dropped.
struct Releasing<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Shared>,
    over: bool,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.core.shelf.with(|state| state.post_release(&self.hold.request, self.hold.token));
        }
    }
}

/// Returns what the reply to a RELEASE with this token changes; if that is the only one, an error ends the renewal, too.
pub(crate) fn released(request: &Arc<AcquireRequest>, token: u64, only: bool) -> Then {
    let request = request.clone();
    Arc::new(move |state, _, reply| {
        let gone = matches!(reply, Ok(Value::Int(0))) || is_not_held(reply);
        if gone || only {
            state.lose(&request.id(token), if gone { "released" } else { "it cannot be given back" });
        }
        // What the server refuses it has refused before, too.
        if gone || reply.as_ref().is_err_and(|error| Error::from(error.clone()).is_refusal()) {
            state.answered(&request);
        }
    })
}
