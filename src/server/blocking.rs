//! Connections that wait.
//!
//! A waiting connection is blocked on its lock's key, so that the server itself redirects it when the slot moves, ends its wait
//! on CLIENT UNBLOCK and tells of its death; but it is never woken through the key, which would call back every
//! connection that is blocked there. A grant unblocks the one connection directly; the server then has its answer
//! written by the *timeout* callback. No timeout is given to the server: on Redis 7.0 one that falls together with
//! a grant loses the reply, and it would be late by up to 1000/hz ms.
//!
//! | state | grant or null decided | CLIENT UNBLOCK TIMEOUT | connection ends, CLIENT UNBLOCK ERROR |
//! |---|---|---|---|
//! | `Waiting` | → `Answered` | null, → `Over`; posts `Gone` | → `Over`; posts `Gone` |
//! | `Answered` | – | the answer, → `Over` | → `Over`; a grant posts `Undelivered` |
//! | `Over` | nobody is there any more | – | – |
//!
//! When an answered connection is unblocked depends on the server. Redis 7.0 writes the answer at once but takes the
//! connection for a blocked one until it goes to sleep, and a CLIENT UNBLOCK ERROR in between would add a second reply; so
//! there connections are unblocked right before it does, by the event that it raises for it, which costs no time: no reply
//! leaves earlier. Later servers raise that event too late in their turn; there it is done at once.

use super::api::{self, api, hot, Blocked, Ctx, Str, ERR, OK};
use super::cell::MainThread;
use super::inbox::{self, Notice};
use super::{door, reply};
use crate::commands::Reply;
use crate::engine::collections::index::ByNumber;
use crate::engine::{Grant, Name, Outcome, RequestId, Wake};
use crate::error::Error;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;

/// One blocked connection. Owned by the server, as its private data, until `free`.
pub struct Waiter {
    id: RequestId,
    handle: *mut Blocked,
    state: State,
    // The locks that it waits for: one, or those of a request for many in their order.
    names: Box<[Name]>,
    owner: Box<[u8]>,
    // Set where the server named the owner: then the reply tells it.
    named: Option<String>,
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
    WAITERS.lend().map_or(0, |waiters| waiters.by_request.len())
}

/// Blocks the calling connection until its request is answered. Gives whether the server lets it wait.
pub fn block(
    ctx: *mut Ctx,
    keys: &mut [*mut Str],
    id: RequestId,
    names: Box<[Name]>,
    owner: &[u8],
    named: Option<String>,
) -> bool {
    let Some(mut waiters) = WAITERS.lend() else {
        return false;
    };
    let waiter = Waiter {
        id,
        handle: ptr::null_mut(),
        state: State::Waiting,
        names,
        owner: Box::from(owner),
        named,
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
            keys.as_mut_ptr(),
            keys.len() as c_int,
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
    let Some(mut waiters) = WAITERS.lend() else {
        return;
    };
    let Waiters {
        by_request,
        answered,
    } = &mut *waiters;
    for Wake { id, outcome } in wakes.drain(..) {
        if let Some(waiter) = by_request.get(&id) {
            // SAFETY: what is in the map is alive.
            unsafe { (**waiter).state = State::Answered(outcome) };
            answered.push_back(id);
        }
    }
}

/// Unblocks the connections that are answered. To be called with nothing lent: the server may call back from within.
pub fn deliver() {
    loop {
        let waiter = WAITERS.lend().and_then(|mut waiters| {
            let id = waiters.answered.pop_front()?;
            Some(waiters.by_request.remove(&id))
        });
        match waiter {
            None => return,
            // Its connection has ended since.
            Some(None) => {}
            // SAFETY: alive until it has been unblocked.
            Some(Some(waiter)) => unsafe {
                api!(RedisModule_UnblockClient((*waiter).handle, ptr::null_mut()));
            },
        }
    }
}

/// A connection is unblocked or has ended: nothing must reach it any more.
fn forget(id: RequestId) {
    if let Some(mut waiters) = WAITERS.lend() {
        waiters.by_request.remove(&id);
    }
}

/// Cannot panic, so it needs no door. Nothing is ever served through the key: whoever is called back because something was created there waits on.
extern "C" fn pass(_ctx: *mut Ctx, _argv: *mut *mut Str, _argc: c_int) -> c_int {
    ERR
}

/// Writes the answer: after a decision, or for CLIENT UNBLOCK TIMEOUT.
extern "C" fn wake(ctx: *mut Ctx, _argv: *mut *mut Str, _argc: c_int) -> c_int {
    door(|| {
        let Some(waiter) = waiter(ctx) else { return };
        forget(waiter.id);
        match std::mem::replace(&mut waiter.state, State::Over) {
            State::Answered(Outcome::Granted(Grant { token, holds, .. })) => {
                reply::write(ctx, Ok(Reply::Grant(token, holds, waiter.named.take())));
            }
            State::Answered(Outcome::GrantedAll(grants)) => {
                let tokens = grants.iter().map(|grant| Reply::Integer(grant.token.0));
                reply::write(ctx, Ok(Reply::Array(tokens.collect())));
            }
            State::Answered(Outcome::Refused(error)) => reply::write(ctx, Err(error)),
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

/// The connection has ended before its answer was written, or CLIENT UNBLOCK ERROR has answered it.
extern "C" fn disconnected(ctx: *mut Ctx, _handle: *mut Blocked) {
    door(|| {
        let Some(waiter) = waiter(ctx) else { return };
        forget(waiter.id);
        match std::mem::replace(&mut waiter.state, State::Over) {
            State::Waiting => inbox::post(Notice::Gone(waiter.id)),
            State::Answered(Outcome::Granted(grant)) => waiter.give_back(&[grant]),
            State::Answered(Outcome::GrantedAll(grants)) => waiter.give_back(&grants),
            State::Answered(_) | State::Over => {}
        }
    });
}

impl Waiter {
    /// What was granted has not reached the connection.
    fn give_back(&self, grants: &[Grant]) {
        for (name, grant) in self.names.iter().zip(grants) {
            inbox::post(Notice::Undelivered {
                name: name.clone(),
                owner: self.owner.clone(),
                grant: *grant,
            });
        }
    }
}

extern "C" fn free(_ctx: *mut Ctx, data: *mut c_void) {
    // SAFETY: made by `block`; the server gives it back once.
    door(|| drop(unsafe { Box::from_raw(data.cast::<Waiter>()) }));
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
pub fn may_wait(ctx: *mut Ctx) -> bool {
    use redis_module::raw;
    let barred = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_REPLICATED
        | raw::REDISMODULE_CTX_FLAGS_LOADING;
    api::flags(ctx) & barred == 0
}
