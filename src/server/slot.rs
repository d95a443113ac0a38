//! Which part of a key a cluster hashes, names in the same slot, and which slots are this node's.

use super::api::{self, Ctx};
use super::gate;
pub use super::hash_slot::{of, tag, SLOTS};
use crate::engine::NameRef;
use std::collections::HashMap;

/// Whether braces around the whole key keep it in its slot. A key without a tag of its own that contains a `}` has no
/// other names in its slot that could be made of it.
pub fn can_be_braced(key: &[u8]) -> bool {
    tag(key).is_none() && !key.contains(&b'}')
}

/// A name in the key's slot that nobody uses, if one can be made.
pub fn neighbour(key: &[u8]) -> Option<Vec<u8>> {
    let tag = match tag(key) {
        Some(tag) => tag,
        None if can_be_braced(key) => key,
        None => return None,
    };
    Some([b"{", tag, b"}\0dlock\0nobody"].concat())
}

/// What the server has said of slots within one event, in which nothing of it can change: the locks of a slot that is on
/// its way may be many, and each answer costs as much as a command.
#[derive(Default)]
pub struct Answers {
    accepted: HashMap<u16, bool>,
    own: Option<Vec<(u16, u16)>>,
}

impl Answers {
    /// Forgets them: another event begins.
    #[cold]
    pub fn forget(&mut self) {
        self.accepted.clear();
        self.own = None;
    }

    /// Whether the queue of this key may move now.
    pub fn accepts(&mut self, ctx: *mut Ctx, name: NameRef) -> bool {
        // Where no other name can be made in the slot, the answer is this key's alone.
        if neighbour(name.key).is_none() {
            return gate::accepts_key(ctx, name);
        }
        let ask = || gate::accepts_key(ctx, name);
        *self.accepted.entry(of(name.key)).or_insert_with(ask)
    }

    /// Whether this node serves the key's slot, be it that the slot is on its way to another.
    pub fn served_here(&mut self, ctx: *mut Ctx, key: &[u8]) -> bool {
        // No answer is no reason to turn anybody away.
        let all = || vec![(0, SLOTS)];
        let ask =
            || api::ask(ctx, c"CLUSTER", c"NODES").map_or_else(all, |nodes| own(&nodes).collect());
        let own = self.own.get_or_insert_with(ask);
        own.iter()
            .any(|(first, last)| (*first..=*last).contains(&of(key)))
    }
}

/// The ranges of slots that the node which calls itself `myself` has: the ninth word on of its line, without those in
/// brackets, which tell of slots under way.
fn own(nodes: &str) -> impl Iterator<Item = (u16, u16)> + '_ {
    let myself = |line: &&str| {
        let flags = line.split(' ').nth(2).unwrap_or_default();
        flags.split(',').any(|flag| flag == "myself")
    };
    let words = nodes
        .lines()
        .find(myself)
        .into_iter()
        .flat_map(|line| line.split(' ').skip(8));
    words.filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    })
}
