//! Slots of a cluster: which are this node's, and names in the slot of a key, for probes and for blocked connections.

use crate::ffi::ctx::Ctx;
use crate::ffi::text::Text;
use crate::node::gate::{self, Passage};
use dlock_commands::words::hash_slot::{of, short_tag, tag};
use dlock_commands::words::slots::Own;
use dlock_engine::NameRef;
use std::collections::HashMap;
use uuid::Uuid;

/// The server's answers about slots within one event, in which they cannot change: a migrating slot may have many locks, and each
/// answer costs as much as a command.
#[derive(Default)]
pub(crate) struct SlotCache {
    accepted: HashMap<u16, bool>,
    own: Option<Own>,
}

impl SlotCache {
    /// Drops the answers: another event begins.
    pub(crate) fn forget(&mut self) {
        self.accepted.clear();
        self.own = None;
    }

    /// Returns true if the queue of this key may move now.
    pub(crate) fn can_grant(&mut self, ctx: Ctx, name: NameRef) -> bool {
        // Where no other name can be made in the slot, the answer is this key's alone.
        if probe_key_in_slot(name.key).is_none() {
            return accepts_key(ctx, name);
        }
        let ask = || accepts_key(ctx, name);
        *self.accepted.entry(of(name.key)).or_insert_with(ask)
    }

    /// Returns true if the server would accept a write of this key, which is here, though the queues of its slot must not move: the
    /// slot is migrating. If it is migrating here, the server accepts only a client that has sent ASKING.
    pub(crate) fn can_write(&mut self, ctx: Ctx, name: NameRef) -> bool {
        match gate::write_of(ctx, name.key) {
            Passage::Open => true,
            Passage::Elsewhere => self.own(ctx).comes(name.key),
            Passage::Barred => false,
        }
    }

    /// Returns true if this node serves the key's slot, even if the slot is migrating to another.
    pub(crate) fn served_here(&mut self, ctx: Ctx, key: &[u8]) -> bool {
        self.own(ctx).serves(key)
    }

    /// Returns true if a key that was removed has left with its slot: the slot is another node's by now, or is migrating there
    /// and the value was serialized for that (`carried`). How servers do it (the same questions suit all of them):
    ///
    /// * MIGRATE, everywhere: the slot is marked as migrating, and stays this node's until all its keys have gone;
    /// * a slot that another node has taken, everywhere: its keys are deleted when it is the other's;
    /// * the atomic moves of Valkey 9: the same;
    /// * those of Redis 8.4: the same with keys that are removed one by one (when clients cache keys, or another module asks
    ///   for a notice of each); else all go at once, without a callback.
    pub(crate) fn left_with_slot(&mut self, ctx: Ctx, name: NameRef, carried: bool) -> bool {
        // The usual key is in a slot that stays, and that is the cheaper question.
        if self.can_grant(ctx, name) {
            return false;
        }
        let own = self.own(ctx);
        !own.serves(name.key) || (carried && own.leaves(name.key))
    }

    /// Returns the node's slots.
    pub(crate) fn own(&mut self, ctx: Ctx) -> &Own {
        self.own.get_or_insert_with(|| ask(ctx))
    }
}

/// Asks the server for the node's slots. Without an answer all slots count as this node's.
fn ask(ctx: Ctx) -> Own {
    let nodes = ctx.ask(c"CLUSTER", b"NODES");
    nodes.map_or_else(Own::all, |nodes| Own::read(&nodes))
}

/// Returns true if the queue of this key may move now, in a cluster: the slot is this node's and stays, and the cluster is up.
fn accepts_key(ctx: Ctx, name: NameRef) -> bool {
    // In a slot that is migrating away the server still serves the keys that are left, but no others: so the probe names a key
    // that does not exist.
    let key = probe_key_in_slot(name.key);
    gate::write_of(ctx, key.as_deref().unwrap_or(name.key)) == Passage::Open
}

/// Returns true if braces around the whole key keep it in its slot. A key without a tag of its own that contains a `}` has no
/// other names in its slot that could be made of it.
pub(crate) fn can_be_braced(key: &[u8]) -> bool {
    tag(key).is_none() && !key.contains(&b'}')
}

/// Returns a name in the key's slot that nobody uses, if one can be made.
pub(crate) fn probe_key_in_slot(key: &[u8]) -> Option<Vec<u8>> {
    let tag = match tag(key) {
        Some(tag) => tag,
        None if can_be_braced(key) => key,
        None => return None,
    };
    Some([b"{", tag, b"}\0dlock\0nobody"].concat())
}

lazy_static::lazy_static! {
    // No client can learn it: no command shows which keys connections are blocked on.
    static ref SECRET: Uuid = Uuid::new_v4();
}

/// Returns the key that a connection which waits for this lock is blocked on: one for each slot, outside of a cluster the same for
/// all.
///
/// The server wants one: by its slot it redirects the connection when that moves, and ends its wait when the cluster is
/// down. But a key that *appears* makes the server call back everybody who is blocked on it: a millisecond for each ten thousand
/// of them, for nothing, and worse on some servers (`servers`). So nobody is blocked on a lock's own key, but on a name in the
/// lock's slot that no client can create, since none can know it.
pub(crate) fn blocking_key(key: &[u8]) -> Text {
    let name = [b"}\0dlock\0".as_slice(), SECRET.as_bytes()].concat();
    if gate::in_cluster() {
        Text::new(&[b"{", short_tag(of(key)).as_slice(), &name].concat())
    } else {
        Text::new(&name)
    }
}
