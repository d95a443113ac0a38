//! The settings that a conversation changes.

use dlock_engine::{Millis, Policy, SteadyMs};

/// Changes a setting, as `config` says. Returns whether there is one of that name.
pub fn configure(policy: &mut Policy, name: &str, value: &str, now: SteadyMs) -> bool {
    let number = value.parse::<u64>().unwrap_or(0);
    match name {
        "grants" => policy.grants = value == "yes",
        "claim-window-ms" => policy.claim_window_ms = number,
        "max-lease-ms" => (policy.max_lease_ms, policy.max_restored_ms) = (number, number),
        "max-hold-ms" => policy.max_hold_ms = number,
        "max-queue" => policy.max_queue = number as usize,
        "max-places" => policy.max_places = number as usize,
        "max-waiters" => policy.max_waiters = number as usize,
        "max-holders" => policy.max_holders = number as usize,
        "deadlock-detection" => policy.deadlock_detection = value == "yes",
        "deadlock-max-steps" => policy.deadlock_max_steps = number as usize,
        // New leases may be no longer than the quarantine.
        "quarantine-ms" => {
            let longest = if number == 0 { Millis::MAX } else { number };
            policy.max_lease_ms = policy.max_restored_ms.min(longest);
        }
        "quarantine" => policy.quarantine_until = now.after(number),
        _ => return false,
    }
    true
}
