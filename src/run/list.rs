//! The pages of `DLOCK.LIST`, by the server's own SCAN. SCAN may call back (it removes expired keys on the way), so it runs with
//! nothing borrowed; the locks that it names are inspected afterwards.

use super::caller::Client;
use super::enter;
use super::keyspace::{Mode, Origin};
use super::state::State;
use crate::callbacks::data_type;
use crate::ffi::call::{Rules, Value};
use crate::ffi::ctx::Ctx;
use crate::node::{clock, gate};
use dlock_commands::error::Error;
use dlock_commands::look::list::{self, Listing, Source};
use dlock_commands::words::slots::Own;
use dlock_commands::Reply;
use dlock_engine::Now;
use std::ops::Deref;

/// The locks that one event reads: as many as are searched one by one.
const A_TIME: usize = 16;

/// Makes a page. The last page of the keys continues with the first of the queues.
pub(super) fn page(ctx: Ctx, listing: &Listing) -> Result<Reply, Error> {
    let cursor = match listing.source {
        Source::Keys(cursor) => cursor,
        Source::Queues(from) => return queues(ctx, listing, from, Vec::new()),
    };
    let (next, keys) = scan(ctx, cursor, listing)?;
    let rows = rows(ctx, listing, Source::Keys(cursor), &keys)?;
    match next {
        0 if listing.continues_in_queues() => queues(ctx, listing, 0, rows),
        0 => Ok(list::page(None, rows)),
        next => Ok(list::page(Some(Source::Keys(next)), rows)),
    }
}

/// Makes a page of the queues, after these rows.
fn queues(ctx: Ctx, listing: &Listing, from: u64, mut before: Vec<Reply>) -> Result<Reply, Error> {
    let db = ctx.selected();
    let found = inspect(ctx, |state, _| {
        state.engine.queue_keys(db, from, listing.count)
    });
    let (keys, next) = found?;
    before.extend(rows(ctx, listing, Source::Queues(from), &keys)?);
    Ok(list::page(next.map(Source::Queues), before))
}

fn rows<B: Deref<Target = [u8]>>(
    ctx: Ctx,
    listing: &Listing,
    source: Source,
    keys: &[B],
) -> Result<Vec<Reply>, Error> {
    let caller = Client(ctx);
    let slots = own_slots(ctx)?;
    let is_here = |key: &[u8]| slots.as_ref().is_none_or(|own| own.serves(key));
    let here: Vec<&[u8]> = keys
        .iter()
        .map(|key| &**key)
        .filter(|key| is_here(key))
        .collect();
    let mut rows = Vec::new();
    for keys in here.chunks(A_TIME) {
        rows.extend(inspect(ctx, |state, now| {
            listing.rows(&mut state.call(&caller, now), source, keys)
        })?);
    }
    Ok(rows)
}

/// Returns the slots of this node, if keys of another may be among its own: keys that are migrating here, or that have left and
/// are not removed yet. The other node lists those. A replica serves no slots, and lists all that it has.
fn own_slots(ctx: Ctx) -> Result<Option<Own>, Error> {
    inspect(ctx, |state, _| {
        let asks = gate::in_cluster() && gate::primary();
        asks.then(|| state.keys.own_slots().clone())
    })
}

/// Runs a read-only event.
fn inspect<T>(ctx: Ctx, work: impl FnOnce(&mut State, Now) -> T) -> Result<T, Error> {
    enter::run(ctx, Mode::Read, Origin::Event, clock::of_read(ctx), work).ok_or(Error::Busy)
}

/// Runs SCAN. Returns the next cursor and the names of locks.
fn scan(ctx: Ctx, cursor: u64, listing: &Listing) -> Result<(u64, Vec<Vec<u8>>), Error> {
    let (cursor, count) = (cursor.to_string(), listing.count.to_string());
    let words = [
        cursor.as_bytes(),
        b"TYPE",
        data_type::NAME.as_bytes(),
        b"COUNT",
        count.as_bytes(),
        b"MATCH",
        listing.pattern.as_deref().unwrap_or(b"*"),
    ];
    match ctx.call(c"SCAN", Rules::REFUSALS, words) {
        Some(answer) => read(answer.value()),
        None => Err(Error::NoScan("there is none".into())),
    }
}

/// Reads the reply of SCAN: the next cursor, and names.
fn read(answer: Value) -> Result<(u64, Vec<Vec<u8>>), Error> {
    let refused = |value: Value| Error::NoScan(value.text().unwrap_or_default());
    if !answer.is_array() {
        return Err(refused(answer));
    }
    let (next, names) = (answer.element(0), answer.element(1));
    let Some(cursor) = next.text().and_then(|cursor| cursor.parse().ok()) else {
        return Err(refused(next));
    };
    let name = |index| names.element(index).bytes().unwrap_or_default().to_vec();
    Ok((cursor, (0..names.len()).map(name).collect()))
}
