//! DLOCK.LIST without a server: arguments, rows, the order of lines, patterns.

use crate::client::Client;
use crate::random::{for_seeds, Random};
use crate::world::World;
use dlock_commands::look::list::{page, Listing, Source};
use dlock_commands::words::glob::matches;
use dlock_commands::{Call, Reply};
use dlock_engine::collections::scan_order::{ScanOrder, BITS};
use dlock_engine::{Policy, SteadyMs};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const OF_QUEUES: u64 = 1 << BITS;

fn send(world: &mut World, line: &str) -> Result<Reply, String> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let answer = world.send(Client::connection(1), 0, &words);
    answer.map_err(|error| error.to_string())
}

fn listing(line: &str) -> Result<Listing, String> {
    match send(&mut World::new(Policy::default()), line)? {
        Reply::List(listing) => Ok(*listing),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn each_error_names_the_argument() {
    let cursor = "ERR cursor must be an integer from 0 to 9223372036854775807";
    let count = "ERR COUNT must be an integer from 1 to 9223372036854775807";
    let owner = "ERR OWNER must be 1 to 1024 bytes long";
    let strange = "ERR cursor must be 0, or one that DLOCK.LIST CONTENDED returned";
    let long = format!("LIST OWNER {}", "x".repeat(1025));
    for (line, error) in [
        ("LIST -1", cursor),
        ("LIST 1.5", cursor),
        ("LIST 9223372036854775808", cursor),
        ("LIST 0 COUNT 0", count),
        ("LIST COUNT 9223372036854775808", count),
        ("LIST COUNT", count),
        ("LIST 0 MATCH", "ERR MATCH must be a pattern"),
        ("LIST OWNER", owner),
        ("LIST OWNER ", owner),
        (&long, owner),
        ("LIST 7 CONTENDED", strange),
        ("LIST CONTENDED CONTENDED", "ERR CONTENDED is given twice"),
        ("LIST MATCH a MATCH b", "ERR MATCH is given twice"),
        ("LIST OWNER a owner b", "ERR OWNER is given twice"),
        ("LIST 0 0", "ERR unknown option '0'"),
        ("LIST k", "ERR unknown option 'k'"),
    ] {
        assert_eq!(listing(line), Err(error.to_owned()), "{line}");
    }
}

/// COUNT is a hint, as SCAN's: one call looks at a bounded number of keys, whatever the client asks for.
#[test]
fn a_large_count_is_cut() {
    for (line, count) in [
        ("LIST", 100),
        ("LIST COUNT 1", 1),
        ("LIST COUNT 1000", 1_000),
        ("LIST COUNT 1001", 1_000),
        ("LIST COUNT 9223372036854775807", 1_000),
    ] {
        let listing = listing(line).map(|listing| listing.count);
        assert_eq!(listing, Ok(count), "{line}");
    }
}

#[test]
fn a_cursor_tells_where_to_go_on() {
    let marked = format!("{}", OF_QUEUES | 5);
    for (line, source) in [
        ("LIST", Source::Keys(0)),
        ("LIST 0", Source::Keys(0)),
        ("LIST 17 match *", Source::Keys(17)),
        ("LIST CONTENDED", Source::Queues(0)),
        ("LIST 0 CONTENDED", Source::Queues(0)),
        (&format!("LIST {marked}"), Source::Queues(5)),
        (&format!("LIST {marked} CONTENDED"), Source::Queues(5)),
    ] {
        assert_eq!(listing(line).map(|listing| listing.source), Ok(source));
    }
    let cursor = |next| match page(next, Vec::new()) {
        Reply::Array(parts) => parts[0].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(cursor(None), Reply::Bulk(b"0".to_vec()));
    assert_eq!(cursor(Some(Source::Keys(17))), Reply::Bulk(b"17".to_vec()));
    let marked = Reply::Bulk(marked.into_bytes());
    assert_eq!(cursor(Some(Source::Queues(5))), marked);
    // A lock without a hold has no owner.
    assert!(listing("LIST").unwrap().continues_in_queues());
    assert!(!listing("LIST OWNER a").unwrap().continues_in_queues());
}

/// Returns the rows of these keys, in words.
fn rows(world: &mut World, line: &str, source: Source, keys: &[&str]) -> Vec<String> {
    let listing = listing(line).expect(line);
    let server = &mut world.primary;
    let mut call = Call {
        engine: &mut server.engine,
        keys: &mut server.keys,
        now: world.now,
        db: 0,
        caller: &Client::connection(1),
        default_lease_ms: 1,
        primary: true,
    };
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let rows = listing.rows(&mut call, source, &keys);
    server.keys.close();
    let cell = |cell: &Reply| match cell {
        Reply::Bulk(bytes) if bytes.is_empty() => "''".to_owned(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Integer(number) => number.to_string(),
        Reply::Null => "-".to_owned(),
        other => panic!("{other:?}"),
    };
    let row = |row: Reply| match row {
        Reply::Map(fields) => {
            let cells = fields.iter().map(|(_, value)| cell(value));
            cells.collect::<Vec<_>>().join(" ")
        }
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(row).collect()
}

#[test]
fn a_row_says_who_and_how_many() {
    let mut world = World::new(Policy::default());
    for line in [
        "ACQUIRE one ann 1000",
        "ACQUIRE contended ann 2000",
        "ACQUIRE contended ben BLOCK 0",
        "FAIRACQUIRE contended cid",
        "ACQUIRE readers ann 3000 SHARED",
        "ACQUIRE readers ben 9000 SHARED",
        "ACQUIRE readers cid 1 SHARED",
        "ACQUIRE reserved ann",
        "FAIRACQUIRE reserved ben CLAIM 60000",
        "RELEASE reserved ann",
        "ACQUIRE secret ann",
        "ACQUIRE mine s/1 4000 IN s",
    ] {
        send(&mut world, line).expect(line);
    }
    world
        .primary
        .keys
        .values
        .insert(crate::world::name(0, "string"), crate::keys::Value::Other);
    let all = [
        "one",
        "contended",
        "readers",
        "reserved",
        "secret",
        "mine",
        "string",
        "none",
    ];
    let keys = Source::Keys(0);
    let contended = ["contended ann 1 2 2000 '' - 0", "reserved - 0 1 - '' - 0"];
    // The lease of cid ran out one millisecond ago, and no command has looked at the lock since.
    world.now.us += 1000;
    let seen = rows(&mut world, "LIST", keys, &all);
    assert_eq!(
        seen,
        [
            "one ann 1 0 999 '' - -",
            "contended ann 1 2 1999 '' - 0",
            "readers ben 2 0 8999 '' - -",
            "reserved - 0 1 - '' - 0",
            "mine s/1 1 0 3999 s 0 -"
        ]
    );
    world.now.us -= 1000;
    let seen = rows(&mut world, "LIST", keys, &all);
    assert_eq!(seen[2], "readers ben 3 0 9000 '' - -");
    assert_eq!(
        rows(&mut world, "LIST CONTENDED", Source::Queues(0), &all),
        contended
    );
    assert_eq!(
        rows(&mut world, "LIST OWNER ann", keys, &all),
        [
            "one ann 1 0 1000 '' - -",
            "contended ann 1 2 2000 '' - 0",
            "readers ann 3 0 3000 '' - -"
        ]
    );
    assert_eq!(
        rows(&mut world, "LIST OWNER ben", keys, &all),
        ["readers ben 3 0 9000 '' - -"]
    );
    // The server has matched the pattern on keys of its own.
    let matched = |world: &mut World, line| rows(world, line, Source::Queues(0), &all);
    assert_eq!(
        matched(&mut world, "LIST CONTENDED MATCH c*"),
        contended[..1]
    );
    assert_eq!(
        matched(&mut world, "LIST CONTENDED MATCH *e*d OWNER ann"),
        contended[..1]
    );
    // A lock with a key is listed with the keys.
    assert_eq!(matched(&mut world, "LIST"), [""; 0]);
}

/// In quarantine a lock may have waiters and no key.
#[test]
fn a_lock_without_a_key_is_listed_after_the_keys() {
    let policy = Policy {
        max_lease_ms: 5000,
        quarantine_until: SteadyMs(5000),
        ..Policy::default()
    };
    let mut world = World::new(policy);
    send(&mut world, "ACQUIRE k ann BLOCK 0").expect("it waits");
    assert_eq!(
        rows(&mut world, "LIST", Source::Queues(0), &["k"]),
        ["k - 0 1 - '' - 0"]
    );
    let found = world.engine().queue_keys(0, 0, 10);
    assert_eq!(found, (vec![Rc::from(*b"k")], None));
    assert_eq!(world.engine().queue_keys(1, 0, 10), (vec![], None));
    world.pass(5000);
    assert_eq!(rows(&mut world, "LIST", Source::Queues(0), &["k"]), [""; 0]);
    assert_eq!(
        rows(&mut world, "LIST", Source::Keys(0), &["k"]),
        ["k ann 1 0 5000 '' - -"]
    );
    assert_eq!(world.engine().queue_keys(0, 0, 10), (vec![], None));
}

/// A key that stays during a scan is met exactly once, whatever comes and goes between the pages.
#[test]
fn a_scan_of_an_order_meets_what_stays() {
    for_seeds(50, |seed| {
        let mut random = Random::new(seed);
        let mut order = ScanOrder::default();
        let key =
            |group: &str, at: u64| -> Rc<[u8]> { Rc::from(format!("{group}-{at}").as_bytes()) };
        let stays: BTreeSet<Rc<[u8]>> = (0..random.below(200)).map(|at| key("stay", at)).collect();
        stays.iter().for_each(|key| order.insert(key));
        let mut met: BTreeMap<Rc<[u8]>, usize> = BTreeMap::new();
        let (mut from, mut pages) = (0, 0);
        loop {
            let most = 1 + random.below(20) as usize;
            let (keys, next) = order.from(from, most);
            if keys.len() > most {
                return Err(format!("{} keys of {most}", keys.len()));
            }
            keys.into_iter()
                .for_each(|key| *met.entry(key).or_default() += 1);
            pages += 1;
            match next {
                None => break,
                Some(next) if next <= from => return Err("the scan does not advance".into()),
                Some(next) => from = next,
            }
            for _ in 0..random.below(10) {
                let key = key("goes", random.below(50));
                match random.chance(50) {
                    true => order.insert(&key),
                    false => order.remove(&key),
                }
            }
        }
        if pages < stays.len() / 20 {
            return Err(format!("{pages} pages"));
        }
        match stays.iter().find(|key| met.get(*key) != Some(&1)) {
            Some(key) => Err(format!("{key:?}: {:?} times", met.get(key))),
            None => Ok(()),
        }
    });
}

#[test]
fn patterns_are_the_servers() {
    for (pattern, text, is) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("**", "anything", true),
        ("a", "a", true),
        ("a", "b", false),
        ("a", "ab", false),
        ("ab", "a", false),
        ("?", "", false),
        ("?b?", "abc", true),
        ("a*", "a", true),
        ("a*c", "abcbc", true),
        ("a*c", "abcbd", false),
        ("*a*b*c*", "xxaxxbxxcxx", true),
        ("*a*b*c*", "xxaxxcxxbxx", false),
        ("*ab", "aab", true),
        ("[abc]x", "bx", true),
        ("[abc]x", "dx", false),
        ("[a-c]", "b", true),
        ("[c-a]", "b", true),
        ("[a-c]", "-", false),
        ("[^a-c]", "b", false),
        ("[^a-c]", "d", true),
        ("[^]", "a", true),
        ("[]", "a", false),
        ("[]", "", false),
        ("[\\]]", "]", true),
        ("[\\a-c]", "b", false),
        ("[\\a-c]", "-", true),
        ("[a-", "-", true),
        ("[ab", "b", true),
        ("[ab", "c", false),
        ("[", "[", false),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("a\\", "a\\", true),
        ("\\a", "a", true),
    ] {
        assert_eq!(
            matches(pattern.as_bytes(), text.as_bytes()),
            is,
            "{pattern} {text}"
        );
    }
}

/// A matcher that tries every place for each star would not end here.
#[test]
fn a_hostile_pattern_takes_no_longer() {
    let pattern = "a*".repeat(500) + "b";
    assert!(!matches(pattern.as_bytes(), &[b'a'; 10_000]));
}
