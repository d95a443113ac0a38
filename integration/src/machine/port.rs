//! Free ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which systems choose the local ports of outgoing connections (32768 and up on
/// Linux, 49152 and up elsewhere): a client of another test must not sit on the port of a server that is
/// about to be restarted.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// How many ports are tried before we say that there is none.
const TRIES: u32 = 1_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port that nobody listened on a moment ago. It may be taken by the time it is used: then
/// another has to be asked for.
pub fn free() -> u16 {
    // Test processes that run at the same time start at different places.
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
