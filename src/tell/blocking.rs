//! Connections that wait.
//!
//! A waiting connection is blocked on a key, so that the server itself redirects it when the slot moves, ends its wait
//! on CLIENT UNBLOCK and tells of its death; but it is never woken through that key (see `wait_key`). A grant unblocks the
//! one connection directly; the server then has its answer written by the *timeout* callback. No timeout is given to the
//! server: it would be late by up to 1000/hz ms, and may lose the reply of a grant (`quirks`).
//!
//! | state | grant or null decided | CLIENT UNBLOCK TIMEOUT | connection ends, CLIENT UNBLOCK ERROR |
//! |---|---|---|---|
//! | `Waiting` | → `Answered` | null, → `Over`; posts `Gone` | → `Over`; posts `Gone` |
//! | `Answered` | – | the answer, → `Over` | → `Over`; a grant posts `Undelivered` |
//! | `Over` | nobody is there any more | – | – |
//!
//! A grant that is written has not been sent: `unsent` looks after it from then on, and posts `Undelivered`, too, if the
//! connection ends before.
//!
//! When an answered connection is unblocked depends on the server (see [`Unblocks`]): never so early that the server
//! would take its end, or CLIENT UNBLOCK ERROR, for one that comes after the answer. It costs no time: no reply leaves
//! before the end of the turn.

use crate::ffi::api::{self, api, hot, Blocked, Ctx, Str, Text, ERR, OK};
use crate::ffi::cell::MainThread;
use crate::ffi::panic::catch_panic;
use crate::node::event_loop;
use crate::node::inbox::{self, Notice};
use crate::node::timer;
use crate::servers::quirks::{self, Unblocks};
use crate::servers::turn_end;
use crate::tell::reply;
use crate::tell::unsent;
use dlock_commands::error::Error;
use dlock_commands::{MayWait, Reply};
use dlock_engine::collections::index::ByNumber;
use dlock_engine::{ClientId, Grant, Outcome, RequestId, Undo, Wake};
use redis_module::raw;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;

/// One blocked connection. Owned by the server, as its private data, until `free`.
pub struct Waiter {
    id: RequestId,
    client: ClientId,
    handle: *mut Blocked,
    state: State,
    // Set where the server named the owner: then the reply tells it.
    named: Option<String>,
    // The user of its connection, and how its grant is undone, until that is written.
    user: Vec<u8>,
    undo: Vec<Undo>,
}

enum State {
    Waiting,
    Answered(Outcome),
    Over,
}

/// The waiting connections.
#[derive(Default)]
struct Waiters {
    // Taken out as soon as the connection is unblocked or ends: the server frees a waiter only after that.
    by_request: ByNumber<RequestId, *mut Waiter>,
    answered: VecDeque<RequestId>,
}

lazy_static::lazy_static! {
    static ref WAITERS: MainThread<Waiters> = MainThread::new(Waiters::default());
}

/// How many connections wait.
pub fn waiting() -> usize {
    WAITERS
        .try_borrow_mut()
        .map_or(0, |waiters| waiters.by_request.len())
}

/// Blocks the calling connection on a key until its request is answered. Gives whether the server lets it wait.
pub fn block(ctx: *mut Ctx, key: &Text, id: RequestId, named: Option<String>) -> bool {
    let Some(mut waiters) = WAITERS.try_borrow_mut() else {
        return false;
    };
    let waiter = Waiter {
        id,
        client: ClientId(client(ctx)),
        handle: ptr::null_mut(),
        state: State::Waiting,
        named,
        user: api::user(ctx),
        undo: Vec::new(),
    };
    let waiter = Box::into_raw(Box::new(waiter));
    // SAFETY: the context is the command's; the waiter lives until `free`, which the server calls once.
    unsafe {
        let handle = api!(RedisModule_BlockClientOnKeys(
            ctx,
            Some(pass),
            Some(wake),
            Some(free),
            0,
            &mut key.raw(),
            1,
            waiter.cast()
        ));
        if handle.is_null() {
            drop(Box::from_raw(waiter));
            return false;
        }
        (*waiter).handle = handle;
        api!(RedisModule_SetDisconnectCallback(
            handle,
            Some(disconnected)
        ));
    }
    waiters.by_request.insert(id, waiter);
    true
}

/// Notes the answers that were decided. A connection that has ended meanwhile is passed over: the inbox tells of it.
pub fn answer(wakes: &mut Vec<Wake>) {
    let Some(mut waiters) = WAITERS.try_borrow_mut() else {
        return;
    };
    let Waiters {
        by_request,
        answered,
    } = &mut *waiters;
    for Wake { id, outcome, undo } in wakes.drain(..) {
        if let Some(waiter) = by_request.get(&id) {
            // SAFETY: what is in the map is alive.
            unsafe {
                (**waiter).state = State::Answered(outcome);
                (**waiter).undo = undo;
            }
            answered.push_back(id);
        }
    }
}

/// Sees to it that the connections that are answered are unblocked by the end of this turn. To be called with no borrow held:
/// the server may call back from within.
pub fn deliver(ctx: *mut Ctx) {
    match quirks::unblocks() {
        Unblocks::AtOnce => unblock_answered(),
        Unblocks::EndOfTurn => {
            if !turn_end::call_back(ctx, unblock_answered) {
                unblock_answered();
            }
        }
        // What is decided after that event waits for the next.
        Unblocks::BeforeSleep => {
            if event_loop::asleep() {
                timer::soon();
            }
        }
    }
}

