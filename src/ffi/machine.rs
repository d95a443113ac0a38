//! What the machine answers, not the server.

use libc::{clock_gettime, timespec, CLOCK_THREAD_CPUTIME_ID};
use std::ffi::{c_void, CStr};
use std::time::Duration;

/// The processor's time-stamp counter; none where it is not known how fast it runs.
pub(crate) fn tsc() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register that every processor of this architecture has.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// How much processor time this thread has used.
pub(crate) fn thread_time() -> Option<Duration> {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to the structure that it is given, and to nothing else.
    let told = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut now) };
    (told == 0).then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// The file that the server has loaded the module from.
pub(crate) fn own_path() -> Option<&'static CStr> {
    // SAFETY: all-zero is a value of this structure. The function fills it in for an address within this library, whose name
    // stays as long as the library does.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(own_path as *const c_void, &mut found) != 0;
        (known && !found.dli_fname.is_null()).then(|| CStr::from_ptr(found.dli_fname))
    }
}
