//! First steps and questions of many tests, in a word: alice holds the lock `k`, and others wait for it.

use redis::Value;

use crate::scenes::blocked::Blocked;
use crate::servers::server::Server;
use crate::talk::ask::{Ask, Grant};
use crate::talk::wire::Wire;

/// Returns a server where alice holds `k` for longer than any test lasts, her connection, and her token.
#[track_caller]
pub fn held() -> (Server, Wire, u64) {
    let server = Server::start();
    let mut alice = server.connection();
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000");
    (server, alice, token)
}

/// Starts a waiter for `k` without bound, which then holds it for longer than any test lasts.
#[track_caller]
pub fn wait_as(server: &Server, owner: &str) -> Blocked {
    Blocked::start(server, &format!("DLOCK.ACQUIRE k {owner} 600000 BLOCK 0"))
}

/// Starts a waiter with a ticket.
#[track_caller]
pub fn fair_as(server: &Server, owner: &str) -> Blocked {
    Blocked::start(
        server,
        &format!("DLOCK.FAIRACQUIRE k {owner} 600000 BLOCK 0"),
    )
}

/// Sends lines at once, and asserts that none is refused. Between them nothing happens except the server's own work within a turn
/// of its event loop. A lease that is cut short in the line before a pause ends in the pause, however slow the machine.
#[track_caller]
pub fn at_once<const N: usize>(server: &Server, lines: [&str; N]) -> [Value; N] {
    let replies = server.connection().batch(lines);
    let mut lines = lines.into_iter();
    replies.map(|reply| {
        let line = lines.next().unwrap_or_default();
        reply.unwrap_or_else(|error| panic!("{line:?} was refused: {error}"))
    })
}

/// Asserts that locks can be taken, waited for and handed over.
#[track_caller]
pub fn assert_hands_over(server: &Server, connection: &mut Wire) {
    let (first, _): Grant = connection.ask("DLOCK.ACQUIRE sound alice 600000");
    let bob = Blocked::start(server, "DLOCK.ACQUIRE sound bob 600000 BLOCK 0");
    connection.run("DLOCK.RELEASE sound alice");
    let (second, _): Grant = bob.reply();
    assert!(second > first);
    connection.run("DLOCK.RELEASE sound bob");
}

/// Returns an owner's place in a lock's queue.
#[track_caller]
pub fn position(connection: &mut Wire, key: &str, owner: &str) -> Option<u64> {
    connection.ask(&format!("DLOCK.POSITION {key} {owner}"))
}

/// Returns true if an owner holds a lock.
#[track_caller]
pub fn is_held(connection: &mut Wire, key: &str, owner: &str) -> bool {
    let hold: Option<Vec<u64>> = connection.ask(&format!("DLOCK.HELD {key} {owner}"));
    hold.is_some()
}

/// Returns the stored bytes of a key, and when it expires: unix milliseconds, -1 for never, -2 without a key.
#[track_caller]
pub fn kept(connection: &mut Wire, key: &str) -> (String, i64) {
    let digest: Vec<String> = connection.ask(&format!("DEBUG DIGEST-VALUE {key}"));
    let end = connection.ask(&format!("PEXPIRETIME {key}"));
    (digest.concat(), end)
}

/// Returns one of the module's numbers: `INFO dlock` shows it with `dlock_` before its name.
#[track_caller]
pub fn stat(server: &Server, name: &str) -> u64 {
    server.info("dlock").number(&format!("dlock_{name}"))
}
