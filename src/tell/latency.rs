//! The server's latency monitor: what the module keeps others waiting for. The server would take every sample, also while
//! its monitor is off.

use crate::ffi::ctx::Ctx;
use crate::ffi::server;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From how many milliseconds on the operator wants to know; 0: not at all.
static THRESHOLD_MS: AtomicU64 = AtomicU64::new(0);

/// Reads the server's setting: at load, and whenever its configuration changes.
pub(crate) fn refresh(ctx: Ctx) {
    let setting = ctx.setting(c"latency-monitor-threshold");
    let threshold = setting.and_then(|value| value.parse().ok());
    THRESHOLD_MS.store(threshold.unwrap_or(0), Ordering::Relaxed);
}

/// How much processor time this thread has used; none while nobody wants to know. What others on the machine make it wait is
/// not the module's doing, and looks like it on a machine that has too much to do.
pub(crate) fn processor_time() -> Option<Duration> {
    if THRESHOLD_MS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    server::thread_time()
}

/// Tells how much processor time something took that began then.
pub(crate) fn sample_since(event: &CStr, began: Option<Duration>) {
    if let Some((began, now)) = began.zip(processor_time()) {
        sample(event, now.saturating_sub(began));
    }
}

/// Tells how long something took.
pub(crate) fn sample(event: &CStr, took: Duration) {
    let threshold = THRESHOLD_MS.load(Ordering::Relaxed);
    if threshold > 0 && took.as_millis() >= u128::from(threshold) {
        server::add_latency_sample(event, took);
    }
}
