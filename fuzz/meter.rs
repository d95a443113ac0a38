//! The memory that reading bytes takes: no more than in proportion to the bytes, whatever they claim to be.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes of memory for each byte read. The smallest holder takes 6 bytes, and stands in three ordered maps.
const FACTOR: usize = 128;

/// Bytes of memory in addition, whatever is read.
const BASE: usize = 4_096;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a meter.
struct Metered;

#[global_allocator]
static METERED: Metered = Metered;

// SAFETY: every call is passed on as it came; the counters are plain numbers of this thread, which need no memory.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.get().wrapping_add(layout.size());
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // Memory that was allocated before the meter was set may be freed after it.
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        System.dealloc(start, layout);
    }
}

/// Reads the bytes.
///
/// # Panics
/// When that took more memory than it may.
pub fn bounded(bytes: &[u8], read: fn(&[u8]) -> bool) {
    LIVE.set(0);
    PEAK.set(0);
    read(bytes);
    let (peak, most) = (PEAK.get(), BASE + FACTOR * bytes.len());
    assert!(peak <= most, "{} bytes took {peak} to read", bytes.len());
}
