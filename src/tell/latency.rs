//! Samples for the server's latency monitor. The server would take every sample, even while its monitor is off.

use crate::ffi::ctx::Ctx;
use crate::ffi::server;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The operator's threshold; 0: the monitor is off.
static THRESHOLD_MS: AtomicU64 = AtomicU64::new(0);

/// Reads the server's setting: at load, and whenever its configuration changes.
pub(crate) fn refresh(ctx: Ctx) {
    let setting = ctx.setting(c"latency-monitor-threshold");
    let threshold = setting.and_then(|value| value.parse().ok());
    THRESHOLD_MS.store(threshold.unwrap_or(0), Ordering::Relaxed);
}

/// Returns how much processor time this thread has used; none while the monitor is off. Elapsed time would include the waits that
/// other processes cause on a busy machine.
pub(crate) fn processor_time() -> Option<Duration> {
    if THRESHOLD_MS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    server::thread_time()
}

/// Reports the processor time since `began`.
pub(crate) fn sample_since(event: &CStr, began: Option<Duration>) {
    if let Some((began, now)) = began.zip(processor_time()) {
        sample(event, now.saturating_sub(began));
    }
}

/// Reports a duration, if it reaches the threshold.
pub(crate) fn sample(event: &CStr, took: Duration) {
    let threshold = THRESHOLD_MS.load(Ordering::Relaxed);
    if threshold > 0 && took.as_millis() >= u128::from(threshold) {
        server::add_latency_sample(event, took);
    }
}
