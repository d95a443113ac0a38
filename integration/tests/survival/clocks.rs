//! Steps of the wall clock: what lasts so long goes on as if there were none, and leases follow it.
//!
//! Each server has a wall clock of its own, which is stepped by an hour while it runs; those that cannot step are the machine's.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dlock_integration::redis::{from_redis_value, Connection, FromRedisValue, Value};
use dlock_integration::{
    assert_hands_over, assert_sound, await_until, is_held, stat, Ask, Blocked, Clock, Grant,
    Queued, Server, Subscriber, PATIENCE,
};

const HOUR_MS: i64 = 3_600_000;

/// Both ways in which a clock can step.
const STEPS: [i64; 2] = [HOUR_MS, -HOUR_MS];

/// A lease that no step ends: ten days.
const LONG_MS: u64 = 864_000_000;

/// A lease that ends within a step: half an hour.
const LEASE_MS: u64 = 1_800_000;

/// A wait, or a window, that is over soon; and a wait that is not.
const SHORT_MS: u64 = 2_000;
const LATER_MS: u64 = 20_000;

/// A quarantine that lasts beyond a step.
const QUARANTINE_MS: u64 = 12_000;

/// Times on a server are whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(2);

type Fields = HashMap<String, Value>;

fn field<T: FromRedisValue>(fields: &Fields, name: &str) -> T {
    from_redis_value(&fields[name]).expect("a field of that type")
}

/// What DLOCK.INFO shows of a lock, and that it is no contradiction: neither in itself, nor to what else is said of that lock
/// in the same moment.
#[track_caller]
fn look(c: &mut Connection, key: &str) -> (Vec<Fields>, Vec<Fields>) {
    for line in ["MULTI", &format!("DLOCK.INFO {key}")] {
        c.run(line);
    }
    c.run(&format!("DLOCK.HELD {key}"));
    let (info, held): (Fields, Option<Vec<Value>>) = c.ask("EXEC");
    let holders: Vec<Fields> = field(&info, "holders");
    let queue: Vec<Fields> = field(&info, "queue");
    let state: String = field(&info, "state");
    assert_eq!(field::<usize>(&info, "held"), holders.len(), "{info:?}");
    assert_eq!(field::<usize>(&info, "queued"), queue.len(), "{info:?}");
    assert_eq!(held.is_some(), !holders.is_empty(), "{held:?}, {info:?}");
    assert_eq!(state == "held", !holders.is_empty(), "{info:?}");
    for holder in &holders {
        assert!(field::<i64>(holder, "lease-ms") > 0, "{info:?}");
    }
    (holders, queue)
}

/// Nobody who is there waits for a lock that nobody holds.
#[track_caller]
fn assert_served(holders: &[Fields], queue: &[Fields]) {
    if let (true, Some(head)) = (holders.is_empty(), queue.first()) {
        assert_eq!(field::<String>(head, "kind"), "absent", "{queue:?}");
    }
}

/// The places of a queue last as long as was asked, and have lasted as long as that was ago.
#[track_caller]
fn assert_durations(queue: &[Fields], asked_ms: u64, asked: Instant) {
    let since = asked.elapsed() + ROUNDED;
    for place in queue {
        let (waited, left): (u64, u64) = (field(place, "waited-ms"), field(place, "left-ms"));
        assert!(waited <= since.as_millis() as u64, "{place:?}");
        assert!(left <= asked_ms, "{place:?}");
        assert!(left + since.as_millis() as u64 >= asked_ms, "{place:?}");
    }
}

