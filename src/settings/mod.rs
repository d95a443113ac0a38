//! The operator's settings (`config`), and the engine's policy and the observers' channel, which follow from them.

pub(crate) mod config;
pub(crate) mod rule;

use crate::node::gate;
use config::{Notify, Number};
use dlock_confirm::{Gate, Status};
use dlock_engine::{Millis, Policy, SteadyMs};
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

/// Values that follow from the settings, computed when one changes and not with each event.
pub(crate) struct Settings {
    epoch: u64,
    /// The lease of a request that leaves it out.
    pub default_lease_ms: Millis,
    /// How unlock messages go out.
    pub channel: Channel,
    /// How many databases the server has.
    pub databases: u32,
}

/// The conditions of the policy that are not settings.
pub(crate) struct Situation {
    /// Since when this server is a primary.
    pub since: SteadyMs,
    /// When the quarantine ends by the present policy.
    pub quarantine_until: SteadyMs,
    /// What it does after its start or its own full resynchronisation, with `dlock.replicas`.
    pub gate: Gate<u64>,
    /// The replicas that confirm answers.
    pub replicas: Status,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            epoch: 0,
            default_lease_ms: 0,
            channel: Channel::Plain,
            databases: 16,
        }
    }
}

impl Settings {
    /// Makes the next refresh compute everything again, and begin a quarantine.
    pub(crate) fn begin(&mut self) {
        self.epoch = 0;
    }

    /// Returns true if a setting has changed since they were read.
    pub(crate) fn are_outdated(&self) -> bool {
        self.epoch != config::EPOCH.load(Ordering::Relaxed)
    }

    /// Computes everything again; returns the engine's policy.
    pub(crate) fn read(&mut self, now: Situation) -> Policy {
        let begins = self.epoch == 0;
        self.epoch = config::EPOCH.load(Ordering::Relaxed);
        let value = |number: &Number| number.value.load(Ordering::Relaxed).max(0) as u64;
        self.default_lease_ms = value(&config::DEFAULT_LEASE_MS);
        self.channel = match (config::notify(), gate::in_cluster()) {
            (Notify::none, _) => Channel::None,
            (Notify::auto | Notify::pubsub, false) => Channel::Plain,
            (Notify::pubsub, true) => Channel::PlainInCluster,
            (Notify::auto, true) | (Notify::sharded, _) => Channel::Sharded,
        };
        let (terms, quarantine) = (rule::terms(), value(&config::QUARANTINE_MS));
        // A later setting shortens a quarantine, but begins none: the server has not just been started.
        let until = match quarantine {
            _ if terms.on() => SteadyMs(now.gate.closed_until),
            0 => SteadyMs(0),
            _ if begins => now.since.after(quarantine),
            _ => now.quarantine_until.min(now.since.after(quarantine)),
        };
        let max_lease = value(&config::MAX_LEASE_MS);
        Policy {
            max_lease_ms: terms.longest_lease(max_lease),
            max_restored_ms: max_lease,
            max_claim_ms: value(&config::MAX_CLAIM_MS),
            claim_window_ms: value(&config::CLAIM_WINDOW_MS),
            max_queue: config::MAX_QUEUE.amount(),
            max_waiters: config::MAX_WAITERS.amount(),
            max_places: config::MAX_PLACES.amount(),
            max_holders: config::MAX_HOLDERS.amount(),
            max_sessions: config::MAX_SESSIONS.amount(),
            max_hold_ms: value(&config::MAX_HOLD_MS),
            deadlock_detection: config::DEADLOCK_DETECTION.load(Ordering::Relaxed),
            deadlock_max_steps: config::DEADLOCK_MAX_STEPS.amount(),
            grants: now.gate.grants && config::GRANTS.load(Ordering::Relaxed),
            log_max_len: config::LOG_MAX_LEN.amount(),
            log_slower_than_ms: u64::try_from(
                config::LOG_SLOWER_THAN_MS.value.load(Ordering::Relaxed),
            )
            .ok(),
            quarantine_until: until,
            replicas_needed: now.replicas.needed,
            replicas_counting: now.replicas.counting,
        }
    }
}
