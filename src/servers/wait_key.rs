//! The key that a connection is blocked on.
//!
//! The server wants one: by its slot it redirects the connection when that moves, and ends its wait when the cluster is
//! down. But a key that *appears* makes the server call back everybody who is blocked on it: a millisecond for each ten thousand
//! of them, for nothing, and worse on some servers (`quirks`). So nobody is blocked on a lock's own key, but on a name in the
//! lock's slot that no client can create, since none can know it.

use crate::ffi::text::Text;
use dlock_commands::words::hash_slot;
use uuid::Uuid;

lazy_static::lazy_static! {
    // Told to nobody: no command shows what keys connections are blocked on.
    static ref SECRET: Uuid = Uuid::new_v4();
}

/// The key to be blocked on for this lock: one for each slot, outside of a cluster the same for all.
pub(crate) fn blocking_key(key: &[u8], in_cluster: bool) -> Text {
    let name = [b"}\0dlock\0".as_slice(), SECRET.as_bytes()].concat();
    match in_cluster {
        true => Text::new(
            &[
                b"{",
                hash_slot::short_tag(hash_slot::of(key)).as_slice(),
                &name,
            ]
            .concat(),
        ),
        false => Text::new(&name),
    }
}
