//! Connections that wait.
//!
//! A waiting connection is blocked on a key, so that the server itself redirects it when the slot moves, ends its wait
//! on CLIENT UNBLOCK and reports its end; but it is never woken through that key (see `slots::blocking_key`). A grant unblocks the
//! one connection directly; the server then has its answer written by the *timeout* callback. No timeout is given to the
//! server: it would be late by up to 1000/hz ms, and may lose the reply of a grant (`servers`).
//!
//! | state | grant or null decided | unblocked | CLIENT UNBLOCK TIMEOUT | connection ends, CLIENT UNBLOCK ERROR |
//! |---|---|---|---|---|
//! | `Waiting` | → `Answered` | – | null, → `Over`; posts `Gone` | → `Over`; posts `Gone` |
//! | `Answered` | – | its handle is taken | the answer, → `Over` | → `Over`; posts `Undelivered` |
//! | `Unconfirmed` | → `Answered` | – | `NOACK`, → `Over`; posts `Undelivered` | → `Over`; posts `Undelivered` |
//! | `Over` | the connection has its answer or has ended | – | – | posts `Undelivered` for a grant that is written and not sent |
//!
//! The server keeps the request's number with the connection; the waiter itself is here until the server frees the blocked client.
//!
//! A grant that is written has not been sent: `unsent_grants` tracks it from then on, and also posts `Undelivered` if the
//! connection ends before.
//!
//! When an answered connection is unblocked depends on the server (see [`Unblocks`]): never so early that the server
//! would take its end, or CLIENT UNBLOCK ERROR, for one that comes after the answer. It costs no time: no reply leaves
//! before the end of the iteration.

use super::{confirm, reply, unsent_grants};
use crate::ffi::callbacks::blocked::{Handle, Waits};
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use crate::ffi::text::Text;
use crate::inbox::{self, Notice};
use crate::node::{clock, timer};
use crate::servers::{self, Unblocks};
use dlock_commands::change::{many, session};
use dlock_commands::error::Error;
use dlock_commands::{MayWait, Reply};
use dlock_engine::broken;
use dlock_engine::collections::ByNumber;
use dlock_engine::{
    ClientId, Grant, News, NoAck, Now, Outcome, Output, Promise, Receiver, Refusal, RequestId,
};
use redis_module::raw;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::OnceLock;

/// One blocked connection.
struct Waiter {
    client: ClientId,
    // Until it is unblocked or has ended.
    handle: Option<Handle<Connections>>,
    state: WaitState,
    // The owner, if the server named it: then the reply contains it.
    named: Option<String>,
    // The user of its connection, and the holds that its answer promises, until the answer is written.
    user: Vec<u8>,
    promises: Vec<Promise>,
}

enum WaitState {
    Waiting,
    // The answer is in `confirm`.
    Unconfirmed,
    Answered(Outcome),
    Over,
}

/// The blocked connections.
#[derive(Default)]
struct Waiters {
    // Until the server frees them.
    by_request: ByNumber<RequestId, Box<Waiter>>,
    // How many of them have a handle.
    blocked: usize,
    answered: VecDeque<RequestId>,
}

lazy_static::lazy_static! {
    static ref WAITERS: MainThread<Waiters> = MainThread::new(Waiters::default());
}

/// Returns what a SESSION command would be answered now, for one whose wait CLIENT UNBLOCK ends.
static NEWS: OnceLock<fn(RequestId) -> Option<News>> = OnceLock::new();

/// Sets who knows that.
pub(crate) fn init(news: fn(RequestId) -> Option<News>) {
    NEWS.get_or_init(|| news);
}

/// Returns how many connections wait.
pub(crate) fn waiting() -> usize {
    WAITERS.borrow().map_or(0, |waiters| waiters.blocked)
}

