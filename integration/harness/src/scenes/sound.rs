//! The check that a server came through without a fault of its own.

use crate::servers::server::Server;
use crate::talk::ask::Ask;

/// Texts that no log may contain: the server's crash report, its complaints about data from a module or a primary, and the
/// module's own report of an internal fault.
const FAULTS: [&str; 6] = [
    "BUG REPORT",
    "ASSERTION FAILED",
    "CRITICAL",
    "internal fault",
    "panicked",
    "Bad file format",
];

/// Asserts that the server answers, and has logged no fault.
#[track_caller]
pub fn assert_sound(server: &Server) {
    assert_eq!(server.connection().ask::<String>("PING"), "PONG");
    assert_sound_log(server);
}

/// Asserts that the server, which may have ended, has logged no fault.
#[track_caller]
pub fn assert_sound_log(server: &Server) {
    let log = server.log();
    let fault = log
        .lines()
        .find(|line| FAULTS.iter().any(|fault| line.contains(fault)));
    assert_eq!(fault, None);
}
