//! The commands: one table, by which their words are read, and for each family a file: words → engine call → reply.
//!
//! Nothing here knows of Redis either: words are byte slices, the keyspace is the engine's trait, a reply is a value.

#![forbid(unsafe_code)]

mod call;
pub mod change;
pub mod error;
pub mod look;
mod number;
pub mod table;
pub mod words;

pub use call::{Call, Caller, Census, MayWait, Reply};

use change::{acquire, apply, hold, many, session};
use dlock_engine::Keyspace;
use error::Error;
use look::{graph, inspect, list, log, stats};
use table::{Access, Spec, Verb};
use words::args;

/// Runs a command. Takes its words after the command's name.
///
/// Errors: every one of [`Error`]; nothing has changed then.
pub fn execute<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let answer = decide(spec, call, words);
    if let Err(Error::Refused(refusal)) = &answer {
        call.engine.count_refusal(refusal);
        log::refused(call, spec, words, refusal);
    }
    answer
}

#[inline(always)]
fn decide<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let decides = matches!(spec.access, Access::Write | Access::Guard | Access::Session);
    if decides && !call.primary {
        return Err(Error::ReadOnly);
    }
    // Most requests have only these words. Reading them by the table would be 900 of the 24,400 instructions that the server takes for
    // an uncontended pair in a session; no other request justifies a second path.
    let plain = match spec.verb {
        Verb::Acquire | Verb::FairAcquire | Verb::Release => {
            args::plain(spec.verb, words, call.engine.policy())
        }
        _ => None,
    };
    match (spec.verb, plain) {
        (Verb::Release, Some(plain)) => {
            hold::release(call, (plain.key, plain.owner), plain.token, None)
        }
        (verb, Some(plain)) if plain.owner != acquire::AUTO_OWNER => {
            acquire::run_plain(call, plain, verb)
        }
        _ => execute_any(spec, call, words),
    }
}

/// Runs a command with any words. It is not inlined: the short commands would pay for the stack of the long ones.
#[inline(never)]
fn execute_any<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let given = &args::read(spec, words, call.engine.policy())?;
    match spec.verb {
        Verb::Acquire | Verb::FairAcquire => acquire::run(call, given, spec.verb),
        Verb::AcquireMany => many::acquire(call, given),
        Verb::RenewMany => many::renew(call, given),
        Verb::ReleaseMany => many::release(call, given),
        Verb::Downgrade => hold::downgrade(call, given),
        Verb::Renew => hold::renew(call, given),
        Verb::Release => {
            hold::release(call, (given.key(), given.owner()), given.token, given.holds)
        }
        Verb::Session => session::run(call, given),
        Verb::ForceRelease => hold::force(call, given),
        Verb::Cancel => acquire::cancel(call, given),
        Verb::Position => inspect::position(call, given),
        Verb::Held => inspect::held(call, given),
        Verb::Check => inspect::check(call, given),
        Verb::Guard => inspect::guard(call, given),
        Verb::Info => inspect::info(call, given),
        Verb::List => list::run(given),
        Verb::Stats => stats::stats(call, given),
        Verb::Top => stats::top(call, given),
        Verb::Log => log::run(call, given),
        Verb::Graph => graph::run(call, given),
        Verb::Help => inspect::help(given),
        Verb::Apply => apply::run(call, given),
        Verb::FullSyncNotice => apply::full_sync_notice(call),
        Verb::Sync => {
            if call.caller.may_synchronize() {
                Err(Error::ServesNone)
            } else {
                Err(Error::NoPermission("psync".into()))
            }
        }
    }
}
