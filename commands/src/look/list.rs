//! `DLOCK.LIST`: all locks, page by page, with nothing kept between the pages.
//!
//! Two sources make the list. The server's own SCAN goes through the keys: its cursor and its guarantees are the list's. A
//! lock that nobody holds and that has waiters but no ticket has no key; and only the engine knows without opening all
//! keys which locks are contended. So the second source is the engine's queues, in an order that never changes. A cursor of
//! theirs is marked.

pub use crate::call::{Listing, Source};
use crate::error::Error;
use crate::table::Args;
use crate::words::glob;

use crate::call::{Call, Reply};
use dlock_engine::{collections::scan_order, Keyspace, NameRef, Row};

/// Keys that one call reads where the request does not say.
const DEFAULT_COUNT: u64 = 100;

/// The most that one call reads, whatever the request says, which is a hint as in SCAN. Another key takes 2 µs and a lock 4
/// to 5 on a busy machine, most of it in the server's SCAN, its look-ups and the reply: a call holds others up for some
/// milliseconds.
const MOST: u64 = 1_000;

/// Cursors of the queues have this bit; the server's own count the places of its tables, and have not.
const OF_QUEUES: u64 = 1 << scan_order::BITS;

impl Source {
    /// As the client sees it: 0 is the beginning, and the end.
    pub fn cursor(self) -> u64 {
        match self {
            Source::Keys(cursor) => cursor,
            Source::Queues(from) => OF_QUEUES | from,
        }
    }
}

/// What page is asked for: `[cursor] [MATCH pattern] [COUNT n] [OWNER owner] [CONTENDED]`.
pub fn run(given: &Args) -> Result<Reply, Error> {
    let source = match given.cursor.unwrap_or(0) {
        0 if given.contended => Source::Queues(0),
        marked if marked & OF_QUEUES != 0 => Source::Queues(marked & (OF_QUEUES - 1)),
        _ if given.contended => {
            let must = "0, or one that DLOCK.LIST CONTENDED returned".to_string();
            return Err(Error::Argument("cursor", must));
        }
        cursor => Source::Keys(cursor),
    };
    Ok(Reply::List(Box::new(Listing {
        source,
        pattern: given.pattern.map(<[u8]>::to_vec),
        count: given.count.unwrap_or(DEFAULT_COUNT).min(MOST) as usize,
        owner: given.owner.map(<[u8]>::to_vec),
        contended: given.contended,
    })))
}

impl Listing {
    /// Where its page begins.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Where in the queues the list goes on after the last of the keys: with the locks that have none, if those can be
    /// meant.
    pub fn after_keys(&self) -> Option<u64> {
        self.owner.is_none().then_some(0)
    }

    /// The rows of these locks: those that are what was asked for, and that the user may read. The caller has seen to the
    /// pattern of keys that come from the server.
    pub fn rows<K: Keyspace>(
        &self,
        call: &mut Call<K>,
        source: Source,
        keys: &[&[u8]],
    ) -> Vec<Reply> {
        let of_queues = matches!(source, Source::Queues(_));
        let readable = call.caller.may_read(keys);
        let shown = keys.iter().zip(readable).filter(|(_, may)| *may);
        shown
            .filter(|(key, _)| !of_queues || self.is_meant(key))
            .filter_map(|(key, _)| self.row(call, of_queues, key))
            .collect()
    }

    fn is_meant(&self, key: &[u8]) -> bool {
        let pattern = self.pattern.as_ref();
        pattern.is_none_or(|pattern| glob::matches(pattern, key))
    }

    fn row<K: Keyspace>(&self, call: &mut Call<K>, of_queues: bool, key: &[u8]) -> Option<Reply> {
        let name = NameRef { db: call.db, key };
        let now = call.now;
        let (engine, lock) = call.lock(name).ok()?;
        if of_queues && !self.contended && lock.is_some() {
            // It has a key, and is listed among those.
            return None;
        }
        let row = engine.row(lock, now, name, self.owner.as_deref())?;
        if self.contended && row.queued == 0 {
            return None;
        }
        Some(shape(key, row))
    }
}

fn shape(key: &[u8], row: Row) -> Reply {
    let (owner, lease_ms) = match row.hold {
        Some((owner, lease_ms)) => (Reply::Bulk(owner), Reply::Integer(lease_ms)),
        None => (Reply::Null, Reply::Null),
    };
    Reply::Array(vec![
        Reply::Bulk(key.to_vec()),
        owner,
        Reply::Integer(row.holders as u64),
        Reply::Integer(row.queued as u64),
        lease_ms,
    ])
}

/// The page: where to go on (nowhere: it was the last), and the rows.
pub fn page(next: Option<Source>, rows: Vec<Reply>) -> Reply {
    let cursor = next.map_or(0, Source::cursor).to_string();
    Reply::Array(vec![Reply::Bulk(cursor.into_bytes()), Reply::Array(rows)])
}