/// Blocks the calling connection, on a key if there is one, until its request is answered. Returns false if the server does not
/// block it.
pub(crate) fn block(ctx: Ctx, key: Option<&Text>, id: RequestId, named: Option<String>) -> bool {
    let Some(mut waiters) = WAITERS.borrow() else {
        return false;
    };
    let Some(number) = NonZeroU64::new(id.0) else {
        broken!("a request's number is not 0");
        return false;
    };
    let (client, user) = (ClientId(ctx.client()), ctx.user());
    let Some(handle) = Handle::block(ctx, key.map(Text::as_str), number) else {
        return false;
    };
    let waiter = Waiter {
        client,
        handle: Some(handle),
        state: WaitState::Waiting,
        named,
        user,
        promises: Vec::new(),
    };
    waiters.by_request.insert(id, Box::new(waiter));
    waiters.blocked += 1;
    true
}

/// Notes the answer to a request. It ignores a connection that has ended meanwhile, for which the inbox has a notice.
pub(crate) fn answer(id: RequestId, outcome: Outcome, promises: Vec<Promise>) {
    let Some(mut waiters) = WAITERS.borrow() else {
        return;
    };
    let waiter = waiters.by_request.get_mut(&id);
    if let Some(waiter) = waiter.filter(|waiter| waiter.handle.is_some()) {
        waiter.state = WaitState::Answered(outcome);
        waiter.promises = promises;
        waiters.answered.push_back(id);
    }
}

/// Keeps an answer until it is confirmed. If its connection has ended, the answer counts as undelivered.
pub(crate) fn keep_unconfirmed(output: Output, now: Now) {
    let blocks = matches!(output.to, Receiver::Connection);
    if blocks && !note_unconfirmed(output.id) {
        inbox::post(Notice::Undelivered(output.pending.promises));
    } else {
        confirm::keep(output, now);
    }
}

/// Notes that an answer waits for its confirmation. Returns false if its connection has ended meanwhile.
fn note_unconfirmed(id: RequestId) -> bool {
    let Some(mut waiters) = WAITERS.borrow() else {
        return false;
    };
    match waiters.by_request.get_mut(&id) {
        Some(waiter) if waiter.handle.is_some() => {
            waiter.state = WaitState::Unconfirmed;
            true
        }
        _ => false,
    }
}

/// Unblocks the answered connections by the end of this iteration of the event loop. Call it with nothing borrowed: the server may
/// call back from within.
pub(crate) fn deliver(ctx: Ctx) {
    match servers::unblocks() {
        Unblocks::AtOnce => unblock_answered(),
        Unblocks::EndOfIteration => {
            if !servers::call_at_iteration_end(ctx, unblock_answered) {
                unblock_answered();
            }
        }
        // What is decided after that event waits for the next.
        Unblocks::BeforeSleep => {
            if timer::asleep() {
                timer::soon();
            }
        }
    }
}

/// Unblocks the answered connections where the event loop is about to sleep, on the server that needs it.
pub(crate) fn on_before_sleep() {
    if servers::unblocks() == Unblocks::BeforeSleep {
        unblock_answered();
    }
}

/// Unblocks the answered connections. Nothing may be borrowed: the server may call back from within.
fn unblock_answered() {
    loop {
        let Some(mut waiters) = WAITERS.borrow() else {
            return;
        };
        let Some(id) = waiters.answered.pop_front() else {
            return;
        };
        let handle = waiters.take_handle(id);
        drop(waiters);
        // Without one its connection has ended since.
        if let Some(handle) = handle {
            handle.unblock();
        }
    }
}

impl Waiters {
    /// Takes the handle of a connection that is unblocked or has ended: no call may use it any longer.
    fn take_handle(&mut self, id: RequestId) -> Option<Handle<Connections>> {
        let handle = self.by_request.get_mut(&id)?.handle.take()?;
        self.blocked -= 1;
        Some(handle)
    }

    /// Ends a wait; returns its former state, and the waiter.
    fn end(&mut self, id: RequestId) -> Option<(WaitState, &mut Waiter)> {
        self.take_handle(id);
        let waiter = self.by_request.get_mut(&id)?;
        Some((
            std::mem::replace(&mut waiter.state, WaitState::Over),
            waiter,
        ))
    }
}

/// Handles the server's callbacks for blocked connections. A reply is written with nothing borrowed.
struct Connections;

