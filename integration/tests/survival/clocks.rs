//! Steps of a running wall clock are noticed, counted and logged, and everything continues. `tests/scenarios/clock.txt` has the
//! effects on waits, windows and leases, to the millisecond, by a frozen clock.
//!
//! The server has a wall clock of its own, which steps by an hour while it runs; the clocks that cannot step are the machine's.
#![cfg(target_os = "linux")]

use dlock_harness::redis::Value;
use dlock_harness::{
    assert_hands_over, assert_sound, await_until, stat, Ask, Blocked, Clock, Grant, Server,
    PATIENCE,
};

const HOUR_MS: i64 = 3_600_000;

/// A lease that ends within a step: half an hour.
const LEASE_MS: u64 = 1_800_000;

#[test]
fn after_a_step_back_leases_last_longer_and_all_goes_on() {
    let (server, clock) = Clock::server();
    let mut c = server.connection();
    let (token, _): Grant = c.ask(&format!("DLOCK.ACQUIRE k old {LEASE_MS}"));
    let mut dies = server.connection();
    dies.ask::<Grant>(&format!("DLOCK.ACQUIRE ephemeral old {LEASE_MS} EPHEMERAL"));
    let line = format!("DLOCK.ACQUIRE ephemeral next {LEASE_MS} BLOCK 0");
    let heir = Blocked::start(&server, &line);
    let next = ["ann", "ben"].map(|owner| {
        let line = format!("DLOCK.ACQUIRE k {owner} {LEASE_MS} BLOCK 0");
        Blocked::start(&server, &line)
    });

    clock.step(&mut c, -HOUR_MS);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k old");
    let longer = LEASE_MS + HOUR_MS as u64;
    assert!(left <= longer && left > longer - LEASE_MS, "{left}");
    // Tokens rise nevertheless.
    dies.close();
    let (second, _): Grant = heir.reply();
    c.run("DLOCK.RELEASE k old");
    let (third, _): Grant = next[0].reply();
    assert!(token < second && second < third);
    let null: Value = c.ask("DLOCK.ACQUIRE k cyd BLOCK 1");
    assert_eq!(null, Value::Nil);
    assert_hands_over(&server, &mut c);
    await_step(&server, 1);
    // A lease that has begun since then follows the clock as well.
    clock.step(&mut c, HOUR_MS);
    let (fourth, _): Grant = next[1].reply();
    assert!(third < fourth);
    await_step(&server, 2);
    assert_sound(&server);
}

/// Waits until the module has noticed and logged `count` steps.
#[track_caller]
fn await_step(server: &Server, count: u64) {
    await_until("the step is counted", PATIENCE, || {
        stat(server, "clock_steps_total") == count
    });
    assert_eq!(
        server.log().matches("the wall clock stepped by").count() as u64,
        count
    );
}
