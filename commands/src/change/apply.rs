//! `DLOCK.APPLY`, the internal command by which a replica and the AOF apply a primary's effects; and `DLOCK.HEED`, which tells
//! replicas that those who join count late for a while.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{change, Keyspace};
use std::borrow::Cow;

/// This command, as errors name it.
const APPLY: &str = "DLOCK.APPLY";

/// Applies an effect: `key [effect]`, by default the release of the only hold. Refused from clients.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if !call.caller.is_followed() {
        return Err(Error::Internal(APPLY));
    }
    let name = call.name(given.key());
    let effect = match given.effect {
        Some(effect) => Cow::Borrowed(effect),
        None => {
            let (_, lock) = call.lock(name)?;
            let release = lock.and_then(change::usual_release);
            Cow::Owned(release.ok_or(Error::Internal(APPLY))?)
        }
    };
    let (keys, now) = (&mut *call.keys, call.now);
    // A file, or a slot that moves here, tells of what happened earlier and elsewhere.
    let happens_now = !call.primary && !call.caller.is_loading();
    call.engine
        .follow(keys, now, name, &effect, call.primary, happens_now)?;
    Ok(Reply::Ok)
}

/// Takes the notice that a server has begun a full resynchronisation, or that the primary was started. Within the quarantine from
/// then on, a replica that joins may have confirmed what nobody knows any longer. The caller notes when. Refused from clients.
pub(crate) fn full_sync_notice<K: Keyspace>(call: &Call<K>) -> Result<Reply, Error> {
    if call.caller.is_followed() {
        Ok(Reply::FullSyncNotice)
    } else {
        Err(Error::Internal("DLOCK.HEED"))
    }
}
