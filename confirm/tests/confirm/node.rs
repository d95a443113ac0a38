//! A server as INFO shows it.

use dlock_confirm::{Links, Rule, Status, Terms};
use std::ffi::CStr;

/// The quarantine, in milliseconds.
pub const QUARANTINE: u64 = 10_000;

/// A server: its INFO, and the rule's state.
pub struct Node {
    pub terms: Terms<u64>,
    pub links: Links,
    pub now: u64,
    /// What `slave0`, `slave1` … show: port, state, acknowledged offset.
    pub slaves: Vec<(u16, &'static str, u64)>,
    pub offset: u64,
    pub fulls: u64,
    pub partials: u64,
}

impl Node {
    /// Starts a primary with `dlock.replicas`, long ago.
    pub fn primary(rule: Rule, replicas: u32) -> Node {
        let mut node = Node::starting(rule, replicas, true);
        node.now += 100 * QUARANTINE;
        node.links.standing.take_notice(&node.terms);
        node
    }

    /// Starts a server now.
    pub fn starting(rule: Rule, replicas: u32, primary: bool) -> Node {
        let terms = Terms {
            rule,
            replicas,
            quarantine: QUARANTINE,
            primary,
        };
        let mut node = Node {
            terms,
            links: Links::default(),
            now: 1_000,
            slaves: Vec::new(),
            offset: 0,
            fulls: 0,
            partials: 0,
        };
        node.links.standing.begin(&terms, node.now);
        node.links.on_setting(&terms, node.now);
        node.read();
        node
    }

    /// Reads INFO.
    pub fn read(&mut self) {
        let slave = |(at, slave): (usize, &(u16, &str, u64))| {
            let (port, state, offset) = slave;
            format!("slave{at}:ip=127.0.0.1,port={port},state={state},offset={offset},lag=0")
        };
        let mut info = vec![
            format!("connected_slaves:{}", self.slaves.len()),
            format!("master_repl_offset:{}", self.offset),
            format!("sync_full:{}", self.fulls),
            format!("sync_partial_ok:{}", self.partials),
        ];
        info.extend(self.slaves.iter().enumerate().map(slave));
        let fields = |name: &CStr| {
            let mut fields = info.iter().filter_map(|line| line.split_once(':'));
            let name = name.to_str().ok()?;
            fields.find_map(|(known, text)| (known == name).then_some(text))
        };
        self.links.read(&self.terms, &fields, self.now);
        self.links.read_joins(&self.terms, &fields, self.now);
        self.links.end_reading(&self.terms);
    }

    /// Lets a replica join by a partial resynchronisation.
    pub fn joins_partially(&mut self, port: u16) {
        self.partials += 1;
        self.slaves.push((port, "online", self.offset));
        self.read();
    }

    /// Lets a replica join by a full resynchronisation: the server lists it for a while before it is online.
    pub fn joins_fully(&mut self, port: u16) {
        self.fulls += 1;
        self.slaves.push((port, "wait_bgsave", 0));
        self.read();
        self.is_online(port);
    }

    /// Lets a replica be online that has joined by a full resynchronisation.
    pub fn is_online(&mut self, port: u16) {
        for slave in self.slaves.iter_mut().filter(|slave| slave.0 == port) {
            *slave = (port, "online", self.offset);
        }
        self.read();
    }

    /// Lets a replica's link end.
    pub fn leaves(&mut self, port: u16) {
        self.slaves.retain(|slave| slave.0 != port);
        self.read();
    }

    pub fn status(&self) -> Status {
        self.links.status(&self.terms, self.now)
    }

    /// Returns how many replicas count.
    pub fn counting(&self) -> u32 {
        self.status().counting
    }

    /// Returns true if the server grants a lock.
    pub fn grants(&self) -> bool {
        let gate = self.links.standing.gate(&self.terms, self.now);
        gate.grants && gate.closed_until <= self.now
    }

    /// Returns true if the server renews a hold.
    pub fn renews(&self) -> bool {
        self.links.standing.gate(&self.terms, self.now).closed_until <= self.now
    }
}
