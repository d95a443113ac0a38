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

/// Keeps a session, or ends it if `ms` is 0: `key session ms [SEEN id n] [BLOCK ms]`.
///
/// Replies the session's id, the last row's number, the milliseconds until the first lease of its holds ends, and the rows that were
/// not seen: `[number, word, key, owner, token, left-ms]`. With `BLOCK` the reply may come later ([`Reply::Wait`]). The milliseconds are
/// null if it has no hold; with `dlock.replicas` only confirmed holds count, and none in the quarantine. A session that is ended has
/// null and no rows; one that does not exist, 0 for both numbers as well.
///
/// Errors if another user has begun the session, if there are as many as may be, or if more rows were seen than there are. Also if the
/// server does not block this connection (`BLOCK`), or accepts no writes (`ms` 0).
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (db, user) = (call.db, call.caller.user());
    let (name, user) = (given.session.unwrap_or_default(), &*user);
    let of = SessionRef { db, name, user };
    let ms = given.keep.unwrap_or_default();
    if ms == 0 {
        return end(call, of, given.key());
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

fn end<K: Keyspace>(call: &mut Call<K>, of: SessionRef, key: &[u8]) -> Result<Reply, Error> {
    if !call.caller.may_write(key) {
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

/// Returns how many milliseconds after the arrival of a command a lease ends; 0 if it has ended by now. A program counts them from when
/// it sent the command, so it never relies on a lease that has ended.
fn left_ms(end: WallMs, arrived: SteadyMs, now: Now) -> u64 {
    match end.since(now.wall()) {
        0 => 0,
        left => left + now.steady().since(arrived),
    }
}
