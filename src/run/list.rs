//! `DLOCK.LIST`'s other half: the server's own SCAN. It may call back (keys that have expired are removed on the way), so
//! it runs with no borrow held; the locks that it names are inspected afterwards.

use crate::callbacks::data_type;
use crate::ffi::api::{self, api, Ctx, Str, Text};
use crate::node::clock;
use crate::node::gate;
use crate::node::own_slots::Own;
use crate::run::caller::Client;
use crate::run::keyspace::{Mode, Origin};
use crate::run::State;
use crate::tell::reply;
use dlock_commands::error::Error;
use dlock_commands::list::{self, Listing, Source};
use dlock_commands::Reply;
use dlock_engine::Now;
use redis_module::raw::{self, RedisModuleCallReply};
use std::ffi::c_int;
use std::ops::Deref;

/// Locks that are read together. Those that are open at once are told apart by looking through all of them.
const A_TIME: usize = 16;

/// Answers the request.
pub fn run(ctx: *mut Ctx, listing: &Listing) {
    reply::write(ctx, page(ctx, listing));
}

/// A page. The last one of the keys goes on with the first of the queues.
fn page(ctx: *mut Ctx, listing: &Listing) -> Result<Reply, Error> {
    let cursor = match listing.source() {
        Source::Keys(cursor) => cursor,
        Source::Queues(from) => return queues(ctx, listing, from, Vec::new()),
    };
    let (next, keys) = scan(ctx, cursor, listing)?;
    let rows = rows(ctx, listing, Source::Keys(cursor), &keys)?;
    match (next, listing.after_keys()) {
        (0, Some(from)) => queues(ctx, listing, from, rows),
        (0, None) => Ok(list::page(None, rows)),
        (next, _) => Ok(list::page(Some(Source::Keys(next)), rows)),
    }
}

/// A page of the queues, after the rows that there are already.
fn queues(
    ctx: *mut Ctx,
    listing: &Listing,
    from: u64,
    mut before: Vec<Reply>,
) -> Result<Reply, Error> {
    let db = api::selected(ctx);
    let found = inspect(ctx, |state, _| state.engine.scan(db, from, listing.count));
    let (keys, next) = found?;
    before.extend(rows(ctx, listing, Source::Queues(from), &keys)?);
    Ok(list::page(next.map(Source::Queues), before))
}

fn rows<B: Deref<Target = [u8]>>(
    ctx: *mut Ctx,
    listing: &Listing,
    source: Source,
    keys: &[B],
) -> Result<Vec<Reply>, Error> {
    let caller = Client(ctx);
    let slots = own_slots(ctx)?;
    let is_here = |key: &[u8]| slots.as_ref().map_or(true, |own| own.serves(key));
    let keys = keys.iter().map(|key| &**key);
    let keys: Vec<&[u8]> = keys.filter(|key| is_here(key)).collect();
    let mut rows = Vec::new();
    for keys in keys.chunks(A_TIME) {
        rows.extend(inspect(ctx, |state, now| {
            listing.rows(&mut state.call(&caller, now), source, keys)
        })?);
    }
    Ok(rows)
}

/// The slots of this node, where another's keys may be among its own: those that it is about to get, or has lost and not
/// yet removed. They are listed by the node that answers for them. A replica answers for none, and lists all that it has.
fn own_slots(ctx: *mut Ctx) -> Result<Option<Own>, Error> {
    inspect(ctx, |state, _| {
        let asks = state.keys.in_cluster() && gate::primary();
        asks.then(|| state.keys.own_slots().clone())
    })
}

/// An event that only reads.
fn inspect<T>(ctx: *mut Ctx, work: impl FnOnce(&mut State, Now) -> T) -> Result<T, Error> {
    crate::run::run(ctx, Mode::Read, Origin::Event, clock::of_read(ctx), work).ok_or(Error::Busy)
}

/// The next cursor and the names of locks.
fn scan(ctx: *mut Ctx, cursor: u64, listing: &Listing) -> Result<(u64, Vec<Vec<u8>>), Error> {
    let (cursor, count) = (cursor.to_string(), listing.count.to_string());
    let mut words: Vec<&[u8]> = vec![
        cursor.as_bytes(),
        b"TYPE",
        data_type::NAME.as_bytes(),
        b"COUNT",
        count.as_bytes(),
    ];
    if let Some(pattern) = &listing.pattern {
        words.extend([&b"MATCH"[..], pattern]);
    }
    let words: Vec<Text> = words.into_iter().map(Text::new).collect();
    let mut argv: Vec<*mut Str> = words.iter().map(Text::raw).collect();
    // SAFETY: `E` gives refusals as replies, `v` takes the arguments and their number; what the reply has is copied, and
    // the reply freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"SCAN".as_ptr(),
            c"Ev".as_ptr(),
            argv.as_mut_ptr(),
            argv.len()
        ));
        if reply.is_null() {
            return Err(Error::NoScan("there is none".into()));
        }
        let answer = read(reply);
        api!(RedisModule_FreeCallReply(reply));
        answer
    }
}

/// Reads what SCAN answers: the next cursor, and names.
///
/// # Safety
/// The reply is live.
unsafe fn read(reply: *mut RedisModuleCallReply) -> Result<(u64, Vec<Vec<u8>>), Error> {
    // SAFETY: the reply is live, and so are its elements; one that is not there is null.
    unsafe {
        let refused = |reply| Error::NoScan(String::from_utf8_lossy(&text(reply)).into_owned());
        if api!(RedisModule_CallReplyType(reply)) != raw::REDISMODULE_REPLY_ARRAY as c_int {
            return Err(refused(reply));
        }
        let next = api!(RedisModule_CallReplyArrayElement(reply, 0));
        let names = api!(RedisModule_CallReplyArrayElement(reply, 1));
        let cursor = String::from_utf8_lossy(&text(next)).parse();
        let cursor = cursor.map_err(|_| refused(next))?;
        let all = 0..api!(RedisModule_CallReplyLength(names));
        let name = |at| text(api!(RedisModule_CallReplyArrayElement(names, at)));
        Ok((cursor, all.map(name).collect()))
    }
}

/// A copy of a string or an error.
///
/// # Safety
/// The reply is live, or null.
unsafe fn text(reply: *mut RedisModuleCallReply) -> Vec<u8> {
    let mut len = 0;
    if reply.is_null() {
        return Vec::new();
    }
    // SAFETY: the reply is live; the bytes are its own, and copied.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
        if start.is_null() {
            return Vec::new();
        }
        std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
    }
}
