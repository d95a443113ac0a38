//! Since when places have existed, over all queues.

use std::collections::BTreeMap;

/// The width of a group of places: the age of the oldest is exact to within this much.
const GROUP_US: u64 = 1_000_000;

/// The beginnings of all places, in groups of a second. A place is counted in its group and knows nothing of it, so that the
/// oldest is found without searching any queue, and a mass of places that came together costs one entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ages {
    groups: BTreeMap<u64, Group>,
}

/// The places that began within one second.
#[derive(Debug, Clone)]
struct Group {
    // The earliest that was ever counted here. It may have gone, while another of its second is still there.
    first_us: u64,
    places: usize,
}

impl Ages {
    /// Counts a place that began at this time.
    pub(crate) fn add(&mut self, since_us: u64) {
        let group = self.groups.entry(since_us / GROUP_US).or_insert(Group {
            first_us: since_us,
            places: 0,
        });
        group.first_us = group.first_us.min(since_us);
        group.places += 1;
    }

    /// Takes a place out that began at this time.
    pub(crate) fn remove(&mut self, since_us: u64) {
        let key = since_us / GROUP_US;
        let Some(group) = self.groups.get_mut(&key) else {
            return;
        };
        group.places -= 1;
        if group.places == 0 {
            self.groups.remove(&key);
        }
    }

    /// Returns when the oldest place began, or up to a second before that; none if there is no place.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.groups
            .first_key_value()
            .map(|(_, group)| group.first_us)
    }
}