#[test]
fn a_wait_lasts_as_long_as_was_asked() {
    for step in STEPS {
        let (server, clock) = Clock::server();
        let mut c = server.connection();
        for key in ["k", "j", "later"] {
            c.run(&format!("DLOCK.ACQUIRE {key} holder {LONG_MS}"));
        }
        let told = Subscriber::channels(&server, &["told"]);
        let asked = Instant::now();
        let later = Blocked::start(
            &server,
            &format!("DLOCK.FAIRACQUIRE later ann BLOCK {LATER_MS}"),
        );
        let begin = Instant::now();
        let waits = [
            "DLOCK.ACQUIRE k ann BLOCK",
            "DLOCK.FAIRACQUIRE k ben CLAIM 1 BLOCK",
            "DLOCK.MACQUIRE 2 j k cyd BLOCK",
        ]
        .map(|line| Blocked::send(&server, &format!("{line} {SHORT_MS}")));
        let line = format!("DLOCK.ACQUIRE k dan NOTIFY told BLOCK {SHORT_MS}");
        let (_, _, id): Queued = c.ask(&line);
        await_until("all wait, or have waited", PATIENCE, || {
            let queued = look(&mut c, "k").1.len();
            queued == 4 || begin.elapsed() > Duration::from_millis(SHORT_MS)
        });

        clock.step(&mut c, step);
        assert_durations(&look(&mut c, "k").1, SHORT_MS, begin);
        assert_durations(&look(&mut c, "later").1, LATER_MS, asked);
        let shortest = begin + Duration::from_millis(SHORT_MS) - ROUNDED;
        for wait in waits {
            let (outcome, at) = wait.outcome_at();
            assert_eq!(outcome, Ok(Value::Nil), "step {step}");
            assert!(at >= shortest, "step {step}");
        }
        assert_eq!(told.payload(), format!("timeout 0 1:k 3:dan {id}"));
        assert!(Instant::now() >= shortest, "step {step}");
        assert_durations(&look(&mut c, "later").1, LATER_MS, asked);
        later.kill();
        assert_hands_over(&server, &mut c);
        assert_sound(&server);
    }
}

#[test]
fn a_claim_window_lasts_as_long_as_was_asked() {
    for step in STEPS {
        let (server, clock) = Clock::server();
        let mut c = server.connection();
        c.run(&format!("DLOCK.ACQUIRE k holder {LONG_MS}"));
        let begin = Instant::now();
        c.run(&format!("DLOCK.FAIRACQUIRE k gone CLAIM {SHORT_MS}"));
        let next = Blocked::start(&server, &format!("DLOCK.ACQUIRE k next {LONG_MS} BLOCK 0"));
        c.run("DLOCK.RELEASE k holder");

        clock.step(&mut c, step);
        let (_, queue) = look(&mut c, "k");
        let absent = |place: &&Fields| field::<String>(place, "kind") == "absent";
        let absent: Vec<Fields> = queue.iter().filter(absent).cloned().collect();
        assert_durations(&absent, SHORT_MS, begin);
        let (outcome, at) = next.outcome_at();
        assert!(outcome.is_ok(), "step {step}: {outcome:?}");
        assert!(
            at >= begin + Duration::from_millis(SHORT_MS) - ROUNDED,
            "step {step}"
        );
        assert_sound(&server);
    }
}

/// The quarantine after a start lasts as long as was set: neither does a step forward end it, nor one back prolong it.
#[test]
fn a_quarantine_lasts_as_long_as_was_set() {
    for step in STEPS {
        let (mut server, clock) = Clock::server();
        let mut c = server.connection();
        c.run(&format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}"));
        c.run("CONFIG REWRITE");
        let earliest = Instant::now();
        server.restart();
        let latest = Instant::now();
        let mut c = server.connection();
        let wait = Blocked::start(&server, "DLOCK.ACQUIRE k ann 1000 BLOCK 0");
        clock.step(&mut c, step);
        // Right after the step, and once the module has seen it.
        assert_quarantine(&mut c, earliest, latest);
        await_step(&server, 1);
        assert_quarantine(&mut c, earliest, latest);
        let (outcome, at) = wait.outcome_at();
        assert!(outcome.is_ok(), "step {step}: {outcome:?}");
        let shortest = earliest + Duration::from_millis(QUARANTINE_MS);
        assert!(at >= shortest, "step {step}");
        assert_sound(&server);
    }
}

/// A quarantine that began between these moments lasts, and as long as was set.
#[track_caller]
fn assert_quarantine(c: &mut Connection, earliest: Instant, latest: Instant) {
    let left = |began: Instant| {
        let passed = (began.elapsed() + ROUNDED).as_millis() as u64;
        QUARANTINE_MS.saturating_sub(passed)
    };
    let most = left(latest) + 2 * ROUNDED.as_millis() as u64;
    let refusal = c.refusal("DLOCK.ACQUIRE free ben 1000");
    let told = refusal
        .strip_suffix(" ms")
        .and_then(|told| told.rsplit(' ').next());
    let told: Option<u64> = told.and_then(|told| told.parse().ok());
    let least = left(earliest);
    assert!(
        told.is_some_and(|told| (least..=most).contains(&told)),
        "{refusal}"
    );
}

