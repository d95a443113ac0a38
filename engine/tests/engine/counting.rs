//! Counters and times: numbers by name, percentiles, the most contended locks.

use crate::client::Client;
use crate::random::{for_seeds, Random};
use crate::server::Server;
use crate::world::{name, Op, World};
use dlock_commands::error::Error;
use dlock_commands::look::stats::sections;
use dlock_commands::{Census, Reply};
use dlock_engine::counters::{Hot, Times, Top};
use dlock_engine::{Engine, Name, NameRef, Now, Policy, SteadyMs};
use std::collections::{BTreeMap, HashMap};

fn send(world: &mut World, client: u64, line: &str) -> Result<Reply, Error> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    world.send(Client::connection(client), 0, &words)
}

/// Returns the answer to STATS, by name.
fn stats(world: &mut World, line: &str) -> BTreeMap<&'static str, u64> {
    match send(world, 99, line) {
        Ok(Reply::Map(fields)) => fields
            .into_iter()
            .map(|(name, value)| match value {
                Reply::Integer(number) => (name, number),
                other => panic!("{name}: {other:?}"),
            })
            .collect(),
        other => panic!("{line}: {other:?}"),
    }
}

/// Runs the lines (a number lets milliseconds pass, `dies 1` ends a connection), and checks that exactly these numbers have risen, apart
/// from those of `dlock_times`.
#[track_caller]
fn check(lines: &[&str], risen: &[(&str, u64)]) {
    let mut world = World::new(Policy::default());
    for (client, line) in lines.iter().enumerate() {
        let dies = line.strip_prefix("dies ");
        match (line.parse(), dies.and_then(|client| client.parse().ok())) {
            (Ok(ms), _) => world.pass(ms),
            (_, Some(client)) => world.dies(client),
            _ => drop(send(&mut world, client as u64 + 1, line)),
        }
    }
    let after = stats(&mut world, "STATS");
    let timed = |name: &str| name.starts_with("wait") || name.starts_with("hold_");
    let counted: Vec<(&str, u64)> = after
        .iter()
        .filter(|(name, value)| **value > 0 && !timed(name) && **name != "holds_total")
        .map(|(name, value)| (*name, *value))
        .collect();
    let mut risen = risen.to_vec();
    risen.sort_unstable();
    assert_eq!(counted, risen, "{lines:?}");
}

