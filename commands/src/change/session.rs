//! `DLOCK.SESSION`.

use super::acquire;
use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{
    ClientId, Keep, Kept, Keyspace, News, NewsRow, Now, SessionRef, SteadyMs, WallMs,
};

/// The locks that the end of a session settles in the same step, at most.
const SETTLED: usize = 256;

/// Keeps a session, or ends it: `key session ms [SEEN id n] [BLOCK ms]`.
///
/// Replies the session's id, the last row's number, the milliseconds until the first lease of its holds ends (null if it has none), and
/// the rows that were not seen: `[number, word, key, owner, token, left-ms]`.
///
/// Errors if another user has begun the session, if there are as many as may be, if more rows were seen than there are, and if the
/// server accepts no writes while the session is to be ended.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (db, user) = (call.db, call.caller.user());
    let (name, user) = (given.session.unwrap_or_default(), &*user);
    let of = SessionRef { db, name, user };
    let ms = given.keep.unwrap_or_default();
    if ms == 0 {
        return end(call, of);
    }
    let block = match given.block {
        Some(ms) => acquire::may_block(call)?.then_some(ms),
        None => None,
    };
    let client = if call.own_connection() {
        ClientId(call.caller.client())
    } else {
        ClientId::NONE
    };
    let keep = Keep {
        client,
        ms,
        seen: (given.seen_id.unwrap_or(0), given.seen.unwrap_or(0)),
        block,
    };
    Ok(match call.engine.keep_session(call.now, of, &keep)? {
        Kept::News(news) => reply(&news, call.now),
        Kept::Waiting(id) => Reply::Wait(id, None),
    })
}

fn end<K: Keyspace>(call: &mut Call<K>, of: SessionRef) -> Result<Reply, Error> {
    if !call.caller.may_write() {
        return Err(Error::Argument(
            "ms",
            "1 or more: the server accepts no writes now, so the session cannot end".to_string(),
        ));
    }
    let ended = call.engine.end_session(call.now, of)?;
    call.engine.settle_dirty(call.keys, call.now, SETTLED);
    let (id, last) = ended.unwrap_or((0, 0));
    Ok(Reply::Array(vec![
        Reply::Integer(id),
        Reply::Integer(last),
        Reply::Null,
        Reply::Array(Vec::new()),
    ]))
}

/// Makes the reply of a SESSION command, at the time at which it is sent.
pub fn reply(news: &News, now: Now) -> Reply {
    let left = |end: WallMs| Reply::Integer(left_ms(end, news.arrived, now));
    Reply::Array(vec![
        Reply::Integer(news.id),
        Reply::Integer(news.last),
        news.first_end.map_or(Reply::Null, left),
        Reply::array(news.rows.iter().map(|row| row_reply(row, left))),
    ])
}

fn row_reply(row: &NewsRow, left: impl Fn(WallMs) -> Reply) -> Reply {
    Reply::Array(vec![
        Reply::Integer(row.number),
        Reply::Text(row.word.text()),
        Reply::Bulk(row.key.clone()),
        Reply::Bulk(row.owner.clone()),
        Reply::Integer(row.token.0),
        row.end.map_or(Reply::Integer(0), left),
    ])
}

/// Returns how long after the arrival of a command a lease ends; 0 if it has ended by now. A program counts that from when it sent the
/// command, and so is never too long.
fn left_ms(end: WallMs, arrived: SteadyMs, now: Now) -> u64 {
    match end.since(now.wall()) {
        0 => 0,
        left => left + now.steady().since(arrived),
    }
}
