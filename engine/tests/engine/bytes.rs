//! Stored values and effects: written ones read back unchanged, and no bytes do harm when read.

use crate::client::Client;
use crate::random::{for_seeds, Random};
use crate::server::Server;
use crate::world::{name, Op, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::change::{self, Change, End};
use dlock_engine::lock::{Hold, Lock};
use dlock_engine::Refusal;
use dlock_engine::{
    codec, Arrival, ClientId, Entry, Limit, Permits, Policy, Share, Token, WallMs, ONE,
};

/// Returns a random lock of any shape that can occur.
fn some_lock(random: &mut Random) -> Lock {
    let mut lock = Lock::default();
    for _ in 0..1 + random.below(6) {
        let owner = some_owner(random);
        let number = some_number(random, Token::END.0 - 1);
        let limit = Limit::from_wire(random.below(4) as u32).expect("a limit");
        let most = if limit == Limit::SHARED {
            u32::MAX
        } else {
            limit.to_wire()
        };
        let permits = match random.chance(50) {
            true => ONE,
            false => Permits::new(some_number(random, most.into()) as u32).expect("a permit"),
        };
        let ms = some_number(random, 1 << 50);
        let holds = some_number(random, u64::from(u32::MAX)) as u32;
        match random.below(5) {
            0..=1 => lock.apply(&Change::Hold(Hold {
                owner: &owner,
                token: Token(number),
                deadline: WallMs(ms),
                holds,
                limit,
                permits,
                client: ClientId::NONE,
                fresh: false,
            })),
            2 => lock.apply(&Change::Ticket {
                number: Arrival(number),
                owner: &owner,
                share: Share { limit, permits },
                claim: ms,
            }),
            3 => lock.apply(&Change::Watch(random.chance(50))),
            _ => lock.apply(&Change::Unhold {
                owner: &owner,
                token: Token(number),
                end: End::Released,
            }),
        }
    }
    lock
}

fn some_owner(random: &mut Random) -> Vec<u8> {
    let len = match random.below(10) {
        0 => 1024,
        1..=2 => 38 + random.below(4),
        _ => 1 + random.below(3),
    };
    (0..len).map(|_| random.next() as u8).collect()
}

/// Returns a number from 1 to `most`, of any magnitude.
fn some_number(random: &mut Random, most: u64) -> u64 {
    (random.next() >> random.below(64)).clamp(1, most)
}

/// Changes a few bytes: flips, cuts, repeats, overwrites.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b' ', b':']),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, random.next() as u8),
            4 => bytes.truncate(at),
            _ => bytes.extend_from_within(at..),
        }
    }
}

#[test]
fn values_come_back_as_they_were() {
    for_seeds(2_000, |seed| {
        let lock = some_lock(&mut Random::new(seed));
        let bytes = codec::encode(&lock);
        match codec::decode(&bytes) {
            None if lock.is_empty() => Ok(()),
            Some(again)
                if codec::encode(&again) == bytes && again.key_expiry() == lock.key_expiry() =>
            {
                Ok(())
            }
            other => Err(format!("{lock:?}\nbecame {other:?}")),
        }
    });
}

#[test]
fn a_value_cut_short_is_refused() {
    for_seeds(200, |seed| {
        let bytes = codec::encode(&some_lock(&mut Random::new(seed)));
        match (0..bytes.len()).find(|cut| codec::decode(&bytes[..*cut]).is_some()) {
            Some(cut) => Err(format!("{cut} bytes of {bytes:?}")),
            None => Ok(()),
        }
    });
}

#[test]
fn a_mangled_value_is_refused_or_taken_for_what_it_says() {
    for_seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let mut bytes = codec::encode(&some_lock(&mut random));
        mutate(&mut random, &mut bytes);
        match codec::decode(&bytes) {
            Some(lock) if codec::encode(&lock) != bytes => Err(format!(
                "{bytes:?} was read as {lock:?}, which writes {:?}",
                codec::encode(&lock)
            )),
            _ => Ok(()),
        }
    });
}

