//! The inner command of `DLOCK.GUARD`, which runs while the lock is held under a token.
//!
//! The server itself checks what concerns keys, since the command hands out the inner command's keys as its own
//! (`give_keys`): the caller's key permissions, and that all of them are in the lock's slot. The module checks the
//! inner command itself here, before it runs by the rules for scripts.

use crate::ffi::call::{Answer, Rules, Value};
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::text::Str;
use crate::ffi::user::User;
use crate::servers;
use crate::tell::reply;
use dlock_commands::error::{shown, Error};
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{c_int, CString};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the inner command begins: after GUARD's name, the lock's key and the token.
pub(super) const INNER: usize = 3;

lazy_static::lazy_static! {
    // By name in lower case: the server's answer is long.
    static ref KNOWN: MainThread<HashMap<Vec<u8>, Inner>> = MainThread::new(HashMap::new());
}

/// The most names that are remembered; no server has as many commands.
const REMEMBERED: usize = 4096;

/// Runs the inner command and passes its reply on as it is. `argv` begins with its name.
pub(super) fn run(ctx: Ctx, argv: &[Str]) {
    let name = argv.first().map_or(&[][..], |name| name.bytes());
    if let Err(error) = checked_and_run(ctx, name, argv) {
        reply::refuse(ctx, error);
    }
}

fn checked_and_run(ctx: Ctx, name: &[u8], argv: &[Str]) -> Result<(), Error> {
    allowed(ctx, name, argv)?;
    let unguarded = || Error::Unguarded(shown(name));
    let named = CString::new(name).map_err(|_| unguarded())?;
    let args = argv.get(1..).unwrap_or_default();
    let answer = ctx.call_strs(&named, Rules::AS_CALLER, args);
    pass_on(ctx, &answer.ok_or_else(unguarded)?, name)
}

/// Passes a reply to the inner command on as it is.
///
/// Errors when nothing was written, since the server has lost the reply (`servers`). GETSET and GETDEL of a value of another type are
/// such. The server still counts that error, when the reply is passed on.
fn pass_on(ctx: Ctx, answer: &Answer, name: &[u8]) -> Result<(), Error> {
    if answer.has_text() && ctx.pass_on(answer) {
        return Ok(());
    }
    let wrong_types = || ctx.server_info(c"errorstats", c"errorstat_WRONGTYPE");
    let before = wrong_types();
    ctx.pass_on(answer);
    if wrong_types() != before {
        return Err(Error::InnerWrongType);
    }
    Err(Error::Unanswered(shown(name)))
}

fn allowed(ctx: Ctx, name: &[u8], argv: &[Str]) -> Result<(), Error> {
    let lower = name.to_ascii_lowercase();
    let inner = inner(ctx, &lower);
    if is_refused(&lower) || inner.blocks {
        return Err(Error::Unguarded(shown(name)));
    }
    if !inner.takes(argv.len()) {
        // Unknown, or with a wrong number of words: the server's own error is the best.
        return Ok(());
    }
    let user = User::calling(ctx).ok_or(Error::NoUser)?;
    if user.may_not(argv) {
        Err(Error::NoPermission(shown(name)))
    } else {
        Ok(())
    }
}

/// Returns true for commands that `DLOCK.GUARD` never runs, whatever COMMAND INFO says of them.
fn is_refused(lower: &[u8]) -> bool {
    lower.starts_with(b"dlock.") || lower == b"select" || servers::WAITS_UNFLAGGED.contains(&lower)
}

/// The properties of an inner command.
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

fn inner(ctx: Ctx, lower: &[u8]) -> Inner {
    if let Some(known) = KNOWN.borrow().and_then(|known| known.get(lower).copied()) {
        return known;
    }
    let asked = ask(ctx, lower);
    // An unknown command may come with another module later.
    let known = KNOWN.borrow().filter(|known| known.len() < REMEMBERED);
    if let Some(mut known) = known.filter(|_| asked.arity != 0) {
        known.insert(lower.to_vec(), asked);
    }
    asked
}

/// Asks the server: COMMAND INFO answers name, arity and flags, among others.
fn ask(ctx: Ctx, lower: &[u8]) -> Inner {
    let Some(answer) = ctx.call(c"COMMAND", Rules::NONE, [b"INFO", lower]) else {
        return Inner::default();
    };
    let row = answer.value().element(0);
    let flags = row.element(2);
    let all = (0..).map(|index| flags.element(index));
    let blocks = |flag: Value| flag.bytes() == Some(b"blocking");
    Inner {
        arity: row.element(1).integer(),
        blocks: all.take_while(|flag| !flag.is_missing()).any(blocks),
    }
}

/// Set while the server is asked for an inner command's keys: also a renamed GUARD in a GUARD goes no deeper.
static GIVING: AtomicBool = AtomicBool::new(false);

/// Hands out the keys of a GUARD: the lock, and those of the inner command, each as that command itself declares it.
pub(super) fn give_keys(ctx: Ctx, argv: &[Str]) {
    let looked_at = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
    ctx.give_key(1, looked_at as c_int);
    let inner = argv.get(INNER..).unwrap_or_default();
    // A GUARD in a GUARD is refused, and asking for its keys would come back here, as deep as a client likes.
    let own = |name: &Str| name.bytes().to_ascii_lowercase().starts_with(b"dlock.");
    if inner.first().is_none_or(own) || GIVING.swap(true, Ordering::Relaxed) {
        return;
    }
    let keys = ctx.keys_of(inner);
    GIVING.store(false, Ordering::Relaxed);
    for (position, flags) in keys {
        ctx.give_key(position + INNER as c_int, flags);
    }
}