#[test]
fn each_thing_that_happens_is_counted_under_its_name() {
    let taken = [("grants_immediate_total", 1), ("holders", 1)];
    let with = |lines: &[&str], more: &[(&'static str, u64)]| {
        let mut all: BTreeMap<&str, u64> = taken.into_iter().collect();
        all.extend(more.iter().copied());
        all.retain(|_, value| *value > 0);
        let all: Vec<_> = all.into_iter().collect();
        check(&[&["ACQUIRE k a 1000"], lines].concat(), &all);
    };
    with(&[], &[]);
    with(&["ACQUIRE k a"], &[("reentries_total", 1)]);
    with(&["ACQUIRE k b"], &[("null_replies_total", 1)]);
    with(&["RENEW k a"], &[("renewals_total", 1)]);
    with(&["RELEASE k a"], &[("released_total", 1), ("holders", 0)]);
    with(&["ACQUIRE k a", "RELEASE k a"], &[("reentries_total", 1)]);
    with(&["FORCERELEASE k"], &[("forced_total", 1), ("holders", 0)]);
    with(&["CHECK k 1"], &[("fenced_total", 1)]);
    with(&["GUARD k 1 SET x 1"], &[("fenced_total", 1)]);
    with(&["ACQUIRE k b BLOCK 0"], &[("places_queued", 1)]);
    with(&["ACQUIRE k b BLOCK 10", "10"], &[("timeouts_total", 1)]);
    // A wait in slices is one wait, until nobody has asked for the window of its ticket, or it is cancelled.
    let slice = "FAIRACQUIRE k b BLOCK 10 CLAIM 50";
    let waits = [("places_queued", 1), ("oldest_wait_ms", 20)];
    with(&[slice, "10", slice, "10"], &waits);
    with(&[slice, "10", slice, "70"], &[("timeouts_total", 1)]);
    with(&[slice, "10", "CANCEL k b"], &[("timeouts_total", 1)]);
    with(
        &["ACQUIRE k b BLOCK 0", "RELEASE k a"],
        &[("grants_waited_total", 1), ("released_total", 1)],
    );
    with(
        &["ACQUIRE k b BLOCK 0", "1000"],
        &[("grants_waited_total", 1), ("expired_total", 1)],
    );
    with(
        &["ACQUIRE k b BLOCK 0", "ACQUIRE k b BLOCK 0"],
        &[("places_queued", 1), ("replaced_total", 1)],
    );
    check(
        &["ACQUIRE k a 1000 EPHEMERAL", "dies 1"],
        &[("grants_immediate_total", 1), ("closed_total", 1)],
    );
    let reader = "ACQUIRE r a SHARED";
    check(
        &[reader, "ACQUIRE r a"],
        &[
            ("grants_immediate_total", 1),
            ("holders", 1),
            ("upgrades_total", 1),
        ],
    );
    let readers = [("grants_immediate_total", 2), ("holders", 2)];
    check(
        &[reader, "ACQUIRE r b SHARED", "ACQUIRE r a"],
        &[&readers[..], &[("null_replies_total", 1)]].concat(),
    );
    check(
        &[
            reader,
            "ACQUIRE r b SHARED",
            "ACQUIRE r a BLOCK 0",
            "ACQUIRE r b BLOCK 0",
        ],
        &[
            &readers[..],
            &[("places_queued", 1), ("deadlocks_total", 1)],
        ]
        .concat(),
    );
}

/// A refusal counts once, whether it answers a request at once or one that waited.
#[test]
fn each_refusal_is_counted_by_its_reason() {
    let check = |policy: Policy, lines: &[&str], counted: &[(&str, u64)]| {
        let mut world = World::new(policy);
        for (client, line) in lines.iter().enumerate() {
            match line.split_once(' ') {
                Some(("grants", "no")) => world.configure(|policy| policy.grants = false),
                Some(("rename", key)) => {
                    let (from, to) = key.split_once(' ').expect("two keys");
                    world.rename(name(0, from), name(0, to));
                }
                Some(("set", key)) => world.alter(Op::Overwrite(name(0, key))),
                _ => drop(send(&mut world, client as u64 + 1, line)),
            }
        }
        let after = stats(&mut world, "STATS");
        let reasons = |field: &str| {
            field.starts_with("refused_") || ["deadlocks_total", "fenced_total"].contains(&field)
        };
        let seen: Vec<(&str, u64)> = after
            .into_iter()
            .filter(|(field, value)| reasons(field) && *value > 0)
            .collect();
        assert_eq!(seen, counted, "{lines:?}");
    };
    let usual = Policy::default;
    let quarantine = || Policy {
        quarantine_until: SteadyMs(1_000),
        ..usual()
    };
    let narrow = || Policy {
        max_queue: 1,
        ..usual()
    };
    for line in ["ACQUIRE k a", "FAIRACQUIRE k a", "MACQUIRE 2 k l a"] {
        check(quarantine(), &[line], &[("refused_quarantine_total", 1)]);
        let lines = ["grants no", line];
        check(usual(), &lines, &[("refused_drained_total", 1)]);
    }
    check(
        narrow(),
        &["ACQUIRE k a", "FAIRACQUIRE k b", "FAIRACQUIRE k c"],
        &[("refused_queuefull_total", 1)],
    );
    for line in [
        "RELEASE k a",
        "RENEW k a",
        "DOWNGRADE k a SHARED",
        "MRENEW 1 k a",
    ] {
        check(usual(), &[line], &[("refused_notheld_total", 1)]);
    }
    // Refusals of waiting requests.
    check(
        usual(),
        &[
            "ACQUIRE k a SHARED",
            "ACQUIRE k b SHARED",
            "ACQUIRE k a BLOCK 0",
            "FORCERELEASE k a",
        ],
        &[("refused_notheld_total", 1)],
    );
    check(
        usual(),
        &["ACQUIRE k a", "ACQUIRE k b BLOCK 0", "set k", "ACQUIRE k c"],
        &[("refused_wrongtype_total", 2)],
    );
    check(
        usual(),
        &[
            "ACQUIRE k a",
            "ACQUIRE l b",
            "ACQUIRE l a BLOCK 0",
            "ACQUIRE k b BLOCK 0",
        ],
        &[("deadlocks_total", 1)],
    );
    check(usual(), &["CHECK k 1"], &[("fenced_total", 1)]);
    // A wrong argument is no refusal.
    check(usual(), &["ACQUIRE k a 0", "RELEASE k"], &[]);
}

#[test]
fn a_quarantine_and_a_drained_server_are_seen() {
    let mut world = World::new(Policy {
        quarantine_until: SteadyMs(1_000),
        ..Policy::default()
    });
    let now = |world: &mut World| {
        let seen = stats(world, "STATS");
        ["quarantined", "quarantine_left_ms", "drained"].map(|field| seen[field])
    };
    assert_eq!(now(&mut world), [1, 1_000, 0]);
    world.pass(999);
    assert_eq!(now(&mut world), [1, 1, 0]);
    world.pass(1);
    assert_eq!(now(&mut world), [0, 0, 0]);
    world.configure(|policy| policy.grants = false);
    assert_eq!(now(&mut world), [0, 0, 1]);
}

#[test]
fn a_reset_begins_anew_but_for_what_is_now() {
    let mut world = World::new(Policy::default());
    for line in [
        "ACQUIRE k a",
        "ACQUIRE other a",
        "ACQUIRE k b BLOCK 0",
        "RELEASE k a",
        "ACQUIRE k c BLOCK 0",
    ] {
        drop(send(&mut world, 1, line));
    }
    let before = stats(&mut world, "STATS");
    assert_eq!(stats(&mut world, "STATS RESET"), before);
    let left: Vec<_> = stats(&mut world, "STATS")
        .into_iter()
        .filter(|(_, value)| *value > 0)
        .collect();
    assert_eq!(left, [("holders", 2), ("places_queued", 1)]);
    assert_eq!(send(&mut world, 1, "TOP"), Ok(Reply::Array(vec![])));
    // A script has no user: it may not reset the server's statistics, but it may read these.
    let script = |world: &mut World, words: &[&[u8]]| world.send(Client::script(1), 0, words);
    let refused = script(&mut world, &[b"STATS", b"RESET"]);
    assert_eq!(
        refused,
        Err(Error::NoPermission("dlock.stats reset".into()))
    );
    assert!(matches!(script(&mut world, &[b"STATS"]), Ok(Reply::Map(_))));
}

#[test]
fn waits_and_holds_are_timed() {
    let mut world = World::new(Policy::default());
    for line in ["ACQUIRE k a 100000", "ACQUIRE k b 5000 BLOCK 0"] {
        drop(send(&mut world, 1, line));
    }
    world.pass(2000);
    drop(send(&mut world, 1, "RELEASE k a"));
    // The lease of b runs out; then c's place is given up, and that time is no wait for a lock.
    drop(send(&mut world, 2, "ACQUIRE k c BLOCK 3000"));
    world.pass(3000);
    drop(send(&mut world, 2, "ACQUIRE k d BLOCK 0"));
    world.pass(2000);
    let times = stats(&mut world, "STATS");
    let times: Vec<u64> = [
        "waits_total",
        "wait_us_total",
        "wait_max_us",
        "holds_total",
        "hold_us_total",
        "hold_max_us",
    ]
    .into_iter()
    .map(|name| times[name])
    .collect();
    // The token clock separates places and grants of one instant by a microsecond each.
    let near = |value: u64, about: u64| assert!(value.abs_diff(about) <= 10, "{times:?}");
    assert_eq!((times[0], times[3]), (2, 2));
    near(times[1], 4_000_000);
    near(times[2], 2_000_000);
    near(times[4], 7_000_000);
    near(times[5], 5_000_000);
    // To a hundredth: the median, and what 99 and 99.9 percent did not exceed.
    let times = stats(&mut world, "STATS");
    for (name, us) in [
        ("waits_total", 2),
        ("wait_us_total", 4_000_000),
        ("wait_p50_us", 2_000_000),
        ("wait_p99_us", 2_000_000),
        ("wait_p999_us", 2_000_000),
        ("holds_total", 2),
        ("hold_us_total", 7_000_000),
        ("hold_p50_us", 2_000_000),
        ("hold_p99_us", 5_000_000),
        ("hold_p999_us", 5_000_000),
    ] {
        assert!(times[name].abs_diff(us) <= us / 100, "{name}: {times:?}");
    }
}

/// The oldest wait is one that still continues, of any kind. It begins and ends with its place, even if its owner asks again
/// meanwhile.
#[test]
fn the_oldest_wait_is_one_that_goes_on() {
    let mut world = World::new(Policy::default());
    let oldest = |world: &mut World| stats(world, "STATS")["oldest_wait_ms"];
    drop(send(&mut world, 1, "ACQUIRE k a 100000"));
    drop(send(&mut world, 1, "ACQUIRE l a 100000"));
    assert_eq!(oldest(&mut world), 0);
    drop(send(&mut world, 2, "FAIRACQUIRE k b CLAIM 20000"));
    world.pass(3_000);
    drop(send(&mut world, 3, "ACQUIRE l c BLOCK 30000"));
    world.pass(4_000);
    assert_eq!(oldest(&mut world), 7_000);
    // An absent ticket that is asked for again is as old as before.
    drop(send(&mut world, 2, "FAIRACQUIRE k b CLAIM 2000"));
    assert_eq!(oldest(&mut world), 7_000);
    // Its window ends: the other is the oldest now.
    world.pass(2_500);
    assert_eq!(oldest(&mut world), 6_500);
    // Two of one second: when the first has gone, the answer is too high by what lies between them.
    drop(send(&mut world, 4, "ACQUIRE l d BLOCK 0"));
    world.pass(400);
    drop(send(&mut world, 5, "ACQUIRE k e BLOCK 0"));
    drop(send(&mut world, 9, "CANCEL l c"));
    world.pass(100);
    assert_eq!(oldest(&mut world), 500);
    drop(send(&mut world, 9, "CANCEL l d"));
    assert_eq!(oldest(&mut world), 500);
    drop(send(&mut world, 9, "CANCEL k e"));
    assert_eq!(oldest(&mut world), 0);
}

/// A session with 10,000 rows that its program has not seen begins again. Its places stay, and its holds no longer belong to a
/// session.
#[test]
fn a_session_that_owes_too_much_begins_anew() {
    let mut world = World::new(Policy::default());
    let id = |world: &mut World| match send(world, 1, "SESSION k s 600000") {
        Ok(Reply::Array(reply)) => reply[0].clone(),
        other => panic!("{other:?}"),
    };
    let first = id(&mut world);
    drop(send(&mut world, 1, "ACQUIRE held s/0 600000 IN s"));
    drop(send(&mut world, 1, "ACQUIRE held s/w 600000 BLOCK 0 IN s"));
    for at in 0..5_000 {
        drop(send(
            &mut world,
            1,
            &format!("ACQUIRE k s/{at}# 60000 IN s"),
        ));
        drop(send(&mut world, 1, "FORCERELEASE k"));
    }
    assert_eq!(id(&mut world), first);
    drop(send(&mut world, 1, "ACQUIRE k s/x 60000 IN s"));
    drop(send(&mut world, 1, "FORCERELEASE k"));
    assert_ne!(id(&mut world), first);
    let after = stats(&mut world, "STATS");
    for (name, value) in [
        ("sessions_begun_anew_total", 1),
        ("session_rows", 0),
        ("auto_renewed", 0),
        ("places_queued", 1),
    ] {
        assert_eq!(after[name], value, "{name}: {after:?}");
    }
}

#[test]
fn confirmations_are_timed() {
    let mut world = World::new(Policy::default());
    for us in [100, 200, 5_000] {
        world.primary.engine.confirmed(&[], us);
    }
    let times = stats(&mut world, "STATS");
    for (name, value) in [
        ("confirmed_total", 3),
        ("confirmation_us_total", 5_300),
        ("confirmation_max_us", 5_000),
        ("confirmation_p50_us", 200),
        ("confirmation_p99_us", 5_000),
        ("confirmation_p999_us", 5_000),
    ] {
        let near = times[name].abs_diff(value) <= value / 100;
        assert!(near, "{name}: {times:?}");
    }
}

/// Numbers that only a server changes, and the test that sees each of them rise.
const OF_A_SERVER: &[(&str, &[&str])] = &[
    ("tests/servers/counts.txt", &["locks", "eviction_possible"]),
    ("tests/servers/lists.txt", &["connections_waiting"]),
    (
        "tests/servers/sessions.txt",
        &["sessions", "sessions_not_alive", "session_rows"],
    ),
    (
        "tests/servers/auto.txt",
        &["auto_renewed", "ephemeral", "auto_renewals_total"],
    ),
    (
        "tests/servers/deadlocks.txt",
        &["deadlock_checks_deferred_total"],
    ),
    (
        "integration/tests/around/poisoned.rs",
        &["invariants_broken"],
    ),
    ("integration/tests/locks/masses.rs", &["removed_total"]),
    ("integration/tests/keys/removal.rs", &["evicted_total"]),
    (
        "integration/tests/survival/clocks.rs",
        &["clock_steps_total"],
    ),
    (
        "integration/tests/survival/confirmed.rs",
        &[
            "refused_noack_total",
            "replicas_needed",
            "replicas_counting",
            "replicas_connected",
            "replicas_joined_partial",
            "replicas_joined_full",
            "replicas_too_many",
            "replicas_too_few",
            "closed",
            "closed_too_few",
            "closed_left_ms",
            "joins_count_late_ms",
            "confirmations_waiting",
            "unconfirmed_total",
        ],
    ),
];

/// Returns true if a test of this file, or the one that `OF_A_SERVER` names, reads this number; one that ends in `_total` with a
/// value above 0.
fn is_read(field: &str) -> bool {
    let listed = OF_A_SERVER.iter();
    if let Some((file, _)) = listed.clone().find(|(_, fields)| fields.contains(&field)) {
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect(&path);
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        return words.any(|word| word == field || word.strip_prefix("dlock_") == Some(field));
    }
    let quoted = format!("\"{field}\"");
    let mut after = include_str!("counting.rs").split(&quoted).skip(1);
    match field.ends_with("_total") {
        true => after.any(|text| {
            let value = text.strip_prefix(", ");
            value.is_some_and(|value| value.starts_with(|c| ('1'..='9').contains(&c)))
        }),
        false => after.next().is_some(),
    }
}

#[test]
fn every_number_is_read_by_a_test() {
    let mut world = World::new(Policy::default());
    let now = world.now;
    let sections = sections(world.engine(), &Census::default(), now);
    let fields = sections.iter().flat_map(|section| &section.fields);
    let unread: Vec<&str> = fields
        .map(|(name, _)| *name)
        .filter(|name| !is_read(name))
        .collect();
    assert!(unread.is_empty(), "no test reads {unread:?}");
    // It misses what nobody reads.
    assert!(!is_read(&["no_such", "_total"].concat()) && !is_read(&["no_such", "_ms"].concat()));
}

#[test]
fn a_percentile_is_right_to_a_hundredth() {
    for_seeds(20, |seed| {
        let mut random = Random::new(seed);
        let mut times = Times::default();
        let mut all: Vec<u64> = (0..1 + random.below(2000))
            .map(|_| random.next() >> (22 + random.below(42)))
            .collect();
        all.iter().for_each(|us| times.record(*us));
        all.sort_unstable();
        for part in [500, 990, 999] {
            let rank = (all.len() * part as usize).div_ceil(1000).max(1);
            let (exact, said) = (all[rank - 1], times.per_mille(part));
            if said < exact || said - exact > exact / 100 {
                return Err(format!("{part}: {said}, not {exact}"));
            }
        }
        let sum: u64 = all.iter().sum();
        let same = (times.count(), times.sum_us(), times.longest_us())
            == (all.len() as u64, sum, all[all.len() - 1]);
        same.then_some(()).ok_or_else(|| format!("{times:?}"))
    });
}

#[test]
fn times_beyond_all_bounds_are_times() {
    let mut times = Times::default();
    assert_eq!((times.per_mille(500), times.longest_us()), (0, 0));
    times.record(0);
    assert_eq!((times.per_mille(999), times.count()), (0, 1));
    for _ in 0..3 {
        times.record(u64::MAX);
    }
    assert_eq!(times.longest_us(), u64::MAX);
    assert_eq!(times.sum_us(), u64::MAX);
    assert!(times.per_mille(500) >= 1 << 42);
}

/// Checks the promises of the sketch against exact counts.
fn keeps_its_word(top: &Top, counts: &HashMap<Name, u64>, kept: usize) -> Result<(), String> {
    let ranked: Vec<&Hot> = top.ranked().collect();
    let total: u64 = counts.values().sum();
    let said: u64 = ranked.iter().map(|hot| hot.waits).sum();
    if ranked.len() > kept || said != total {
        return Err(format!("{} locks with {said} of {total}", ranked.len()));
    }
    if let Some(pair) = ranked.windows(2).find(|two| two[0].waits < two[1].waits) {
        return Err(format!("out of order: {pair:?}"));
    }
    for hot in &ranked {
        let exact = counts[&hot.name];
        if hot.waits < exact || hot.waits - hot.error > exact {
            return Err(format!("{hot:?}, not {exact}"));
        }
    }
    let here = |name: &Name| ranked.iter().any(|hot| hot.name == *name);
    let share = total / kept as u64;
    match counts
        .iter()
        .find(|(name, count)| **count > share && !here(name))
    {
        Some(missing) => Err(format!("{missing:?} is missing, with {total} in all")),
        None => Ok(()),
    }
}

const KEPT: usize = 1000;

#[test]
fn the_most_contended_locks_are_found_to_within_the_error() {
    for_seeds(10, |seed| {
        let mut random = Random::new(seed);
        let mut top = Top::default();
        let mut counts: HashMap<Name, u64> = HashMap::new();
        for _ in 0..30_000 {
            // A few hot locks, and many more cold ones than there is room for.
            let hot = random.chance(30);
            let which = random.below(if hot { 20 } else { 5000 });
            let name = name(which as u32 % 3, &format!("{hot}-{which}"));
            top.queued(name.as_ref());
            *counts.entry(name).or_default() += 1;
        }
        keeps_its_word(&top, &counts, KEPT)
    });
}

#[test]
fn as_long_as_there_is_room_the_counts_are_exact() {
    let mut top = Top::default();
    for at in 0..KEPT {
        for _ in 0..1 + at % 7 {
            top.queued(name(0, &format!("lock-{at}")).as_ref());
        }
    }
    for hot in top.ranked() {
        let at: usize = String::from_utf8_lossy(&hot.name.key)[5..].parse().unwrap();
        assert_eq!((hot.waits, hot.error), (1 + at as u64 % 7, 0));
    }
    assert_eq!(top.ranked().count(), KEPT);
    // The next lock replaces one with a single wait.
    top.queued(name(0, "fresh").as_ref());
    let fresh = top.ranked().find(|hot| *hot.name.key == *b"fresh");
    let fresh = fresh.expect("it has a count");
    assert_eq!((fresh.waits, fresh.error), (2, 1));
    assert_eq!(top.ranked().count(), KEPT);
}

/// Forgotten locks make room; a lock that had lost its place before is not counted too low in it.
#[test]
fn locks_that_are_gone_are_forgotten_and_the_others_keep_their_counts() {
    for_seeds(10, |seed| {
        let mut random = Random::new(seed);
        let mut top = Top::default();
        let mut counts: HashMap<Name, u64> = HashMap::new();
        let is_gone = |name: NameRef| name.key.ends_with(b"3");
        let mut wait = |top: &mut Top, times: usize, all: bool| {
            for _ in 0..times {
                let name = name(0, &format!("lock-{}", random.below(5000)));
                if all || !is_gone(name.as_ref()) {
                    top.queued(name.as_ref());
                    *counts.entry(name).or_default() += 1;
                }
            }
            match top.ranked().find(|hot| {
                let exact = counts[&hot.name];
                hot.waits < exact || hot.waits - hot.error > exact
            }) {
                Some(wrong) => Err(format!("{wrong:?}, not {}", counts[&wrong.name])),
                None => Ok(()),
            }
        };
        wait(&mut top, 10_000, true)?;
        let mut left: Vec<Hot> = top.ranked().cloned().collect();
        left.retain(|hot| !is_gone(hot.name.as_ref()));
        assert!((1..KEPT).contains(&left.len()));
        top.forget(is_gone);
        let now: Vec<Hot> = top.ranked().cloned().collect();
        assert_eq!(now.len(), left.len());
        assert!(left.iter().all(|hot| now.contains(hot)));
        // First there is room, then there is none again.
        wait(&mut top, 50, false)?;
        wait(&mut top, 10_000, false)
    });
}

/// Long names would stay long after their locks are gone.
#[test]
fn very_long_names_are_left_out() {
    let mut top = Top::default();
    for (len, counted) in [(1024, 1), (1025, 1)] {
        top.queued(name(0, &"x".repeat(len)).as_ref());
        assert_eq!(top.ranked().count(), counted, "{len}");
    }
}

#[test]
fn the_checker_of_the_sketch_finds_faults() {
    let mut counts = HashMap::from([(name(0, "a"), 3), (name(0, "b"), 2)]);
    let mut top = Top::default();
    for key in ["a", "a", "a", "b", "b"] {
        top.queued(name(0, key).as_ref());
    }
    assert_eq!(keeps_its_word(&top, &counts, KEPT), Ok(()));
    counts.insert(name(0, "a"), 2);
    counts.insert(name(0, "b"), 3);
    assert!(keeps_its_word(&top, &counts, KEPT).is_err());
    counts.insert(name(0, "a"), 3);
    counts.insert(name(0, "b"), 0);
    counts.insert(name(0, "c"), 2);
    assert!(keeps_its_word(&top, &counts, KEPT).is_err());
}

/// Returns the rows of TOP: key, waits, milliseconds in all, the longest, how many wait now and the first for how long.
fn top(world: &mut World, line: &str) -> Vec<(String, [u64; 5])> {
    let Ok(Reply::Array(rows)) = send(world, 99, line) else {
        panic!("{line}")
    };
    let row = |row: Reply| match row {
        Reply::Map(fields) => {
            let fields: BTreeMap<&str, Reply> = fields.into_iter().collect();
            let number = |name| match &fields[name] {
                Reply::Integer(number) => *number,
                Reply::Null => 0,
                other => panic!("{name}: {other:?}"),
            };
            let Reply::Bulk(key) = &fields["key"] else {
                panic!("{fields:?}")
            };
            assert_eq!((number("error"), number("db")), (0, 0));
            let numbers = [
                "waits",
                "wait-ms",
                "longest-ms",
                "queued",
                "first-waited-ms",
            ];
            (
                String::from_utf8_lossy(key).into_owned(),
                numbers.map(number),
            )
        }
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(row).collect()
}

/// Sends a line and lets a millisecond pass, so that the token clock, which never stops, agrees with the world's.
fn go(world: &mut World, client: u64, line: &str) {
    drop(send(world, client, line));
    world.pass(1);
}

#[test]
fn top_shows_waits_and_their_times() {
    let mut world = World::new(Policy::default());
    for line in ["ACQUIRE k a", "ACQUIRE cold a", "ACQUIRE secret a"] {
        go(&mut world, 1, line);
    }
    assert_eq!(top(&mut world, "TOP"), []);
    go(&mut world, 2, "ACQUIRE k b BLOCK 0");
    go(&mut world, 3, "ACQUIRE secret b BLOCK 0");
    go(&mut world, 4, "ACQUIRE secret c BLOCK 0");
    let k = |numbers| ("k".to_owned(), numbers);
    // A wait counts when it begins, its time when it ends.
    // A wait that continues counts towards the longest.
    assert_eq!(top(&mut world, "TOP"), [k([1, 0, 3, 1, 3])]);
    world.pass(997);
    go(&mut world, 1, "RELEASE k a");
    assert_eq!(top(&mut world, "TOP"), [k([1, 1000, 1000, 0, 0])]);
    // Waits that end by a time-out or with their connection also count.
    go(&mut world, 5, "ACQUIRE k c BLOCK 500");
    world.pass(499);
    go(&mut world, 6, "ACQUIRE k d BLOCK 0");
    world.pass(199);
    world.dies(6);
    assert_eq!(top(&mut world, "TOP"), [k([3, 1700, 1000, 0, 0])]);
    // A ticket is one wait, however often its owner polls it.
    for _ in 0..3 {
        go(&mut world, 7, "FAIRACQUIRE k e");
        world.pass(99);
    }
    go(&mut world, 2, "RELEASE k b");
    go(&mut world, 7, "FAIRACQUIRE k e");
    assert_eq!(top(&mut world, "TOP"), [k([4, 2001, 1000, 0, 0])]);
    for (line, error) in [
        (
            "TOP COUNT 0",
            "ERR COUNT must be an integer from 1 to 9223372036854775807",
        ),
        (
            "TOP COUNT",
            "ERR COUNT must be an integer from 1 to 9223372036854775807",
        ),
        ("TOP COUNT 1 COUNT 1", "ERR COUNT is given twice"),
        ("TOP 5", "ERR unknown option '5'"),
        ("STATS reset RESET", "ERR RESET is given twice"),
        ("STATS k", "ERR unknown option 'k'"),
    ] {
        let answer = send(&mut world, 1, line).expect_err(line);
        assert_eq!(answer.to_string(), error, "{line}");
    }
}

#[test]
fn count_bounds_what_is_seen_and_not_what_is_hidden() {
    let mut world = World::new(Policy::default());
    let mut client = 10;
    for (key, waits) in [("secret", 4), ("a", 3), ("b", 2), ("c", 1)] {
        drop(send(&mut world, 1, &format!("ACQUIRE {key} holder")));
        for at in 0..waits {
            client += 1;
            drop(send(
                &mut world,
                client,
                &format!("ACQUIRE {key} {at} BLOCK 0"),
            ));
        }
    }
    let keys = |rows: Vec<(String, _)>| rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(top(&mut world, "TOP COUNT 2")), ["a", "b"]);
    assert_eq!(keys(top(&mut world, "TOP count 100")), ["a", "b", "c"]);
}

/// The engine keeps the number of holds apart from the locks; here it is compared with them.
#[test]
fn the_number_of_holds_is_the_locks_own() {
    for_seeds(50, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(Policy::default());
        for _ in 0..300 {
            let key = *random.pick(&["k", "l"]);
            let owner = *random.pick(&["a", "b", "c"]);
            let kind = *random.pick(&["", " SHARED", " LIMIT 2"]);
            let line = match random.below(8) {
                0 => format!("RELEASE {key} {owner} HOLDS 0"),
                1 => format!("RELEASE {key} {owner}"),
                2 => format!("FORCERELEASE {key}"),
                3 => format!("FAIRACQUIRE {key} {owner} 50{kind}"),
                4 => format!("ACQUIRE {key} {owner} 50{kind}"),
                _ => format!("ACQUIRE {key} {owner} 50 BLOCK 30{kind}"),
            };
            let client = random.below(1_000_000);
            drop(send(&mut world, client, &line));
            world.pass(random.below(20));
            world.sync();
            for (who, server) in [("primary", &world.primary), ("replica", &world.replica)] {
                let there: usize = world
                    .known
                    .iter()
                    .filter_map(|name| server.keys.lock(name))
                    .map(|lock| lock.holders())
                    .sum();
                let counted = server.engine.counters().held;
                if counted != there as i64 {
                    return Err(format!("{who}: {counted} counted, {there} there: {line}"));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn the_reference_tells_gauges_from_counters() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let reference = std::fs::read_to_string(file).expect("docs/operations.md");
    let mut world = World::new(Policy::default());
    let now = world.now;
    let sections = sections(world.engine(), &Census::default(), now);
    for section in &sections {
        let heading = format!("Section `dlock_{}`", section.name);
        let text = reference.split(&heading).nth(1).expect("the section");
        let rows = text.split("\nSection `").next().unwrap_or_default();
        let mut documented: Vec<(String, &str)> = Vec::new();
        for row in rows.lines().filter(|row| row.starts_with("| `dlock_")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let names = cells[0].trim_start_matches("| ").split(", ");
            documented.extend(names.map(|name| (name.replace('`', ""), cells[1])));
        }
        let own: Vec<(String, &str)> = section
            .fields
            .iter()
            .map(|(name, _)| {
                // Names of counters end in _total, and no others do.
                let kind = match name.ends_with("_total") {
                    true => "counter",
                    false => "gauge",
                };
                (format!("dlock_{name}"), kind)
            })
            .collect();
        let sorted = |mut list: Vec<(String, &'static str)>| {
            list.sort_unstable();
            list
        };
        let documented = documented
            .into_iter()
            .map(|(name, kind)| (name, if kind == "gauge" { "gauge" } else { "counter" }));
        let documented = sorted(documented.collect());
        assert_eq!(documented, sorted(own), "docs/operations.md, {heading}");
    }
}

/// Returns what a replica, or a primary, shows as the lead of its clock.
fn shown_lead(server: &Server, primary: bool, now: Now) -> u64 {
    let census = Census {
        primary,
        ..Census::default()
    };
    let sections = sections(&server.engine, &census, now);
    let mut fields = sections.into_iter().flat_map(|section| section.fields);
    let lead = fields.find(|(name, _)| *name == "clock_lead_ms");
    lead.expect("the field").1
}

/// Has a replica follow five grants of a primary whose clock is `lead_us` behind.
fn follow_grants(server: &mut Server, now: &mut Now, lead_us: u64) {
    for (name, effect) in grants(now, lead_us) {
        server.follow(&name, effect.as_bytes(), *now);
    }
    assert_eq!(shown_lead(server, false, *now), lead_us / 1_000);
}

/// Lets five milliseconds pass. Returns five grants of a primary whose clock is then `lead_us` behind: the last of them shows it.
fn grants(now: &mut Now, lead_us: u64) -> Vec<(Name, String)> {
    *now = Now {
        us: now.us + 5_000,
        steady_us: now.steady_us + 5_000,
    };
    let keys = ["a", "b", "c", "d", "e"].into_iter().zip(0..);
    let grant = |(key, more): (&str, u64)| {
        let (token, end) = (now.us - lead_us - 4 + more, now.us / 1_000 + 9_000);
        (name(0, key), format!("1 h{token} {end} 1 1 5:alice"))
    };
    keys.map(grant).collect()
}

/// An AOF that is read has old numbers.
#[test]
fn an_aof_says_nothing_about_the_clock() {
    let mut server = Server::new(false, Policy::default());
    let mut now = Now {
        us: 1_795_000_000_000_000,
        steady_us: 5_000_000,
    };
    for (name, effect) in grants(&mut now, 60_000_000) {
        let (name, effect) = (name.as_ref(), effect.as_bytes());
        let followed = server
            .engine
            .follow(&mut server.keys, now, name, effect, false, false);
        assert_eq!(followed, Ok(()));
        server.keys.close();
    }
    assert_eq!(shown_lead(&server, false, now), 0);
}

/// Lets the wall clock step to this time.
fn step_clock(server: &mut Server, now: Now) {
    let before = Now {
        us: now.us - 5_000_000,
        ..now
    };
    server.engine.observe_clocks(before);
    assert_eq!(server.engine.observe_clocks(now), Some(5_000));
}

/// A clock that is slewed, or read late, has not stepped.
#[test]
fn a_second_between_two_comparisons_is_a_step_either_way() {
    let mut engine = Engine::default();
    let mut now = Now {
        us: 1_795_000_000_000_000,
        steady_us: 5_000_000,
    };
    assert_eq!(engine.observe_clocks(now), None, "the first");
    for (passed_us, more_us, step) in [
        (1_000_000, 0, None),
        (60_000_000, 999_999, None),
        (1_000_000, -999_999, None),
        (1_000_000, 1_000_000, Some(1_000)),
        (1_000_000, 0, None),
        (1_000_000, -1_000_000, Some(-1_000)),
        (1_000_000, -3_600_000_000, Some(-3_600_000)),
    ] {
        now.steady_us += passed_us;
        now.us = now.us.saturating_add_signed(passed_us as i64 + more_us);
        assert_eq!(engine.observe_clocks(now), step, "{more_us} us");
    }
    assert_eq!(engine.counters().clock_steps, 3);
}

#[test]
fn the_lead_of_a_clock_is_one_of_now_and_of_replicas() {
    let mut server = Server::new(false, Policy::default());
    let mut now = Now {
        us: 1_795_000_000_000_000,
        steady_us: 5_000_000,
    };
    // The primary has granted nothing since: what was known gets old.
    follow_grants(&mut server, &mut now, 200_000);
    now.steady_us += 59_000_000;
    assert_eq!(shown_lead(&server, false, now), 200);
    now.steady_us += 2_000_000;
    assert_eq!(shown_lead(&server, false, now), 0);
    // This server's clock was put right.
    now.us += 61_000_000;
    follow_grants(&mut server, &mut now, 200_000);
    server.engine.reset_counters();
    assert_eq!(shown_lead(&server, false, now), 200);
    step_clock(&mut server, now);
    assert_eq!(shown_lead(&server, false, now), 0);
    // It is promoted, and demoted.
    follow_grants(&mut server, &mut now, 200_000);
    assert_eq!(shown_lead(&server, true, now), 0);
    server.engine.promote();
    server.engine.demote();
    assert_eq!(shown_lead(&server, false, now), 0);
}

/// The log warns of a lead once, and again after it was over.
#[test]
fn a_lead_begins_to_matter_once() {
    let mut server = Server::new(false, Policy::default());
    let mut now = Now {
        us: 1_795_000_000_000_000,
        steady_us: 5_000_000,
    };
    for (lead_ms, warns) in [
        (50, None),
        (51, Some(51)),
        (51, None),
        (200, None),
        (0, None),
        (200, Some(200)),
    ] {
        // What is known of the last lead is too old.
        now = Now {
            us: now.us + 61_000_000,
            steady_us: now.steady_us + 61_000_000,
        };
        follow_grants(&mut server, &mut now, 1_000 * lead_ms);
        assert_eq!(server.engine.begins_to_lead(now), warns, "{lead_ms} ms");
    }
    // This server's clock was put right by a step, and goes wrong again.
    step_clock(&mut server, now);
    follow_grants(&mut server, &mut now, 200_000);
    assert_eq!(server.engine.begins_to_lead(now), Some(200));
}

/// A clock that stepped back makes no time negative.
#[test]
fn a_hold_that_ends_before_it_began_took_no_time() {
    let mut world = World::new(Policy::default());
    drop(send(&mut world, 1, "ACQUIRE k a"));
    world.now = Now {
        us: world.now.us - 5_000_000,
        ..world.now
    };
    drop(send(&mut world, 1, "RELEASE k a"));
    let after = stats(&mut world, "STATS");
    assert_eq!((after["holds_total"], after["hold_max_us"]), (1, 0));
}
