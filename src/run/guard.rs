//! `DLOCK.GUARD`'s other half: the command that a live holder may run.
//!
//! The server itself checks what concerns keys, since the command hands out the inner command's keys as its own
//! (`give_keys`): the caller's key permissions, and that all of them are in the lock's slot. What concerns the inner
//! command is checked here, before it runs by the rules that scripts are held to.

use crate::ffi::api::{self, api, Ctx, Str, Text};
use crate::ffi::cell::MainThread;
use crate::node::user::User;
use crate::servers::quirks;
use crate::tell::reply;
use dlock_commands::error::Error;
use dlock_engine::refusal::escaped;
use redis_module::raw::{self, RedisModuleCallReply};
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the inner command begins: after GUARD's name, the lock's key and the token.
pub const INNER: usize = 3;

lazy_static::lazy_static! {
    // By name in lower case: the server answers at some length.
    static ref KNOWN: MainThread<HashMap<Vec<u8>, Inner>> = MainThread::new(HashMap::new());
}

/// The most names that are remembered; no server has as many commands.
const REMEMBERED: usize = 4096;

/// Runs the inner command and passes its reply on as it is. `argv` begins with its name.
pub fn run(ctx: *mut Ctx, argv: &mut [*mut Str]) {
    let name = argv.first().map_or(&[][..], |name| {
        // SAFETY: the server's argument of this command.
        unsafe { api::bytes(*name) }
    });
    if let Err(error) = allowed(ctx, name, argv) {
        return reply::write(ctx, Err(error));
    }
    // SAFETY: `!` replicates the call as it would be by itself, `C` runs it as the caller, `S` by the rules for scripts,
    // `M` refuses it when memory is out, `E` gives errors as replies, `0` answers in the caller's protocol; `v` takes
    // the arguments and their number. The reply is copied out and freed.
    unsafe {
        let args = argv.get_mut(1..).unwrap_or_default();
        let Ok(named) = std::ffi::CString::new(name) else {
            return reply::write(ctx, Err(Error::Unguarded(escaped(name, 64))));
        };
        let answer = api!(RedisModule_Call(
            ctx,
            named.as_ptr(),
            c"!CSME0v".as_ptr(),
            args.as_mut_ptr(),
            args.len()
        ));
        if answer.is_null() {
            return reply::write(ctx, Err(Error::Unguarded(escaped(name, 64))));
        }
        let passed = pass_on(ctx, answer);
        api!(RedisModule_FreeCallReply(answer));
        if let Err(wrong_type) = passed {
            let error = match wrong_type {
                true => Error::InnerWrongType,
                false => Error::Unanswered(escaped(name, 64)),
            };
            reply::refuse(ctx, error);
        }
    }
}

/// Passes a reply on as it is.
///
/// Errors when nothing was written, since the server has lost the reply (`quirks`); with whether it was a value of another
/// type. GETSET and GETDEL are such. The server still counts the error, when the reply is passed on.
///
/// # Safety
/// The reply is live.
unsafe fn pass_on(ctx: *mut Ctx, answer: *mut RedisModuleCallReply) -> Result<(), bool> {
    let mut len = 0;
    // SAFETY: the reply is live, as the caller says, and the context is that of a command that is owed a reply.
    let pass = || unsafe { api!(RedisModule_ReplyWithCallReply(ctx, answer)) };
    // SAFETY: as above.
    unsafe { api!(RedisModule_CallReplyProto(answer, &mut len)) };
    if len > 0 && pass() == api::OK {
        return Ok(());
    }
    let wrong_types = || api::server_info(ctx, c"errorstats", c"errorstat_WRONGTYPE");
    let before = wrong_types();
    pass();
    Err(wrong_types() != before)
}

fn allowed(ctx: *mut Ctx, name: &[u8], argv: &mut [*mut Str]) -> Result<(), Error> {
    let lower = name.to_ascii_lowercase();
    let inner = inner(ctx, &lower);
    if is_refused(&lower) || inner.blocks {
        return Err(Error::Unguarded(escaped(name, 64)));
    }
    if !inner.takes(argv.len()) {
        // Unknown, or with too many or too few words: the server's own answer is the best.
        return Ok(());
    }
    let user = User::calling(ctx).ok_or(Error::NoUser)?;
    let refused = user.may_not(argv);
    refused
        .then(|| Error::NoPermission(escaped(name, 64)))
        .map_or(Ok(()), Err)
}

