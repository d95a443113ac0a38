//! What the server answers without a context, and what the machine answers.

use super::api::{api, OK};
use libc::{clock_gettime, timespec, CLOCK_THREAD_CPUTIME_ID};
use redis_module::raw;
use std::ffi::{c_int, c_void, CStr};
use std::ptr;
use std::time::Duration;

/// Returns true if nothing may reach replicas now: the server is paused, fails over or shuts down.
pub(crate) fn avoids_replica_traffic() -> bool {
    // SAFETY: takes nothing.
    unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// Adds a sample to the server's latency monitor.
pub(crate) fn add_latency_sample(event: &CStr, took: Duration) {
    // SAFETY: the server copies the name.
    unsafe {
        api!(RedisModule_LatencyAddSample(
            event.as_ptr(),
            took.as_millis() as i64
        ))
    };
}

/// Returns true if the connection with this client id exists.
pub(crate) fn connected(client: u64) -> bool {
    // SAFETY: without a structure to fill in, the server only looks the id up.
    unsafe { api!(RedisModule_GetClientInfoById(ptr::null_mut(), client)) == OK }
}

/// Returns the server's data of the connection with this client id.
fn info(client: u64) -> Option<raw::RedisModuleClientInfo> {
    // SAFETY: all-zero is a value of this structure, which is the server's, with the version that says which.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = std::mem::zeroed();
        info.version = raw::REDISMODULE_CLIENTINFO_VERSION as u64;
        let found = api!(RedisModule_GetClientInfoById(
            ptr::from_mut(&mut info).cast(),
            client
        ));
        (found == OK).then_some(info)
    }
}

/// Returns true if the connection with this client id has subscriptions.
pub(crate) fn subscribes(client: u64) -> bool {
    let pubsub = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_PUBSUB);
    info(client).is_some_and(|info| info.flags & pubsub != 0)
}

/// Returns the host and the port that a connection comes from.
pub(crate) fn address(client: u64) -> Option<(String, u16)> {
    let info = info(client)?;
    // SAFETY: the server has written a C string there.
    let host = unsafe { CStr::from_ptr(info.addr.as_ptr()) };
    Some((host.to_string_lossy().into_owned(), info.port))
}

/// Returns true if the server publishes keyspace events of the module class (`notify-keyspace-events` has a `d`).
pub(crate) fn notifies_of_modules() -> bool {
    // SAFETY: takes nothing.
    let classes = unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) };
    classes & raw::REDISMODULE_NOTIFY_MODULE as c_int != 0
}

/// Returns true if the server gives modules its own time (since Redis 7.2).
pub(crate) fn tells_time() -> bool {
    // SAFETY: a pointer that the server has set before this and never changes.
    unsafe { raw::RedisModule_CachedMicroseconds }.is_some()
}

/// Returns the server's own time, which does not advance within MULTI and scripts: microseconds of the wall clock.
pub(crate) fn cached_time_us() -> Option<u64> {
    // SAFETY: as above; the function takes nothing.
    unsafe { raw::RedisModule_CachedMicroseconds.map(|cached| cached() as u64) }
}

/// Returns the processor's time-stamp counter; none where its rate is not known.
pub(crate) fn tsc() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register that every processor of this architecture has.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Returns how much processor time this thread has used.
pub(crate) fn thread_time() -> Option<Duration> {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to the structure that it is given, and to nothing else.
    let told = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut now) };
    (told == 0).then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// Returns the file that the server has loaded the module from.
pub(crate) fn own_path() -> Option<&'static CStr> {
    // SAFETY: all-zero is a value of this structure. The function fills it in for an address within this library, whose name
    // stays as long as the library does.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(own_path as *const c_void, &mut found) != 0;
        (known && !found.dli_fname.is_null()).then(|| CStr::from_ptr(found.dli_fname))
    }
}
