//! Turns the operator's settings into the engine's policy and the channel for observers.

use super::config::{self, Notify, Number};
use crate::node::replicas;
use crate::node::time::clock;
use dlock_commands::Defaults;
use dlock_engine::{Policy, SteadyMs};
use std::sync::atomic::Ordering;

/// How unlock messages go out (`dlock.notify`, with `auto` resolved).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Not at all.
    None,
    /// PUBLISH.
    Plain,
    /// PUBLISH, in a cluster: the cluster carries it to replicas.
    PlainInCluster,
    /// SPUBLISH, on a channel in the lock's slot.
    Sharded,
}

/// What follows from the settings, worked out when one changes and not with each event.
pub(crate) struct Settings {
    epoch: u64,
    /// What requests that leave something out get.
    pub defaults: Defaults,
    /// How unlock messages go out.
    pub channel: Channel,
    /// Whether the server is a node of a cluster.
    pub cluster: bool,
    /// How many databases the server has.
    pub databases: u32,
    // How many replicas are to confirm answers.
    replicas: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            epoch: 0,
            defaults: Defaults { lease_ms: 0 },
            channel: Channel::Plain,
            cluster: false,
            databases: 16,
            replicas: 0,
        }
    }
}

impl Settings {
    /// Has everything worked out anew by the next refresh, and a quarantine begun.
    pub(crate) fn begin(&mut self) {
        self.epoch = 0;
    }

    /// Brings itself and the engine's policy up to date; returns whether anything had changed. `since` is when this server began to
    /// decide.
    pub(crate) fn refresh(&mut self, policy: &mut Policy, since: SteadyMs) -> bool {
        let epoch = config::EPOCH.load(Ordering::Relaxed);
        if self.epoch == epoch {
            return false;
        }
        self.read(policy, since, epoch);
        true
    }

    #[cold]
    fn read(&mut self, policy: &mut Policy, since: SteadyMs, epoch: u64) {
        let begins = self.epoch == 0;
        self.epoch = epoch;
        let value = |number: &Number| number.value.load(Ordering::Relaxed).max(0) as u64;
        self.defaults = Defaults {
            lease_ms: value(&config::DEFAULT_LEASE_MS),
        };
        self.channel = match (config::NOTIFY.current(), self.cluster) {
            (Notify::none, _) => Channel::None,
            (Notify::auto | Notify::pubsub, false) => Channel::Plain,
            (Notify::pubsub, true) => Channel::PlainInCluster,
            (Notify::auto, true) | (Notify::sharded, _) => Channel::Sharded,
        };
        let quarantine = value(&config::QUARANTINE_MS);
        let confirms = replicas::on();
        let before = std::mem::replace(&mut self.replicas, config::REPLICAS.amount());
        if before != self.replicas {
            replicas::on_setting_changed(before);
        }
        let standing = replicas::snapshot_for_policy(clock::read().steady());
        // A setting that comes later cuts a quarantine short, but begins none: the server has not just been started.
        let until = match quarantine {
            _ if confirms => replicas::confirm_blackout_until(),
            0 => SteadyMs(0),
            _ if begins => since.after(quarantine),
            _ => policy.quarantine_until.min(since.after(quarantine)),
        };
        let max_lease = value(&config::MAX_LEASE_MS);
        *policy = Policy {
            max_lease_ms: match quarantine {
                0 => max_lease,
                _ => max_lease.min(quarantine),
            },
            max_restored_ms: max_lease,
            max_claim_ms: value(&config::MAX_CLAIM_MS),
            claim_window_ms: value(&config::CLAIM_WINDOW_MS),
            max_queue: config::MAX_QUEUE.amount(),
            max_waiters: config::MAX_WAITERS.amount(),
            max_places: config::MAX_PLACES.amount(),
            max_holders: config::MAX_HOLDERS.amount(),
            max_hold_ms: value(&config::MAX_HOLD_MS),
            deadlock_detection: config::DEADLOCK_DETECTION.load(Ordering::Relaxed),
            deadlock_max_steps: config::DEADLOCK_MAX_STEPS.amount(),
            grants: config::GRANTS.load(Ordering::Relaxed),
            quarantine_until: until,
            replicas_needed: standing.needed,
            replicas_counting: match confirms {
                true => standing.counting,
                false => 0,
            },
        };
    }
}
