//! `DLOCK.CANCEL`, `DLOCK.POSITION`.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::Keyspace;

/// Takes an owner out of the queue: `key owner`.
#[inline(never)]
pub(crate) fn cancel<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let removed = call.engine.cancel(call.keys, call.now, name, owner)?;
    Ok(Reply::Integer(u64::from(removed)))
}

/// How many stand before an owner: `key owner`.
#[inline(never)]
pub(crate) fn position<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let (engine, lock) = call.lock(name)?;
    Ok(engine
        .position(lock, name, owner)
        .map_or(Reply::Null, |rank| Reply::Integer(rank as u64)))
}