/// A count that exceeds the bytes of the value must not reserve memory.
#[test]
fn counts_are_not_believed() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for before in [vec![1, 0], vec![1, 0, 0], vec![1, 0, 1, 1, 1, 1, 1]] {
        let value = [before, huge.to_vec()].concat();
        assert!(codec::decode(&value).is_none(), "{value:?}");
    }
}

/// The engine keeps working with whatever RESTORE brings: owners acquire, wait and release.
#[test]
fn a_mangled_value_does_no_harm_when_it_is_restored() {
    for_seeds(3_000, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(Policy::default());
        // Another test covers the replica, which would also follow these bytes.
        world.lag = true;
        let mut bytes = codec::encode(&some_lock(&mut random));
        if random.chance(70) {
            mutate(&mut random, &mut bytes);
        }
        if codec::decode(&bytes).is_none() {
            return Ok(());
        }
        let send =
            |world: &mut World, id, words: &[&[u8]]| world.send(Client::connection(id), 0, words);
        if random.chance(50) {
            drop(send(
                &mut world,
                1,
                &[b"ACQUIRE", b"shop", b"a", b"BLOCK", b"0"],
            ));
            drop(send(
                &mut world,
                2,
                &[b"FAIRACQUIRE", b"shop", b"b", b"BLOCK", b"0"],
            ));
        }
        if random.chance(30) {
            let until = world.now.steady().after(100);
            world.configure(|policy| policy.quarantine_until = until);
        }
        world.alter(Op::Restore(name(0, "shop"), bytes.clone()));
        let owner = world
            .primary
            .keys
            .lock(&name(0, "shop"))
            .and_then(|lock| Some(lock.holds().next()?.owner.to_vec()));
        drop(send(
            &mut world,
            3,
            &[
                b"ACQUIRE",
                b"shop",
                &owner.unwrap_or(b"c".to_vec()),
                b"BLOCK",
                b"0",
            ],
        ));
        drop(send(
            &mut world,
            4,
            &[b"FAIRACQUIRE", b"shop", b"d", b"BLOCK", b"0"],
        ));
        drop(send(&mut world, 5, &[b"INFO", b"shop"]));
        drop(send(&mut world, 6, &[b"RELEASE", b"shop", b"a"]));
        world.pass(1_000);
        // Leases from outside are bounded, so all of them end, and every waiter is served.
        world.pass(3_000_000_000_000);
        match world.waits.len() {
            0 => Ok(()),
            _ => Err(format!("{bytes:?}: {:?} wait forever", world.waits)),
        }
    });
}

#[test]
fn effects_come_back_as_they_were() {
    for_seeds(2_000, |seed| {
        let mut random = Random::new(seed);
        let lock = some_lock(&mut random);
        let effect = change::rebuild(&lock);
        let Some(changes) = change::read(&effect) else {
            return Err(format!("{effect:?}"));
        };
        let mut again = Lock::default();
        changes.iter().for_each(|change| again.apply(change));
        let same = codec::encode(&again) == codec::encode(&lock) || lock.is_empty();
        same.then_some(())
            .ok_or(format!("{lock:?}\nbecame {again:?}"))
    });
}

#[test]
fn an_effect_that_is_left_out_releases_the_only_hold() {
    for_seeds(2_000, |seed| {
        let mut random = Random::new(seed);
        let lock = some_lock(&mut random);
        let mut server = Server::new(false, Policy::default());
        let (now, shop) = (World::new(Policy::default()).now, name(0, "shop"));
        if !lock.is_empty() {
            server.bring(&shop, &codec::encode(&lock), None, now);
        }
        let mut data = server.data();
        let answer = server.run(now, 0, Client::primary(), &[b"apply", b"shop"]);
        let (closed, _) = server.work_off();
        let [hold] = lock.holds().collect::<Vec<_>>()[..] else {
            let refused = matches!(answer, Err(Error::Internal(_))) && server.data() == data;
            return refused.then_some(()).ok_or(format!("{lock:?}: {answer:?}"));
        };
        // A replica may pass the effect on without this part.
        let said = format!("1 r{}", hold.token.0).into_bytes();
        let passed_on = closed.iter().any(|closed| closed.effect == said);
        let mut left = codec::decode(&codec::encode(&lock)).ok_or("the lock is not read")?;
        left.apply(&Change::Unhold {
            owner: hold.owner,
            token: hold.token,
            end: End::Released,
        });
        data.remove(&shop);
        if !left.is_empty() {
            data.insert(shop, Some((codec::encode(&left), left.key_expiry())));
        }
        let sound = answer == Ok(Reply::Ok) && passed_on && change::is_usual_release(&said);
        (sound && server.data() == data)
            .then_some(())
            .ok_or(format!("{lock:?} became {:?}", server.data()))
    });
}

