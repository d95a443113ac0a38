//! `DLOCK.GRAPH`.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::{Edge, Keyspace};
use std::rc::Rc;

/// The pairs that are shown without `COUNT`.
const SHOWN: u64 = 1_000;

/// Shows who waits for whom, of the locks that the user may read: `[DOT] [COUNT n]`.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let most = given.count(SHOWN);
    let caller = call.caller;
    let readable = |keys: &[&[u8]]| caller.may_read(keys);
    let edges = call
        .engine
        .graph(call.keys, call.now, call.db, most, &readable);
    Ok(if given.dot {
        Reply::Bulk(drawing(&edges).into_bytes())
    } else {
        Reply::array(edges.iter().map(row))
    })
}

fn row(edge: &Edge) -> Reply {
    let session = |of: &Option<Rc<[u8]>>| Reply::Bulk(of.as_deref().unwrap_or_default().to_vec());
    Reply::Map(vec![
        ("waits", Reply::Bulk(edge.waiter.to_vec())),
        ("key", Reply::Bulk(edge.name.key.to_vec())),
        ("for", Reply::Bulk(edge.blocker.to_vec())),
        ("waited-ms", Reply::Integer(edge.waited_ms)),
        ("waits-in", session(&edge.waiter_session)),
        ("for-in", session(&edge.blocker_session)),
    ])
}

/// Draws the edges for Graphviz: owners as nodes, waits as arrows that name the lock.
fn drawing(edges: &[Edge]) -> String {
    let arrow = |edge: &Edge| {
        let label = [
            &*edge.name.key,
            format!(" {} ms", edge.waited_ms).as_bytes(),
        ]
        .concat();
        format!(
            "  {} -> {} [label={}];\n",
            quoted(&edge.waiter),
            quoted(&edge.blocker),
            quoted(&label)
        )
    };
    let arrows: String = edges.iter().map(arrow).collect();
    format!("digraph dlock {{\n  rankdir=LR;\n{arrows}}}\n")
}

/// Quotes bytes for Graphviz: a backslash goes before a quote or a backslash, and bytes other than printable ASCII are `\xhh`.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => text.extend(['\\', byte as char]),
            0x20..=0x7e => text.push(byte as char),
            _ => text.push_str(&format!("\\\\x{byte:02x}")),
        }
    }
    text.push('"');
    text
}
