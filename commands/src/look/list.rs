//! `DLOCK.LIST`: all locks, page by page, with nothing kept between the pages.
//!
//! Two sources make the list. The server's own SCAN goes through the keys: its cursor and its guarantees are the list's. A
//! lock that nobody holds and that has waiters but no ticket has no key; and only the engine knows without opening all
//! keys which locks are contended. So the second source is the engine's queues, in an order that never changes. The keys come first,
//! then the queues; with `CONTENDED`, the queues only. A cursor in the queues has the bit `OF_QUEUES`.

pub use crate::call::{Listing, Source};

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use crate::words::glob;
use dlock_engine::{collections::scan_order, Keyspace, NameRef, Row};

/// The keys that one call reads without `COUNT`.
const DEFAULT_COUNT: u64 = 100;

/// The most keys that one call reads; `COUNT` is a hint, as in SCAN. A key takes 2 µs and a lock 4 to 5 on a busy machine, mostly
/// in the server's SCAN, its look-ups and the reply: a call delays others by some milliseconds.
const MOST: u64 = 1_000;

/// The bit that marks cursors of the queues. The server's own cursors count the places of its tables, and never set it.
const OF_QUEUES: u64 = 1 << scan_order::BITS;

impl Source {
    /// Returns the cursor for the client: 0 is the beginning, and the end.
    pub fn cursor(self) -> u64 {
        match self {
            Source::Keys(cursor) => cursor,
            Source::Queues(from) => OF_QUEUES | from,
        }
    }
}

/// Reads which page is asked for: `[cursor] [MATCH pattern] [COUNT n] [OWNER owner] [IN session] [CONTENDED]`. The module makes the page
/// ([`Reply::List`]).
///
/// Errors if `CONTENDED` comes with a cursor of the keys: only the queues are listed then.
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
        session: given.session.map(<[u8]>::to_vec),
        contended: given.contended,
    })))
}

impl Listing {
    /// Returns true if the list continues after the last of the keys with the first of the queues: locks that have no key can match.
    pub fn continues_in_queues(&self) -> bool {
        self.owner.is_none()
    }

    /// Returns the rows of the locks at these keys that match and that the user may read. Keys from the server's SCAN match the pattern
    /// already. Without `CONTENDED`, a lock from the queues has a row only if it has no key.
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
            .filter(|(key, _)| !of_queues || self.matches(key))
            .filter_map(|(key, _)| self.row(call, of_queues, key))
            .collect()
    }

    fn matches(&self, key: &[u8]) -> bool {
        let pattern = self.pattern.as_ref();
        pattern.is_none_or(|pattern| glob::matches(pattern, key))
    }

    fn row<K: Keyspace>(&self, call: &mut Call<K>, of_queues: bool, key: &[u8]) -> Option<Reply> {
        let name = NameRef { db: call.db, key };
        let now = call.now;
        let (engine, lock) = call.lock(name).ok()?;
        if of_queues && !self.contended && lock.is_some() {
            // It has a key, and is listed with the keys.
            return None;
        }
        let row = engine.row(
            lock,
            now,
            name,
            self.owner.as_deref(),
            self.session.as_deref(),
        )?;
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
    let (session, not_alive_ms) = match row.session {
        Some(session) if session.alive => (session.name, Reply::Null),
        Some(session) => (session.name, Reply::Integer(session.since_ms)),
        None => (Vec::new(), Reply::Null),
    };
    Reply::Map(vec![
        ("key", Reply::Bulk(key.to_vec())),
        ("owner", owner),
        ("held", Reply::Integer(row.holders as u64)),
        ("queued", Reply::Integer(row.queued as u64)),
        ("lease-ms", lease_ms),
        ("in", Reply::Bulk(session)),
        ("not-alive-ms", not_alive_ms),
        (
            "first-waited-ms",
            row.first_waited_ms.map_or(Reply::Null, Reply::Integer),
        ),
    ])
}

/// Makes the reply: the cursor of the next page (none: this was the last), and the rows.
pub fn page(next: Option<Source>, rows: Vec<Reply>) -> Reply {
    let cursor = next.map_or(0, Source::cursor).to_string();
    Reply::Array(vec![Reply::Bulk(cursor.into_bytes()), Reply::Array(rows)])
}