impl Waits for Connections {
    fn reply(ctx: Ctx, id: u64) {
        let id = RequestId(id);
        let answered = WAITERS.borrow().and_then(|mut waiters| {
            let (state, waiter) = waiters.end(id)?;
            if let WaitState::Answered(Outcome::Granted(_) | Outcome::GrantedAll(_)) = &state {
                // The reply is written below. Its connection may end before it is sent.
                let user = std::mem::take(&mut waiter.user);
                unsent_grants::add(waiter.client, user, std::mem::take(&mut waiter.promises));
            }
            Some((state, waiter.named.take()))
        });
        let Some((state, named)) = answered else {
            return;
        };
        let answer = match state {
            WaitState::Answered(Outcome::Granted(Grant { token, holds, .. })) => {
                Ok(Reply::Grant(token, holds, named))
            }
            WaitState::Answered(Outcome::GrantedAll(grants)) => Ok(many::tokens(&grants)),
            WaitState::Answered(Outcome::Refused(refusal)) => Err(refusal.into()),
            WaitState::Answered(Outcome::Replaced) => Err(Error::Replaced),
            WaitState::Answered(
                Outcome::TimedOut | Outcome::Cancelled | Outcome::Gone | Outcome::Moved,
            ) => Ok(Reply::NullArray),
            WaitState::Answered(Outcome::Renewed(left, None)) => Ok(Reply::Integer(left)),
            WaitState::Answered(Outcome::Renewed(left, Some(id))) => {
                Ok(Reply::Array([left, id].map(Reply::Integer).to_vec()))
            }
            WaitState::Answered(Outcome::Prolonged) => {
                return broken!("nobody waits for a renewal by the server")
            }
            WaitState::Answered(Outcome::News(news)) => Ok(session::reply(&news, clock::read())),
            WaitState::Waiting => {
                let news = NEWS.get().and_then(|news| news(id));
                inbox::post(Notice::Gone(id));
                Ok(news.map_or(Reply::NullArray, |news| {
                    session::reply(&news, clock::read())
                }))
            }
            WaitState::Unconfirmed => Err(Refusal::NoAck(end_unconfirmed(id)).into()),
            WaitState::Over => return,
        };
        reply::write(ctx, answer);
    }

    fn disconnected(id: u64) {
        let id = RequestId(id);
        let ended = WAITERS.borrow().and_then(|mut waiters| {
            let (state, waiter) = waiters.end(id)?;
            let promises = std::mem::take(&mut waiter.promises);
            Some((state, waiter.client, promises))
        });
        match ended {
            None => {}
            Some((WaitState::Waiting, ..)) => inbox::post(Notice::Gone(id)),
            Some((WaitState::Unconfirmed, ..)) => drop(end_unconfirmed(id)),
            Some((WaitState::Answered(_), _, promises)) if promises.is_empty() => {}
            Some((WaitState::Answered(_), _, promises)) => {
                inbox::post(Notice::Undelivered(promises))
            }
            Some((WaitState::Over, client, _)) => unsent_grants::on_not_sent(client),
        }
    }

    fn freed(id: u64) {
        if let Some(mut waiters) = WAITERS.borrow() {
            waiters.take_handle(RequestId(id));
            waiters.by_request.remove(&RequestId(id));
        }
    }
}

/// Ends the wait for a confirmation; returns its error.
fn end_unconfirmed(id: RequestId) -> NoAck {
    let mut needs = 0;
    if let Some(answer) = confirm::take(id) {
        needs = answer.needs;
        inbox::post(Notice::Undelivered(answer.output.pending.promises));
    }
    confirm::too_late(needs, clock::read().steady())
}

/// Returns whether this caller may wait.
pub(crate) fn may_wait(ctx: Ctx) -> MayWait {
    let flags = ctx.flags();
    let barred = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_REPLICATED
        | raw::REDISMODULE_CTX_FLAGS_LOADING;
    if flags & barred != 0 {
        return MayWait::Ignored;
    }
    // In RESP2 a connection with subscriptions gets no further than the server.
    let resp3 = flags & raw::REDISMODULE_CTX_FLAGS_RESP3 != 0;
    if resp3 && servers::bars_subscribers() && server::subscribes(ctx.client()) {
        MayWait::Refused
    } else {
        MayWait::Yes
    }
}