#[test]
fn only_the_usual_release_is_usual_release() {
    for said in [
        "",
        "1",
        "1 w0",
        "1 x5",
        "1 f5",
        "1 h5 6 1 1 1:a",
        "1 r5 1:a",
        "1 r5 w0",
        "1 r5 h6 7 1 1 1:b",
        "1 r5 u6",
        "2 r5",
    ] {
        assert!(!change::is_usual_release(said.as_bytes()), "{said}");
    }
    assert!(change::is_usual_release(b"1 r1795257419032780"));
}

#[test]
fn a_mangled_effect_is_refused_whole() {
    for_seeds(20_000, |seed| {
        let mut random = Random::new(seed);
        let before = some_lock(&mut random);
        let mut effect = change::rebuild(&some_lock(&mut random));
        mutate(&mut random, &mut effect);
        let mut server = Server::new(false, Policy::default());
        let now = World::new(Policy::default()).now;
        let shop = name(0, "shop");
        if !before.is_empty() {
            server.bring(&shop, &codec::encode(&before), None, now);
        }
        let data = server.data();
        let answer = server.run(now, 0, Client::primary(), &[b"apply", b"shop", &effect]);
        server.work_off();
        match (answer, change::read(&effect)) {
            (Err(Error::Refused(Refusal::Malformed)), None) if server.data() == data => Ok(()),
            (Err(Error::Refused(Refusal::NewerFormat { .. })), None) if server.data() == data => {
                Ok(())
            }
            (Ok(Reply::Ok), Some(changes)) => {
                // The changes that were read are written again with their meaning.
                let mut written = Vec::new();
                change::begin(&mut written);
                changes.iter().for_each(|change| change.write(&mut written));
                (change::read(&written) == Some(changes))
                    .then_some(())
                    .ok_or(format!("{effect:?} {written:?}"))
            }
            (answer, read) => Err(format!(
                "{effect:?} was answered {answer:?}, read as {read:?}"
            )),
        }
    });
}

#[test]
fn an_effect_with_an_impossible_part_is_refused() {
    let impossible: [&[u8]; 28] = [
        b"",
        b"2",
        b"2 w1",
        b"1 ",
        b"1  w1",
        b"1 w2",
        b"1 w",
        b"1 q5 1:a",
        b"1 h0 5 1 1 1:a",
        b"1 h9007199254740992 5 1 1 1:a",
        b"1 h5 5 0 1 1:a",
        b"1 h5 5 4294967296 1 1:a",
        b"1 h5 5 1 4294967295 1:a",
        b"1 h5 5 1 1 0:",
        b"1 h5 5 1 1 2:a",
        b"1 h5 9223372036854775808 1 1 1:a",
        b"1 t5 9223372036854775808 1 1:a",
        b"1 h99999999999999999999 5 1 1 1:a",
        // Several permits need format 2, and nothing else does.
        b"1 H5 5 1 4 2 1:a",
        b"1 T5 5 4 2 1:a",
        b"2 h5 5 1 4 1:a",
        b"2 H5 5 1 4 1:a",
        b"2 H5 5 1 4 1 1:a",
        // No permits, or more than the limit.
        b"2 H5 5 1 4 0 1:a",
        b"2 H5 5 1 4 5 1:a",
        b"2 H5 5 1 1 2 1:a",
        b"2 H5 5 1 0 4294967296 1:a",
        b"2 T5 5 4 5 1:a",
    ];
    for effect in impossible {
        assert_eq!(
            change::read(effect),
            None,
            "{}",
            String::from_utf8_lossy(effect)
        );
    }
}

