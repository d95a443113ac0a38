//! Hostile arguments: every command answers, nothing panics, and a refused command has changed nothing.

use crate::client::Client;
use crate::random::{for_seeds, Random};
use crate::world::{name, World};
use dlock_commands::error::Error;
use dlock_commands::table::COMMANDS;
use dlock_commands::Reply;
use dlock_engine::Policy;

/// Words on which a parser may stumble.
const HOSTILE: [&[u8]; 34] = [
    b"",
    b"0",
    b"-0",
    b"00",
    b"01",
    b"1",
    b"+1",
    b"-1",
    b" 1",
    b"1 ",
    b"1.0",
    b"1e3",
    b"0x10",
    b"\xd9\xa1",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9007199254740992",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"99999999999999999999999999999999",
    b"\x00",
    b"\xff\xfe",
    b"%s%n%p",
    b"'\"\\\r\n",
    b"*",
    b"BLOCK",
    b"block",
    b"HOLDS",
    b"TOKEN",
    b"CLAIM",
    b"COUNT",
];

fn some_words<'a>(random: &mut Random, long: &'a [u8]) -> Vec<&'a [u8]> {
    let count = random.below(9);
    let word = |random: &mut Random| -> &'a [u8] {
        match random.below(20) {
            0 => long,
            1..=4 => b"shop",
            5..=8 => b"alice",
            _ => random.pick::<&[u8]>(&HOSTILE),
        }
    };
    (0..count).map(|_| word(random)).collect()
}

#[test]
fn hostile_words_are_answered() {
    let long = vec![b'x'; 2_000];
    for_seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(Policy::default());
        drop(world.send(
            Client::connection(1),
            0,
            &[b"ACQUIRE", b"shop", b"alice", b"1000"],
        ));
        let spec = random.pick(COMMANDS);
        let mut words: Vec<&[u8]> = vec![spec.name.as_bytes()];
        words.extend(some_words(&mut random, &long));
        let before = world.primary.data();
        let answer = world.send(Client::connection(2), 0, &words);
        let told = |what: &str| Err(format!("{}: {what}: {answer:?}", shown(&words)));
        match &answer {
            Ok(_) if spec.internal() => told("a command for replication only was answered"),
            Ok(_) => Ok(()),
            Err(error) if world.primary.data() != before => {
                told(&format!("refused ({error}), and something changed"))
            }
            Err(error) if !world.waits.is_empty() => {
                told(&format!("refused ({error}), and a request waits"))
            }
            Err(error) => clear(error)
                .then_some(())
                .ok_or(format!("{}: {error}", shown(&words))),
        }
    });
}

