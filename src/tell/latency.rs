//! The server's latency monitor: what the module keeps others waiting for. The server would take every sample, also while
//! its monitor is off.

use crate::ffi::api::{self, Ctx};
use libc::{clock_gettime, timespec, CLOCK_THREAD_CPUTIME_ID};
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

/// How much processor time this thread has used; none while nobody wants to know. What others on the machine make it wait is
/// not the module's doing, and looks like it on a machine that has too much to do.
pub fn processor_time() -> Option<Duration> {
    if THRESHOLD_MS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to the structure that it is given, and to nothing else.
    let told = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut now) };
    (told == 0).then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// Tells how much processor time something took that began then.
pub fn sample_since(event: &CStr, began: Option<Duration>) {
    if let Some((began, now)) = began.zip(processor_time()) {
        sample(event, now.saturating_sub(began));
    }
}

/// Tells how long something took.
pub fn sample(event: &CStr, took: Duration) {
    let threshold = THRESHOLD_MS.load(Ordering::Relaxed);
    if threshold > 0 && took.as_millis() >= u128::from(threshold) {
        api::latency(event, took);
    }
}