/// A value and an effect without several permits keep the bytes that 0.3.0 wrote. With several they have format 2.
#[test]
fn only_several_permits_change_the_bytes() {
    let lock = |held: u32, asked: u32| {
        let mut lock = Lock::default();
        for (owner, token, permits) in [(b"ann", 300, held), (b"bob", 301, 1)] {
            lock.apply(&Change::Hold(Hold {
                owner,
                token: Token(token),
                deadline: WallMs(9),
                holds: 2,
                limit: Limit::from_wire(4).expect("a limit"),
                permits: Permits::new(permits).expect("a permit"),
                client: ClientId(7),
                fresh: true,
            }));
        }
        lock.apply(&Change::Ticket {
            number: Arrival(302),
            owner: b"cyd",
            share: Share {
                limit: Limit::from_wire(5).expect("a limit"),
                permits: Permits::new(asked).expect("a permit"),
            },
            claim: 70,
        });
        lock
    };
    let told = |lock: &Lock| (codec::encode(lock), change::rebuild(lock));
    let plain = (
        b"\x01\x00\x02\xac\x02\x09\x02\x04\x03ann\xad\x02\x09\x02\x04\x03bob\x01\xae\x02\x46\x05\x03cyd".to_vec(),
        b"1 h300 9 2 4 3:ann h301 9 2 4 3:bob t302 70 5 3:cyd".to_vec(),
    );
    let several = (
        b"\x02\x00\x02\xac\x02\x09\x02\x04\x03\x03ann\xad\x02\x09\x02\x04\x01\x03bob\x01\xae\x02\x46\x05\x05\x03cyd".to_vec(),
        b"2 H300 9 2 4 3 3:ann h301 9 2 4 3:bob T302 70 5 5 3:cyd".to_vec(),
    );
    assert_eq!(told(&lock(1, 1)), plain);
    assert_eq!(told(&lock(3, 5)), several);
    for lock in [lock(1, 1), lock(3, 1), lock(1, 5), lock(3, 5)] {
        let (value, effect) = told(&lock);
        let read = codec::decode(&value).expect("a value");
        assert_eq!(told(&read), (value, effect.clone()));
        let mut followed = Lock::default();
        for change in change::read(&effect).expect("an effect") {
            followed.apply(&change);
        }
        assert_eq!(told(&followed), told(&lock));
    }
}

/// A value with no permits or more than its limit is corrupt, and so is one of format 2 that format 1 could express.
#[test]
fn a_value_with_impossible_permits_is_refused() {
    let value = |limit: u8, permits: u8| {
        let hold = [5, 9, 1, limit, permits, 1, b'a'];
        [&[2, 0, 1], &hold[..], &[0]].concat()
    };
    let ticket = |limit: u8, permits: u8| {
        let ticket = [5, 9, limit, permits, 1, b'a'];
        [&[2, 1, 0, 1], &ticket[..]].concat()
    };
    for made in [value, ticket] {
        for (limit, permits, sound) in [
            (4, 4, true),
            (0, 99, true),
            (4, 5, false),
            (1, 2, false),
            (4, 0, false),
            (0, 0, false),
            (4, 1, false),
        ] {
            let bytes = made(limit, permits);
            assert_eq!(codec::decode(&bytes).is_some(), sound, "{bytes:?}");
        }
    }
}