/// Returns true if an error is one line of printable text that begins with a code.
pub fn clear(error: &Error) -> bool {
    let text = error.to_string();
    let code = text.split(' ').next().unwrap_or_default();
    !code.is_empty()
        && code.bytes().all(|byte| byte.is_ascii_uppercase())
        && text.len() < 400
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn shown(words: &[&[u8]]) -> String {
    words
        .iter()
        .map(|word| dlock_engine::refusal::escaped(word, 40))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Each of these words is refused at this argument, with the argument's name.
#[test]
fn a_wrong_number_is_called_by_its_name() {
    let wrong: [&[u8]; 13] = [
        b"",
        b"-0",
        b"00",
        b"01",
        b"-1",
        b"1.0",
        b"1e3",
        b"0x10",
        b"9223372036854775808",
        b"-9223372036854775808",
        b"99999999999999999999",
        b"1\x00",
        b"\xff",
    ];
    let commands: [(&[&[u8]], &str); 9] = [
        (&[b"ACQUIRE", b"yard", b"alice", b"BLOCK"], "BLOCK"),
        (
            &[
                b"ACQUIRE", b"yard", b"alice", b"10", b"BLOCK", b"10", b"HOLDS",
            ],
            "HOLDS",
        ),
        (&[b"FAIRACQUIRE", b"yard", b"alice", b"CLAIM"], "CLAIM"),
        (&[b"RENEW", b"yard", b"alice", b"TOKEN"], "TOKEN"),
        (&[b"RELEASE", b"yard", b"alice", b"HOLDS"], "HOLDS"),
        (&[b"RELEASE", b"yard", b"alice", b"TOKEN"], "TOKEN"),
        (&[b"CHECK", b"yard"], "token"),
        (&[b"INFO", b"yard", b"COUNT"], "COUNT"),
        (&[b"RENEW", b"yard", b"alice", b"10", b"TOKEN"], "TOKEN"),
    ];
    for (words, argument) in commands {
        for value in wrong {
            let mut world = World::new(Policy::default());
            let words: Vec<&[u8]> = words.iter().copied().chain([value]).collect();
            let answer = world.send(Client::connection(1), 0, &words);
            let named = matches!(&answer, Err(Error::Argument(name, _)) if *name == argument);
            assert!(named, "{}: {answer:?}", shown(&words));
        }
    }
}

/// A word that begins like a number is read as a lease where a lease may stand.
#[test]
fn a_wrong_lease_is_called_by_its_name() {
    for verb in ["ACQUIRE", "FAIRACQUIRE", "RENEW"] {
        for value in [
            "0",
            "-1",
            "-",
            "+1",
            "1x",
            ".5",
            "1.5",
            "00",
            "2592000001",
            "99999999999999999999",
            "1\0",
        ] {
            let mut world = World::new(Policy::default());
            let words = [verb.as_bytes(), b"yard", b"alice", value.as_bytes()];
            let answer = world.send(Client::connection(1), 0, &words);
            let named = matches!(&answer, Err(Error::Argument("lease-ms", _)));
            assert!(named, "{}: {answer:?}", shown(&words));
        }
    }
}

/// Options may come in any order and in any case.
#[test]
fn options_come_in_any_order() {
    for words in [
        "FAIRACQUIRE shop bert 500 BLOCK 100 HOLDS 2 CLAIM 300",
        "FAIRACQUIRE shop bert 500 claim 300 holds 2 block 100",
        "fairacquire shop bert 500 Holds 2 Block 100 Claim 300",
    ] {
        let mut world = World::new(Policy::default());
        drop(world.send(
            Client::connection(1),
            0,
            &[b"ACQUIRE", b"shop", b"alice", b"50"],
        ));
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let answer = world.send(Client::connection(2), 0, &words);
        assert!(matches!(answer, Ok(Reply::Wait(..))), "{answer:?}");
        world.pass(50);
        let hold = world
            .primary
            .keys
            .lock(&name(0, "shop"))
            .and_then(|lock| Some(lock.hold(b"bert")?.holds));
        assert_eq!(hold, Some(2));
    }
}

/// A server that follows refuses commands that decide, and answers those that only read. A client that may not wait is refused,
/// and its owner's older request waits on.
#[test]
fn a_wait_that_is_not_possible_changes_nothing() {
    let mut world = World::new(Policy::default());
    let words = |line: &'static str| -> Vec<&[u8]> { line.split(' ').map(str::as_bytes).collect() };
    let mut ask = |client, line| world.send(client, 0, &words(line));
    let held = ask(Client::connection(1), "ACQUIRE shop alice 600000");
    assert!(matches!(held, Ok(Reply::Grant(..))), "{held:?}");
    let older = ask(Client::connection(2), "ACQUIRE shop bob 600000 BLOCK 0");
    assert!(matches!(older, Ok(Reply::Wait(..))), "{older:?}");
    for line in [
        "ACQUIRE shop bob 600000 BLOCK 0",
        "FAIRACQUIRE shop bob 600000 BLOCK 20 CLAIM 60000",
        "MACQUIRE 2 shop free bob 600000 BLOCK 0",
        "ACQUIRE free bob 600000 BLOCK 0",
    ] {
        let answer = ask(Client::barred(3), line);
        assert_eq!(answer, Err(Error::MayNotWait), "{line}");
    }
    assert_eq!(
        ask(Client::connection(1), "HELD free bob"),
        Ok(Reply::NullArray)
    );
    let left = ask(Client::connection(1), "RELEASE shop alice");
    assert_eq!(left, Ok(Reply::Integer(0)));
    let held = ask(Client::connection(1), "HELD shop bob");
    assert!(matches!(held, Ok(Reply::Array(_))), "{held:?}");
}

#[test]
fn a_replica_decides_nothing() {
    let mut world = World::new(Policy::default());
    drop(world.send(
        Client::connection(1),
        0,
        &[b"ACQUIRE", b"shop", b"alice", b"1000"],
    ));
    drop(world.send(
        Client::connection(2),
        0,
        &[b"FAIRACQUIRE", b"shop", b"bert"],
    ));
    let (now, before) = (world.now, world.replica.data());
    for (words, looks) in [
        ("ACQUIRE shop alice", false),
        ("FAIRACQUIRE shop bert", false),
        ("RENEW shop alice", false),
        ("RELEASE shop alice", false),
        ("FORCERELEASE shop", false),
        ("CANCEL shop bert", false),
        ("POSITION shop bert", true),
        ("HELD shop alice", true),
        ("CHECK shop 1000000000000", true),
        ("INFO shop", true),
        ("HELP", true),
    ] {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let answer = world.replica.run(now, 0, Client::connection(1), &words);
        assert_eq!(answer.is_ok(), looks, "{answer:?}");
        assert!(looks || answer == Err(Error::ReadOnly));
        world.replica.work_off();
        assert_eq!(world.replica.data(), before);
    }
}
