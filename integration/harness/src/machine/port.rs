//! Free ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which systems choose the local ports of outgoing connections (32768 and up on Linux, 49152 and up
/// elsewhere): a client of another test must not occupy the port of a server that is about to restart.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// The number of ports that are tried.
const TRIES: u32 = 1_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a port on which no process listened a moment ago. It may be taken by the time it is used: then the caller asks for
/// another.
pub fn free() -> u16 {
    // Concurrent test processes start at different places.
    let offset = process::id().wrapping_mul(7_919);
    for _ in 0..TRIES {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + offset.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("the range ends below 65536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on 127.0.0.1 among {TRIES} tried");
}