/// Whoever holds a lock, by a lease that a step of an hour ends.
#[test]
fn after_a_step_forward_the_next_in_line_has_the_lock() {
    let (server, clock) = Clock::server();
    let mut c = server.connection();
    let lines = [
        ("k", ""),
        ("unasked", ""),
        ("session", "SESSION"),
        ("auto", ""),
    ];
    for (key, options) in lines {
        c.run(&format!("DLOCK.ACQUIRE {key} old {LEASE_MS} {options}"));
    }
    c.run(&format!("DLOCK.RENEW auto old {LEASE_MS} AUTO 0"));
    c.run(&format!("DLOCK.ACQUIRE others old {LONG_MS}"));
    let keys = ["k", "session", "auto"];
    let next = keys.map(|key| {
        let line = format!("DLOCK.ACQUIRE {key} next {LONG_MS} BLOCK 0");
        (key, Blocked::start(&server, &line))
    });
    let (last, _): Grant = c.ask(&format!("DLOCK.ACQUIRE last old {LEASE_MS}"));
    // It begins right before the step, so that the grants come within this time if they come before its end.
    let later = Blocked::start(
        &server,
        &format!("DLOCK.ACQUIRE others next BLOCK {LATER_MS}"),
    );

    clock.step(&mut c, HOUR_MS);
    // Only who looks at once sees it free and kept for the head of the queue: after any command all is served.
    let (holders, _) = look(&mut c, "k");
    let owners = holders.iter().map(|hold| field::<String>(hold, "owner"));
    assert!(
        owners.into_iter().all(|owner| owner == "next"),
        "{holders:?}"
    );
    let lost = c.refusal("DLOCK.RENEW unasked old");
    assert!(lost.starts_with("NOTHELD"), "{lost}");
    assert!(!is_held(&mut c, "last", "old"));
    for (key, next) in &next {
        await_until(&format!("{key} is handed over"), PATIENCE, || {
            let (holders, queue) = look(&mut c, key);
            assert_served(&holders, &queue);
            let held = holders.iter().any(|hold| {
                let owner: String = field(hold, "owner");
                // Its lease is over: whatever is shown, it is not this hold.
                assert_eq!(owner, "next", "{holders:?}, {queue:?}");
                true
            });
            held && queue.is_empty()
        });
        let (token, _): Grant = next.reply();
        assert!(token > last);
        let lost = c.refusal(&format!("DLOCK.RELEASE {key} old"));
        assert!(lost.starts_with("NOTHELD"), "{lost}");
    }
    assert_eq!(later.outcome_within(Duration::ZERO), None);
    await_step(&server, 1);
    assert_sound(&server);
}

#[test]
fn after_a_step_back_leases_last_longer_and_all_goes_on() {
    let (server, clock) = Clock::server();
    let mut c = server.connection();
    let begin = Instant::now();
    let (token, _): Grant = c.ask(&format!("DLOCK.ACQUIRE k old {LEASE_MS}"));
    let mut dies = server.wire();
    dies.ask::<Grant>(&format!("DLOCK.ACQUIRE session old {LEASE_MS} SESSION"));
    let line = format!("DLOCK.ACQUIRE session next {LEASE_MS} BLOCK 0");
    let heir = Blocked::start(&server, &line);
    let next = ["ann", "ben"].map(|owner| {
        let line = format!("DLOCK.ACQUIRE k {owner} {LEASE_MS} BLOCK 0");
        Blocked::start(&server, &line)
    });

    clock.step(&mut c, -HOUR_MS);
    let (holders, queue) = look(&mut c, "k");
    assert_eq!(queue.len(), 2);
    let left: u64 = field(&holders[0], "lease-ms");
    let longer = LEASE_MS + HOUR_MS as u64;
    assert!(left <= longer);
    let least = (begin.elapsed() + ROUNDED).as_millis() as u64;
    assert!(left + least >= longer, "{left}");
    // Tokens rise all the same.
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

/// The module has seen and logged so many steps.
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
