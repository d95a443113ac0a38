//! `DLOCK.KEEP`.

use super::hold;
use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{ClientId, KeepReply, Keyspace, LostHold, Now};

/// Takes a sign of life for all that is tied to the caller's connection: `ms`.
///
/// Replies how many holds are tied to it, the milliseconds that are left of the first lease to end among those that the server
/// renews (null if there are none), and `[key, token, reason]` of each tie that it has lost (null if there were more than are
/// kept).
///
/// Errors if the caller has no connection of its own, or if replicas are to confirm it and cannot.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if !call.own_connection() {
        return Err(Error::NoConnection("DLOCK.KEEP"));
    }
    hold::check_confirmable(call)?;
    let client = ClientId(call.caller.client());
    let ms = given.keep.unwrap_or_default();
    Ok(match call.engine.keep(call.now, client, ms)? {
        Some(id) => Reply::Wait(id, None),
        None => reply(call.engine.kept(call.now, client), call.now),
    })
}

/// What a sign of life is answered.
pub fn reply(kept: KeepReply, now: Now) -> Reply {
    let left = kept.first_end.map(|end| end.since(now.wall()));
    Reply::Array(vec![
        Reply::Integer(kept.ties as u64),
        left.map_or(Reply::Null, Reply::Integer),
        match kept.lost {
            Some(lost) => Reply::array(lost.iter().map(loss)),
            None => Reply::NullArray,
        },
    ])
}

fn loss(lost: &LostHold) -> Reply {
    Reply::Array(vec![
        Reply::Bulk(lost.name.key.to_vec()),
        Reply::Integer(lost.token.0),
        Reply::Text(lost.why.word()),
    ])
}
