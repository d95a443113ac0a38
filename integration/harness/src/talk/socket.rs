//! The data that the kernel has received for a server that does not read it yet.

use std::fs;

use crate::machine::patience::{await_until, PATIENCE};

/// The server's end of a TCP connection, as Linux shows it.
struct Socket {
    is_open: bool,
    unread: bool,
}

/// Returns the end at `port` of the connection from `peer`, both on the loopback interface; none if there is no such end, or
/// no longer.
fn find(port: u16, peer: u16) -> Option<Socket> {
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let ends = (
        format!("0100007F:{port:04X}"),
        format!("0100007F:{peer:04X}"),
    );
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let found = words.next() == Some(&ends.0) && words.next() == Some(&ends.1);
        let state = words.next().filter(|_| found)?;
        let unread = words.next()?.split(':').nth(1)?;
        Some(Socket {
            is_open: state == "01",
            unread: unread.bytes().any(|digit| digit != b'0'),
        })
    })
}

/// Waits until data from `peer` has arrived at `port` that the server there has not read. The kernel is mostly faster than the
/// sender, but need not be. Does nothing where the kernel does not show it.
#[track_caller]
pub(super) fn await_arrival(port: u16, peer: u16) {
    if cfg!(target_os = "linux") {
        await_until("it has arrived", PATIENCE, || {
            find(port, peer).is_some_and(|socket| socket.unread)
        });
    }
}

/// Waits until the end of the connection from `peer` has arrived at `port`.
#[track_caller]
pub(super) fn await_end(port: u16, peer: u16) {
    if cfg!(target_os = "linux") {
        await_until("the end has arrived", PATIENCE, || {
            !find(port, peer).is_some_and(|socket| socket.is_open)
        });
    }
}
