//! `DLOCK.CANCEL`.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::Keyspace;

/// Takes an owner out of the queue: `key owner`.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let removed = call.engine.cancel(call.keys, call.now, name, owner)?;
    Ok(Reply::number(removed))
}