/// Sums of permits may exceed 32 bits: RESTORE brings such values.
#[test]
fn sums_of_permits_are_wide() {
    let mut lock = Lock::default();
    for owner in 0..20_u8 {
        lock.apply(&Change::Hold(Hold {
            owner: &[owner],
            token: Token(300 + u64::from(owner)),
            deadline: WallMs(u64::from(owner)),
            holds: 1,
            limit: Limit::SHARED,
            permits: Permits::MAX,
            client: ClientId::NONE,
            fresh: false,
        }));
        assert_eq!(lock.permits(), (1 + u64::from(owner)) * u64::from(u32::MAX));
        assert!(lock.admits(
            b"new",
            Share {
                limit: Limit::SHARED,
                permits: Permits::MAX
            }
        ));
        let most = Limit::from_wire(u32::MAX - 1).expect("a limit");
        assert!(!lock.admits(
            b"new",
            Share {
                limit: most,
                permits: ONE
            }
        ));
    }
    let mut lock = codec::decode(&codec::encode(&lock)).expect("a value");
    assert_eq!(lock.permits(), 20 * u64::from(u32::MAX));
    // Few holders are in a list, many in maps: both ways of ending must count in both.
    for ended_by_lease in [false, true] {
        let lock = Box::new(lock.clone());
        let mut entry = Entry {
            lock: Some(lock),
            ..Entry::default()
        };
        for owner in 0..20_u8 {
            let end = End::Expired;
            match ended_by_lease {
                true => drop(entry.end_until(WallMs(u64::from(owner)), end, |_| {})),
                false => entry.commit(&Change::Unhold {
                    owner: &[owner],
                    token: Token(300 + u64::from(owner)),
                    end,
                }),
            }
            let left = 19 - u64::from(owner);
            assert_eq!(entry.value().permits(), left * u64::from(u32::MAX));
        }
    }
    // A changed hold counts once.
    let hold = lock.hold(&[7]).map(|hold| Hold {
        owner: &[7],
        permits: ONE,
        ..hold
    });
    lock.apply(&Change::Hold(hold.expect("the lock is held")));
    assert_eq!(lock.permits(), 19 * u64::from(u32::MAX) + 1);
}

/// The end of the only holder names its token alone; the end of one among several names the owner as well. Both are read.
#[test]
fn the_end_of_a_hold_is_told_with_and_without_its_owner() {
    let long = [b'o'; 40];
    for owner in [&b"ann"[..], &long] {
        let held = |others: &[&[u8]]| {
            let mut lock = Lock::default();
            for (at, owner) in [owner]
                .into_iter()
                .chain(others.iter().copied())
                .enumerate()
            {
                lock.apply(&Change::Hold(Hold {
                    owner,
                    token: Token(700 + at as u64),
                    deadline: WallMs(9),
                    holds: 2,
                    limit: Limit::SHARED,
                    permits: ONE,
                    client: ClientId(7),
                    fresh: true,
                }));
            }
            lock
        };
        let told = |lock: &mut Lock, effect: &[u8]| {
            for change in change::read(effect).expect("an effect") {
                lock.apply(&change);
            }
            lock.holders()
        };
        let named = [format!("1 r700 {}:", owner.len()).as_bytes(), owner].concat();

        assert_eq!(told(&mut held(&[]), b"1 r700"), 0);
        assert_eq!(told(&mut held(&[]), &named), 0);
        // Another token is another hold, which has ended already.
        assert_eq!(told(&mut held(&[]), b"1 r701"), 1);
        assert_eq!(told(&mut held(&[b"bob"]), &named), 1);
        // Without an owner the end can only belong to an only holder.
        assert_eq!(told(&mut held(&[b"bob"]), b"1 r700"), 2);
        // The next change is not taken for the owner.
        let mut handed = held(&[]);
        let effect = b"1 x700 h800 9 1 1 3:bob w1";
        assert_eq!(told(&mut handed, effect), 1);
        assert!(handed.hold(b"bob").is_some() && handed.watched());
    }
}

/// A later format is distinguished from nonsense and from known formats.
#[test]
fn a_later_format_is_told() {
    for (effect, later) in [
        ("1 w1", None),
        ("1", None),
        ("2", None),
        ("2 w1", None),
        ("3", Some(3)),
        ("3 w1", Some(3)),
        ("10 anything", Some(10)),
        ("0 w1", None),
        ("3w1", None),
        ("", None),
        (" 3", None),
        ("99999999999999999999 w1", None),
    ] {
        assert_eq!(change::later(effect.as_bytes()), later, "{effect}");
    }
    let lock = some_lock(&mut Random::new(1));
    assert_eq!(change::later(&change::rebuild(&lock)), None);
    let mut bytes = codec::encode(&lock);
    assert_eq!(codec::later(&bytes), None);
    bytes[0] = codec::VERSION + 1;
    assert_eq!(codec::later(&bytes), Some(3));
    assert!(codec::decode(&bytes).is_none());
}
