//! Slots of a cluster: which are this node's, and names in the slot of a key, for probes and for blocked connections.

use crate::ffi::ctx::Ctx;
use crate::ffi::text::Text;
use crate::node::gate::{self, Passage};
use dlock_commands::words::hash_slot::{of, short_tag, tag, SLOTS};
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

/// A node's slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Own {
    ranges: Vec<(u16, u16)>,
    /// The highest epoch of any node. A node that takes a slot over raises it, unless its own is the highest already.
    epoch: u64,
    /// Those of them that are migrating to another node.
    leaving: Vec<u16>,
    /// Those that are migrating here, and are still another node's.
    coming: Vec<u16>,
}

/// The slots in which somebody waits for a lock, or a hold is tied to a connection, and a few more: a slot stays until a check
/// finds that it has left, or nobody waits and nothing is tied anywhere.
#[derive(Debug)]
pub(crate) struct Awaited {
    slots: Vec<bool>,
    // The highest epoch at the last check.
    epoch: u64,
}

/// The awaited slots that have left the node.
pub(crate) struct Left {
    /// The awaited slots whose locks cannot be here any more.
    slots: Vec<bool>,
    /// Whether a slot may have left and come back since the last check.
    pub returned: bool,
}

impl Awaited {
    /// Begins with every slot.
    pub(crate) fn new() -> Awaited {
        Awaited {
            slots: vec![true; usize::from(SLOTS)],
            epoch: 0,
        }
    }

    /// Notes the key's slot.
    pub(crate) fn note(&mut self, key: &[u8]) {
        if let Some(noted) = self.slots.get_mut(usize::from(of(key))) {
            *noted = true;
        }
    }

    /// Notes every slot: locks have arrived that no command here has named.
    pub(crate) fn note_all(&mut self) {
        self.slots.fill(true);
    }

    /// Forgets every slot: nobody waits, and nothing is tied.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(false);
    }

    /// Takes out the slots that have left this node. Only where a slot is now counts, not an earlier check: a slot can arrive, be
    /// waited for and leave between two checks.
    pub(crate) fn take_left(&mut self, own: &Own) -> Left {
        let mut left = self.slots.clone();
        let coming = own.coming.iter().map(|slot| (*slot, *slot));
        for (first, last) in own.ranges.iter().copied().chain(coming) {
            if let Some(here) = left.get_mut(usize::from(first)..=usize::from(last)) {
                here.fill(false);
            }
        }
        for (noted, left) in self.slots.iter_mut().zip(&left) {
            *noted &= !left;
        }
        let returned = std::mem::replace(&mut self.epoch, own.epoch) != own.epoch;
        Left {
            slots: left,
            returned,
        }
    }
}

impl Left {
    /// Returns true if no awaited slot has left.
    pub(crate) fn is_empty(&self) -> bool {
        !self.slots.contains(&true)
    }

    /// Returns true if the key's slot has left.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.slots.get(usize::from(of(key))) == Some(&true)
    }
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
            Passage::Elsewhere => self.own(ctx).coming.contains(&of(name.key)),
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
    ///   to be told of each); else all go at once, without a callback.
    pub(crate) fn left_with_slot(&mut self, ctx: Ctx, name: NameRef, carried: bool) -> bool {
        // The usual key is in a slot that stays, and that is the cheaper question.
        if self.can_grant(ctx, name) {
            return false;
        }
        let own = self.own(ctx);
        !own.serves(name.key) || (carried && own.leaving.contains(&of(name.key)))
    }

    /// Returns the node's slots.
    pub(crate) fn own(&mut self, ctx: Ctx) -> &Own {
        self.own.get_or_insert_with(|| Own::ask(ctx))
    }
}

impl Own {
    /// Asks the server. Without an answer all slots count as this node's.
    fn ask(ctx: Ctx) -> Own {
        let nodes = ctx.ask(c"CLUSTER", b"NODES");
        nodes.map_or_else(Own::all, |nodes| Own::read(&nodes))
    }

    fn all() -> Own {
        Own {
            ranges: vec![(0, SLOTS - 1)],
            epoch: 0,
            leaving: Vec::new(),
            coming: Vec::new(),
        }
    }

    /// Reads the slots of the node with the flag `myself`: from the ninth word of its line on, with migrating slots in brackets.
    fn read(nodes: &str) -> Own {
        let myself = |line: &&str| {
            let flags = line.split(' ').nth(2).unwrap_or_default();
            flags.split(',').any(|flag| flag == "myself")
        };
        let words = nodes
            .lines()
            .find(myself)
            .into_iter()
            .flat_map(|line| line.split(' ').skip(8));
        let epochs = nodes
            .lines()
            .filter_map(|line| line.split(' ').nth(6)?.parse().ok());
        let mut own = Own {
            epoch: epochs.max().unwrap_or(0),
            ..Own::default()
        };
        for word in words {
            if let Some(moving) = word.strip_prefix('[') {
                let slot = |arrow| moving.split_once(arrow)?.0.parse::<u16>().ok();
                own.leaving.extend(slot("->-"));
                own.coming.extend(slot("-<-"));
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
                own.ranges.push((first, last));
            }
        }
        own
    }

    /// Returns true if this key's slot is one of them.
    pub(crate) fn serves(&self, key: &[u8]) -> bool {
        let slot = of(key);
        let has = |(first, last): &(u16, u16)| (*first..=*last).contains(&slot);
        self.ranges.iter().any(has)
    }
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
pub(crate) fn blocking_key(key: &[u8], in_cluster: bool) -> Text {
    let name = [b"}\0dlock\0".as_slice(), SECRET.as_bytes()].concat();
    match in_cluster {
        true => Text::new(&[b"{", short_tag(of(key)).as_slice(), &name].concat()),
        false => Text::new(&name),
    }
}
