//! The server's latency monitor: what the module keeps others waiting for. The server would take every sample, also while
//! its monitor is off.

use super::api::{self, Ctx};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From how many milliseconds on the operator wants to know; 0: not at all.
static THRESHOLD_MS: AtomicU64 = AtomicU64::new(0);

/// Reads the server's setting: at load, and whenever its configuration changes.
pub fn refresh(ctx: *mut Ctx) {
    let setting = api::setting(ctx, c"latency-monitor-threshold");
    let threshold = setting.and_then(|value| value.parse().ok());
    THRESHOLD_MS.store(threshold.unwrap_or(0), Ordering::Relaxed);
}

/// Tells how long something took.
pub fn sample(event: &CStr, took: Duration) {
    let threshold = THRESHOLD_MS.load(Ordering::Relaxed);
    if threshold > 0 && took.as_millis() >= u128::from(threshold) {
        api::latency(event, took);
    }
}