/// The event loop is about to sleep.
pub fn before_sleep() {
    if quirks::unblocks() == Unblocks::BeforeSleep {
        unblock_answered();
    }
}

/// Unblocks the connections that are answered. No borrow must be held: the server may call back from within.
fn unblock_answered() {
    loop {
        let waiter = WAITERS.try_borrow_mut().and_then(|mut waiters| {
            let id = waiters.answered.pop_front()?;
            Some(waiters.by_request.remove(&id))
        });
        match waiter {
            None => return,
            // Its connection has ended since.
            Some(None) => {}
            // SAFETY: alive until the server works it off, later in this turn; so is the handle, which the server has made to
            // forget whom to tell when the connection ends before that.
            Some(Some(waiter)) => unsafe {
                let handle = (*waiter).handle;
                api!(RedisModule_UnblockClient(handle, ptr::null_mut()));
                api!(RedisModule_SetDisconnectCallback(
                    handle,
                    Some(disconnected)
                ));
            },
        }
    }
}

/// A connection is unblocked or has ended: nothing must reach it any more.
fn forget(id: RequestId) {
    if let Some(mut waiters) = WAITERS.try_borrow_mut() {
        waiters.by_request.remove(&id);
    }
}

/// Nothing is ever served through the key, which nobody creates. Cannot panic, so it needs no `catch_panic`.
extern "C" fn pass(_ctx: *mut Ctx, _argv: *mut *mut Str, _argc: c_int) -> c_int {
    ERR
}

/// Writes the answer: after a decision, or for CLIENT UNBLOCK TIMEOUT.
extern "C" fn wake(ctx: *mut Ctx, _argv: *mut *mut Str, _argc: c_int) -> c_int {
    catch_panic(|| {
        let Some(waiter) = waiter(ctx) else { return };
        forget(waiter.id);
        match std::mem::replace(&mut waiter.state, State::Over) {
            State::Answered(Outcome::Granted(grant)) => {
                let Grant { token, holds, .. } = grant;
                reply::write(ctx, Ok(Reply::Grant(token, holds, waiter.named.take())));
                waiter.written();
            }
            State::Answered(Outcome::GrantedAll(grants)) => {
                let tokens = grants.iter().map(|grant| Reply::Integer(grant.token.0));
                reply::write(ctx, Ok(Reply::Array(tokens.collect())));
                waiter.written();
            }
            State::Answered(Outcome::Refused(refusal)) => {
                reply::write(ctx, Err(refusal.into()));
            }
            State::Answered(Outcome::Replaced) => reply::write(ctx, Err(Error::Replaced)),
            State::Answered(
                Outcome::Null | Outcome::Cancelled | Outcome::Gone | Outcome::Moved,
            ) => {
                reply::write(ctx, Ok(Reply::NullArray));
            }
            State::Waiting => {
                reply::write(ctx, Ok(Reply::NullArray));
                inbox::post(Notice::Gone(waiter.id));
            }
            State::Over => {}
        }
    });
    OK
}

/// The connection has ended before the server has worked off its answer, or CLIENT UNBLOCK ERROR has answered it. What is
/// written by then is dropped.
extern "C" fn disconnected(ctx: *mut Ctx, _handle: *mut Blocked) {
    catch_panic(|| {
        let Some(waiter) = waiter(ctx) else { return };
        forget(waiter.id);
        match std::mem::replace(&mut waiter.state, State::Over) {
            State::Waiting => inbox::post(Notice::Gone(waiter.id)),
            State::Answered(_) if waiter.undo.is_empty() => {}
            State::Answered(_) => {
                let undo = std::mem::take(&mut waiter.undo);
                inbox::post(Notice::Undelivered(undo));
            }
            State::Over => unsent::take_back(waiter.client),
        }
    });
}

impl Waiter {
    /// Its grants are written.
    fn written(&mut self) {
        let user = std::mem::take(&mut self.user);
        unsent::add(self.client, user, std::mem::take(&mut self.undo));
    }
}

extern "C" fn free(_ctx: *mut Ctx, data: *mut c_void) {
    // SAFETY: made by `block`; the server gives it back once.
    catch_panic(|| drop(unsafe { Box::from_raw(data.cast::<Waiter>()) }));
}

fn waiter<'a>(ctx: *mut Ctx) -> Option<&'a mut Waiter> {
    // SAFETY: the private data of a connection that `block` has blocked; used only for the length of a callback.
    unsafe {
        api!(RedisModule_GetBlockedClientPrivateData(ctx))
            .cast::<Waiter>()
            .as_mut()
    }
}

/// The client id of a context's connection.
pub fn client(ctx: *mut Ctx) -> u64 {
    // SAFETY: a live context.
    unsafe { hot!(RedisModule_GetClientId(ctx)) }
}

/// Whether the server lets this caller wait.
pub fn may_wait(ctx: *mut Ctx) -> MayWait {
    let flags = api::flags(ctx);
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
    match resp3 && quirks::bars_subscribers() && api::subscribes(client(ctx)) {
        true => MayWait::Refused,
        false => MayWait::Yes,
    }
}
