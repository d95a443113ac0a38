//! The client's way to the primary of a lock: by the Sentinels, by the cluster's nodes, or by the operator.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use dlock_evidence::group::ask_sentinel;
use dlock_harness::cluster::SLOTS;
use dlock_harness::redis::{from_redis_value, Value};
use dlock_harness::Party;
use fastrand::Rng;

use crate::link::{Link, Reply};

/// The bound of a question about the way.
const BOUND: Duration = Duration::from_millis(500);

/// A client's knowledge of the way.
pub trait Route: Send {
    /// Returns the server for requests about this key.
    fn port_of(&mut self, key: &str) -> Option<u16>;
    /// Notes that a server has redirected the slot there.
    fn moved(&mut self, slot: usize, port: u16);
    /// Notes that this server did not answer, or is no primary.
    fn forget(&mut self, port: u16);
}

/// By three Sentinels. A client on the island of a cut-off primary reaches no Sentinel and keeps its knowledge.
pub struct BySentinel {
    pub sentinels: Vec<u16>,
    pub on_island: bool,
    /// Whether there is an island now.
    pub island: Arc<AtomicBool>,
    /// The number of times that the Sentinels have announced another primary: a client that learns of it goes there.
    pub told: Arc<AtomicUsize>,
    pub heard: usize,
    pub known: Option<u16>,
}

impl BySentinel {
    fn is_cut_off(&self) -> bool {
        self.on_island && self.island.load(Ordering::Relaxed)
    }
}

impl Route for BySentinel {
    fn port_of(&mut self, _: &str) -> Option<u16> {
        let told = self.told.load(Ordering::Relaxed);
        if told != self.heard && !self.is_cut_off() {
            (self.heard, self.known) = (told, None);
        }
        if self.known.is_none() {
            self.known = self.sentinels.iter().find_map(|port| ask_sentinel(*port));
        }
        self.known
    }

    fn moved(&mut self, _: usize, _: u16) {}

    fn forget(&mut self, port: u16) {
        if self.known == Some(port) && !self.is_cut_off() {
            self.known = None;
        }
    }
}

/// By the operator. A client on the island keeps its earlier knowledge.
pub struct Pointed {
    pub lead: Arc<AtomicU16>,
    pub on_island: bool,
    /// Whether there is an island now.
    pub island: Arc<AtomicBool>,
    pub known: u16,
}

impl Route for Pointed {
    fn port_of(&mut self, _: &str) -> Option<u16> {
        if !(self.on_island && self.island.load(Ordering::Relaxed)) {
            self.known = self.lead.load(Ordering::Relaxed);
        }
        Some(self.known)
    }

    fn moved(&mut self, _: usize, _: u16) {}

    fn forget(&mut self, _: u16) {}
}

/// By the table of slots of any node, and by MOVED.
pub struct ByCluster {
    pub nodes: Vec<u16>,
    pub party: Party,
    pub slots: Vec<u16>,
    pub random: Rng,
}

impl ByCluster {
    pub fn new(nodes: Vec<u16>, party: Party, random: Rng) -> ByCluster {
        ByCluster {
            nodes,
            party,
            slots: Vec::new(),
            random,
        }
    }

    fn refresh(&mut self, but: Option<u16>) {
        self.random.shuffle(&mut self.nodes);
        let nodes = self.nodes.iter().filter(|port| Some(**port) != but);
        let party = self.party;
        if let Some(slots) = nodes.copied().find_map(|port| slots_of(party, port)) {
            self.slots = slots;
        }
    }
}

impl Route for ByCluster {
    fn port_of(&mut self, key: &str) -> Option<u16> {
        if self.slots.is_empty() {
            self.refresh(None);
        }
        let port = self.slots.get(slot_of(key)).copied();
        port.filter(|port| *port > 0)
    }

    fn moved(&mut self, slot: usize, port: u16) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = port;
        }
    }

    fn forget(&mut self, port: u16) {
        self.refresh(Some(port));
    }
}

/// Returns the table of slots of a node; 0 where no node serves.
pub fn slots_of(party: Party, port: u16) -> Option<Vec<u16>> {
    let mut link = Link::connect(party, port)?;
    let Reply::Value(Value::Array(ranges)) = link.call(&["CLUSTER", "SLOTS"], BOUND) else {
        return None;
    };
    let mut slots = vec![0; SLOTS];
    for range in ranges {
        let Value::Array(range) = range else {
            return None;
        };
        let [first, last, Value::Array(primary), ..] = range.as_slice() else {
            return None;
        };
        let first: usize = from_redis_value(first).ok()?;
        let last: usize = from_redis_value(last).ok()?;
        let at: u16 = from_redis_value(primary.get(1)?).ok()?;
        slots.get_mut(first..=last)?.fill(at);
    }
    Some(slots)
}

/// Returns the slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it.
pub fn slot_of(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let part = match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    };
    let crc = part.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    });
    usize::from(crc) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::slot_of;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("{123456789}x"), 0x31C3);
        assert_eq!(slot_of("a{123456789}{x}"), 0x31C3);
        assert_ne!(slot_of("{}x"), slot_of("{}y"));
    }
}
