//! `DLOCK.APPLY`, the internal effect command: how a replica and the AOF take over what a primary has decided; and `DLOCK.HEED`,
//! by which a replica hears whose confirmation counts.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{change, Keyspace, Refusal};
use std::borrow::Cow;

/// This command, as errors name it.
const APPLY: &str = "DLOCK.APPLY";

/// Applies an effect: `key [effect]`, by default the usual release. Refused from clients.
#[inline(never)]
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if !call.caller.is_followed() {
        return Err(Error::Internal(APPLY));
    }
    let name = call.name(given.key());
    let entry = call.keys.entry(name);
    if entry.foreign {
        return Err(Refusal::WrongType.into());
    }
    let effect = match given.effect {
        Some(effect) => Cow::Borrowed(effect),
        None => {
            let release = entry.lock.as_deref().and_then(change::usual_release);
            Cow::Owned(release.ok_or(Error::Internal(APPLY))?)
        }
    };
    let before = entry.holders() as i64;
    let last = call.engine.holds.tokens.last();
    entry.follow(&effect, &mut call.engine.holds.tokens)?;
    let number = call.engine.holds.tokens.last();
    if number > last && !call.primary {
        let lead = &mut call.engine.holds.counters.clock_lead;
        lead.observe(number, call.now);
    }
    call.engine.holds.counters.held += entry.holders() as i64 - before;
    // Kept as it came: this server's own AOF and replicas get the same bytes.
    entry.changed = true;
    entry.effect.extend_from_slice(&effect);
    call.engine.follow(name, entry);
    if call.primary {
        // A slot on its way to this node brings its locks: they are looked after as soon as it has come.
        call.engine.on_key_removed(name);
    }
    Ok(Reply::Ok)
}

/// A server has begun to take over another's data, or the primary was started: for as long as the quarantine, whoever joins may
/// have confirmed what nobody knows any more. The caller notes when. Refused from clients.
#[inline(never)]
pub(crate) fn full_sync_notice<K: Keyspace>(call: &Call<K>) -> Result<Reply, Error> {
    match call.caller.is_followed() {
        true => Ok(Reply::FullSyncNotice),
        false => Err(Error::Internal("DLOCK.HEED")),
    }
}
