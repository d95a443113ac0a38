//! The slots of a node of a cluster, as `CLUSTER NODES` shows them, and which of those that matter have left it.

use super::hash_slot::{of, SLOTS};

/// A node's slots.
#[derive(Debug, Clone, Default)]
pub struct Own {
    ranges: Vec<(u16, u16)>,
    /// The highest epoch of any node. A node that takes a slot over raises it, unless its own is the highest already.
    epoch: u64,
    /// Those of them that are migrating to another node.
    leaving: Vec<u16>,
    /// Those that are migrating here, and are still another node's.
    coming: Vec<u16>,
}

/// The slots in which a client waits for a lock, or a hold is tied to a connection, and a few more: a slot stays until a check
/// finds that it has left, or nobody waits and nothing is tied anywhere.
#[derive(Debug)]
pub struct Awaited {
    slots: Vec<bool>,
    // The highest epoch at the last check.
    epoch: u64,
}

/// The awaited slots that have left the node.
#[derive(Debug)]
pub struct Left {
    /// The awaited slots whose locks can no longer be here.
    slots: Vec<bool>,
    /// Whether a slot may have left and come back since the last check.
    pub returned: bool,
}

impl Default for Awaited {
    /// Begins with every slot.
    fn default() -> Self {
        Awaited {
            slots: vec![true; usize::from(SLOTS)],
            epoch: 0,
        }
    }
}

impl Awaited {
    /// Notes the key's slot.
    pub fn note(&mut self, key: &[u8]) {
        if let Some(noted) = self.slots.get_mut(usize::from(of(key))) {
            *noted = true;
        }
    }

    /// Notes every slot: locks have arrived that no command here has named.
    pub fn note_all(&mut self) {
        self.slots.fill(true);
    }

    /// Forgets every slot: nobody waits, and nothing is tied.
    pub fn clear(&mut self) {
        self.slots.fill(false);
    }

    /// Takes out the slots that have left this node. Only where a slot is now counts, not an earlier check: a slot can arrive, be
    /// waited for and leave between two checks.
    pub fn take_left(&mut self, own: &Own) -> Left {
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
    pub fn is_empty(&self) -> bool {
        !self.slots.contains(&true)
    }

    /// Returns true if the key's slot has left.
    pub fn has(&self, key: &[u8]) -> bool {
        self.slots.get(usize::from(of(key))) == Some(&true)
    }
}

impl Own {
    /// Returns all slots: a node of which nothing is known serves them.
    pub fn all() -> Own {
        Own {
            ranges: vec![(0, SLOTS - 1)],
            epoch: 0,
            leaving: Vec::new(),
            coming: Vec::new(),
        }
    }

    /// Reads the slots of the node with the flag `myself`: from the ninth word of its line on, with migrating slots in brackets.
    pub fn read(nodes: &str) -> Own {
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

    /// Returns true if this key's slot is migrating to another node.
    pub fn leaves(&self, key: &[u8]) -> bool {
        self.leaving.contains(&of(key))
    }

    /// Returns true if this key's slot is migrating here, and is still another node's.
    pub fn comes(&self, key: &[u8]) -> bool {
        self.coming.contains(&of(key))
    }

    /// Returns true if this key's slot is one of them.
    pub fn serves(&self, key: &[u8]) -> bool {
        let slot = of(key);
        let has = |(first, last): &(u16, u16)| (*first..=*last).contains(&slot);
        self.ranges.iter().any(has)
    }
}
