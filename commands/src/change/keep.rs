//! `DLOCK.KEEP`.

use super::hold;
use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{ClientId, KeepReply, Keyspace, LostHold, Now};

/// Takes a heartbeat for all holds that are tied to the caller's connection: `ms`.
///
/// Replies how many holds are tied to it, the milliseconds until the first lease that the server renews ends (null if it renews
/// none), and `[key, token, reason]` of each tie that it has lost (null if there were more than are kept).
///
/// Errors if the caller has no connection of its own, or if replicas must confirm it and cannot.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if !call.own_connection() {
        return Err(Error::NoConnection("DLOCK.KEEP"));
    }
    hold::check_confirmable(call)?;
    let client = ClientId(call.caller.client());
    let ms = given.keep.unwrap_or_default();
    Ok(match call.engine.keep(call.now, client, ms)? {
        Some(id) => Reply::Wait(id, None),
        None => reply(call.engine.keep_reply(call.now, client), call.now),
    })
}

/// Makes the reply to a heartbeat.
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