/// Commands that are never run, whatever the server says of them.
fn is_refused(lower: &[u8]) -> bool {
    lower.starts_with(b"dlock.") || lower == b"select" || quirks::WAITS_UNFLAGGED.contains(&lower)
}

/// What has to be known of an inner command.
#[derive(Debug, Clone, Copy, Default)]
struct Inner {
    // As the server counts it: the name included, negative for "at least"; 0: there is no such command.
    arity: i64,
    blocks: bool,
}

impl Inner {
    fn takes(self, words: usize) -> bool {
        let words = words as i64;
        match self.arity {
            0 => false,
            exactly if exactly > 0 => words == exactly,
            least => words >= -least,
        }
    }
}

fn inner(ctx: *mut Ctx, lower: &[u8]) -> Inner {
    if let Some(known) = KNOWN
        .try_borrow_mut()
        .and_then(|known| known.get(lower).copied())
    {
        return known;
    }
    let asked = ask(ctx, lower);
    // A command that is not there may come with another module.
    let known = KNOWN
        .try_borrow_mut()
        .filter(|known| known.len() < REMEMBERED);
    if let Some(mut known) = known.filter(|_| asked.arity != 0) {
        known.insert(lower.to_vec(), asked);
    }
    asked
}

/// Asks the server: COMMAND INFO answers name, arity and flags, among others.
fn ask(ctx: *mut Ctx, lower: &[u8]) -> Inner {
    let name = Text::new(lower);
    // SAFETY: a call with a constant and a string of one's own; what it gives is read and freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"COMMAND".as_ptr(),
            c"cs".as_ptr(),
            c"INFO".as_ptr(),
            name.raw()
        ));
        if reply.is_null() {
            return Inner::default();
        }
        let row = element(reply, 0);
        let arity = element(row, 1);
        let flags = element(row, 2);
        let mut inner = Inner::default();
        if !arity.is_null() {
            inner.arity = api!(RedisModule_CallReplyInteger(arity));
        }
        let mut at = 0;
        loop {
            let flag = element(flags, at);
            if flag.is_null() {
                break;
            }
            inner.blocks |= text(flag) == b"blocking";
            at += 1;
        }
        api!(RedisModule_FreeCallReply(reply));
        inner
    }
}

unsafe fn element(reply: *mut RedisModuleCallReply, at: usize) -> *mut RedisModuleCallReply {
    // SAFETY: a live reply or null; for an array or a set, which RESP3 may make of the flags.
    unsafe {
        match reply.is_null() {
            true => ptr::null_mut(),
            false
                if api!(RedisModule_CallReplyType(reply)) == raw::REDISMODULE_REPLY_SET as i32 =>
            {
                api!(RedisModule_CallReplySetElement(reply, at))
            }
            false => api!(RedisModule_CallReplyArrayElement(reply, at)),
        }
    }
}

unsafe fn text<'a>(reply: *mut RedisModuleCallReply) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: a live reply; the bytes are the reply's.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
        if start.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// Set while the server is asked for an inner command's keys: also a renamed GUARD in a GUARD goes no deeper.
static GIVING: AtomicBool = AtomicBool::new(false);

/// Hands out the keys of a GUARD: the lock, and those of the inner command, each as that command itself declares it.
pub fn give_keys(ctx: *mut Ctx, argv: &mut [*mut Str]) {
    // SAFETY: a context that asks for keys; positions are within the arguments; the lists are the server's and freed.
    unsafe {
        let looked_at = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
        api!(RedisModule_KeyAtPosWithFlags(ctx, 1, looked_at as c_int));
        let inner = argv.get_mut(INNER..).unwrap_or_default();
        // A GUARD in a GUARD is refused, and asking for its keys would come back here, as deep as a client likes.
        let own = |name: &*mut Str| {
            api::bytes(*name)
                .to_ascii_lowercase()
                .starts_with(b"dlock.")
        };
        if inner.first().map_or(true, own) || GIVING.swap(true, Ordering::Relaxed) {
            return;
        }
        let (mut count, mut flags) = (0, ptr::null_mut());
        let keys = api!(RedisModule_GetCommandKeysWithFlags(
            ctx,
            inner.as_mut_ptr(),
            inner.len() as c_int,
            &mut count,
            &mut flags
        ));
        GIVING.store(false, Ordering::Relaxed);
        if keys.is_null() {
            return;
        }
        for at in 0..count as usize {
            let position = *keys.add(at) + INNER as c_int;
            api!(RedisModule_KeyAtPosWithFlags(ctx, position, *flags.add(at)));
        }
        api::free(keys.cast());
        api::free(flags.cast());
    }
}
