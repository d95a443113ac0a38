//! Has a server come through without a fault of its own?

use crate::servers::server::Server;
use crate::talk::ask::Ask;

/// What no log may contain: the server's crash report and its complaints about what a module or a primary sent, and the
/// module's own report of an internal fault.
const FAULTS: [&str; 6] = [
    "BUG REPORT",
    "ASSERTION FAILED",
    "CRITICAL",
    "internal fault",
    "panicked",
    "Bad file format",
];

/// The server answers, and has logged no fault.
#[track_caller]
pub fn assert_sound(server: &Server) {
    assert_eq!(server.connection().ask::<String>("PING"), "PONG");
    assert_sound_log(server);
}

/// The server, which may have ended, has logged no fault.
#[track_caller]
pub fn assert_sound_log(server: &Server) {
    let log = server.log();
    let fault = log
        .lines()
        .find(|line| FAULTS.iter().any(|fault| line.contains(fault)));
    assert_eq!(fault, None);
}
