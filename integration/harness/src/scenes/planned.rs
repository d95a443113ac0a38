//! A planned failover under Sentinel, as `docs/cluster.md` says.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{ConnectionLike, FromRedisValue};

use crate::machine::patience::{await_until, PATIENCE};
use crate::servers::sentinel::{Sentinel, PRIMARY};
use crate::servers::server::Server;
use crate::talk::ask::{command, reply_of, Ask};

const PAGE: &str = include_str!("../../../../docs/cluster.md");

/// Has a replica take over from `primary` in the page's way for this server, and waits until the Sentinel names it.
///
/// # Panics
/// If a line fails, or no other server is named.
#[track_caller]
pub fn fail_over(primary: &Server, sentinel: &Sentinel) {
    if primary.version().is_valkey(9, 0) {
        assert!(PAGE.contains("`SENTINEL FAILOVER mymaster COORDINATED`"));
        coordinate(primary, sentinel);
    } else {
        type_lines(primary, sentinel);
    }
    let end = Instant::now() + PATIENCE;
    while sentinel.primary() == primary.port() {
        assert!(Instant::now() < end, "nobody took over: {}", sentinel.log());
        sleep(Duration::from_millis(1));
    }
}

/// Asks the Sentinel until another server is the primary. It refuses while it has not asked the replicas since their start, and
/// while a failover is under way; on a slow machine one can end without a change.
#[track_caller]
fn coordinate(primary: &Server, sentinel: &Sentinel) {
    let line = format!("SENTINEL FAILOVER {PRIMARY} COORDINATED");
    let end = Instant::now() + 2 * PATIENCE;
    while sentinel.primary() == primary.port() {
        assert!(Instant::now() < end, "nobody took over: {}", sentinel.log());
        let sent = sentinel.connection().try_ask(&line);
        let pause = Instant::now() + PATIENCE / 2;
        while sentinel.primary() == primary.port() && sent.is_ok() && Instant::now() < pause {
            sleep(Duration::from_millis(1));
        }
    }
}

/// Types the page's lines for servers that cannot coordinate it. These have no password.
#[track_caller]
fn type_lines(primary: &Server, sentinel: &Sentinel) {
    let (_, block) = PAGE
        .split_once("```sh\nexport REDISCLI_AUTH=secret\n")
        .expect("the lines");
    let lines = block.split("```").next().unwrap_or_default();
    let at = |port: u16| format!("127.0.0.1 -p {port}");
    let lines = lines
        .replace("10.0.0.1 -p 6379", &at(primary.port()))
        .replace("10.0.0.1 -p 26379", &at(sentinel.port()))
        .replace("mymaster", PRIMARY);
    let done = Command::new("sh").args(["-ec", &lines]).output();
    let done = done.expect("there is a shell");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && !said.contains("ERR"), "{done:?}");
}

/// Returns the reply to a line. Sentinel ends the connections of clients when it changes a role; then another one asks.
///
/// # Panics
/// If the reply is an error.
#[track_caller]
pub fn steadily<T: FromRedisValue>(server: &Server, line: &str) -> T {
    let mut reply = None;
    await_until("the server answers", PATIENCE, || {
        reply = server.connection().req_command(&command(line)).ok();
        reply.is_some()
    });
    let reply = reply_of(reply.expect("a reply"));
    let reply = reply.unwrap_or_else(|error| panic!("{line}: {error}"));
    T::from_redis_value(&reply).expect("what was asked for")
}
