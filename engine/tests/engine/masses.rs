//! An event that concerns all locks marks them at once and is settled in steps. No step looks at more locks than its bound.

use crate::client::Client;
use crate::keys::Value;
use crate::server::Server;
use dlock_commands::Reply;
use dlock_engine::lock::token::TokenClock;
use dlock_engine::lock::Hold;
use dlock_engine::{
    change::Change, codec, Arrival, ClientId, End, Entry, Event, Keyspace, Limit, Lock, Name,
    NameRef, Now, Outcome, Policy, Refusal, RequestId, Share, Token, ONE,
};

/// The number of watched locks: each has two holders.
const LOCKS: usize = 600;

/// The number of locks that one step may look at.
const A_STEP: usize = 20;

const NOW: Now = Now {
    us: 2_000_000_000_000_000,
    steady_us: 1_000_000,
};

fn crowded(primary: bool) -> Server {
    let mut server = Server::new(true, Policy::default());
    for at in 0..LOCKS {
        let key = format!("k{at}");
        for owner in ["ann", "ben"] {
            let words: [&[u8]; 4] = [b"ACQUIRE", key.as_bytes(), owner.as_bytes(), b"SHARED"];
            drop(server.run(NOW, 0, Client::connection(1), &words));
            server.keys.close();
        }
    }
    settle(&mut server);
    match primary {
        true => server,
        false => server.reload(NOW),
    }
}

/// Settles until nothing is left. Returns how many locks the largest step looked at, and how many all of them.
fn settle(server: &mut Server) -> (usize, usize) {
    let (mut most, mut all) = (0, 0);
    for _ in 0..10 * LOCKS {
        let left = server.engine.settle_dirty(&mut server.keys, NOW, A_STEP);
        let looked = server.keys.close().len();
        (most, all) = (most.max(looked), all + looked);
        if !left {
            return (most, all);
        }
    }
    panic!("settlement does not end");
}

#[track_caller]
fn assert_steps(server: &mut Server) {
    // The event itself has looked at no lock.
    assert_eq!(server.keys.close().len(), 0);
    let (most, all) = settle(server);
    assert!(most <= A_STEP, "{most} in one step");
    assert!((LOCKS..=2 * LOCKS).contains(&all), "{all} in all");
}

#[test]
fn a_primary_looks_at_all_locks_in_steps() {
    let mut server = crowded(true);
    server.engine.on_values_changed(None);
    assert_steps(&mut server);
    server.set_policy(|_| {});
    assert_steps(&mut server);
    server.engine.promote();
    assert_steps(&mut server);
    let values = std::mem::take(&mut server.keys.values);
    let moved = |name: Name| Name { db: 1, ..name };
    server.keys.values = values
        .into_iter()
        .map(|(name, value)| (moved(name), value))
        .collect();
    server.engine.on_swap(0, 1, NOW);
    assert_steps(&mut server);
    // The locks are watched where they are now.
    server.set_policy(|_| {});
    assert_steps(&mut server);
    server.keys.values.clear();
    server.engine.on_values_changed(None);
    assert_steps(&mut server);
    assert!(server.engine.is_idle());
}

/// A lock that is used before its turn is settled first.
#[test]
fn nothing_is_decided_on_what_was_before() {
    let mut server = crowded(true);
    server.keys.values.clear();
    server.engine.on_values_changed(Some(0));
    let last = format!("k{}", LOCKS - 1);
    let words: [&[u8]; 3] = [b"ACQUIRE", last.as_bytes(), b"cyd"];
    let granted = server.run(NOW, 0, Client::connection(2), &words);
    assert!(format!("{granted:?}").contains("Grant"), "{granted:?}");
    server.keys.close();
    settle(&mut server);
    let words: [&[u8]; 3] = [b"ACQUIRE", last.as_bytes(), b"dan"];
    let refused = server.run(NOW, 0, Client::connection(2), &words);
    assert!(format!("{refused:?}").contains("Null"), "{refused:?}");
}

/// Clears away until nothing is left. Returns how many places went in the largest step, and how many in all of them.
fn follow(server: &mut Server) -> (usize, usize) {
    let (mut most, mut all) = (0, 0);
    for _ in 0..10 * LOCKS {
        let before = server.engine.places();
        let left = server.engine.follow_dirty(&mut server.keys, NOW, A_STEP);
        let looked = server.keys.close().len();
        assert!(looked <= A_STEP, "{looked} in one step");
        let gone = before - server.engine.places();
        (most, all) = (most.max(gone), all + gone);
        if !left {
            return (most, all);
        }
    }
    panic!("clearing away does not end");
}

#[test]
fn a_demotion_is_cleared_away_in_steps() {
    let mut server = crowded(true);
    for at in 0..LOCKS {
        ask(&mut server, &format!("ACQUIRE k{at} w{at} BLOCK 0"));
        ask(&mut server, &format!("ACQUIRE k0 v{at} BLOCK 0 IN app"));
    }
    server.engine.demote();
    server.primary = false;
    let (most, all) = follow(&mut server);
    assert!(most <= A_STEP, "{most} in one step");
    assert_eq!(all, 2 * LOCKS);
    // The server itself ends the waits of connections.
    assert!(!server.engine.has_outputs());
    // The locks that were watched will be watched again.
    server.engine.promote();
    assert_steps(&mut server);
}

/// A server that is promoted again before it has cleared everything away also clears the rest: its sessions are forgotten.
#[test]
fn nobody_waits_in_a_session_that_a_demotion_has_ended() {
    let mut server = crowded(true);
    for at in 0..LOCKS {
        drop(ask(
            &mut server,
            &format!("ACQUIRE k{at} w{at} BLOCK 0 IN app"),
        ));
    }
    server.engine.demote();
    server.engine.follow_dirty(&mut server.keys, NOW, A_STEP);
    server.keys.close();
    assert!(server.engine.places() > 0);
    server.engine.promote();
    settle(&mut server);
    for at in 0..LOCKS {
        drop(ask(&mut server, &format!("FORCERELEASE k{at}")));
    }
    settle(&mut server);
    assert_eq!(server.engine.places(), 0);
}

#[test]
fn a_follower_looks_at_all_locks_in_steps() {
    let mut server = crowded(false);
    server.keys.close();
    for change in [
        |server: &mut Server| server.engine.on_values_changed(None),
        |server: &mut Server| server.engine.on_swap(0, 1, NOW),
    ] {
        change(&mut server);
        assert_eq!(server.keys.close().len(), 0);
        assert_eq!(follow(&mut server), (0, 0));
        // The locks are watched where they are, and only there.
        for at in 0..LOCKS {
            let key = format!("k{at}");
            let watched = [0, 1].map(|db| {
                server.engine.watches(NameRef {
                    db,
                    key: key.as_bytes(),
                })
            });
            assert_eq!(watched, [true, false]);
        }
    }
}

/// A primary with a lock, and a replica of the lock.
struct Followed {
    primary: Server,
    follower: Entry<Box<Lock>>,
}

impl Followed {
    /// Applies the primary's changes to the replica. Returns the events that observers of each receive.
    fn follow(&mut self) -> [Vec<Event>; 2] {
        let mut told = Vec::new();
        for closed in self.primary.keys.close() {
            told.extend(closed.events);
            if !closed.effect.is_empty() {
                let mut clock = TokenClock::default();
                let followed = self
                    .follower
                    .follow(&closed.effect, &mut clock, |_, _, _| {});
                assert_eq!(followed, Ok(()));
            }
        }
        let name = Name {
            db: 0,
            key: b"k".as_slice().into(),
        };
        let same = self.primary.keys.entry(name.as_ref()).value();
        assert_eq!(codec::encode(self.follower.value()), codec::encode(same));
        let their = std::mem::take(&mut self.follower.events);
        [told, their]
    }

    fn run(&mut self, now: Now, words: &[&[u8]]) -> String {
        let answer = self.primary.run(now, 0, Client::connection(1), words);
        format!("{answer:?}")
    }
}

/// Holders of one lock that end together end as if each ended alone, on the primary and on the replica.
#[test]
fn holders_end_together() {
    const HOLDERS: u64 = 60;
    let at = |ms: u64| Now {
        us: NOW.us + 1000 * ms,
        steady_us: NOW.steady_us + 1000 * ms,
    };
    let mut server = Followed {
        primary: Server::new(true, Policy::default()),
        follower: Entry::default(),
    };
    for holder in 0..HOLDERS {
        let (owner, lease) = (format!("o{}", holder * 7 % HOLDERS), 1000 + holder / 5 * 10);
        let lease = lease.to_string();
        let words: [&[u8]; 5] = [
            b"ACQUIRE",
            b"k",
            owner.as_bytes(),
            lease.as_bytes(),
            b"SHARED",
        ];
        assert!(server.run(NOW, &words).contains("Grant"));
    }
    let queued = server.run(NOW, &[b"FAIRACQUIRE", b"k", b"writer", b"9000"]);
    assert!(queued.contains("Null"), "{queued}");
    server.follow();
    // Some of them, in the order in which they end.
    for (now, ended) in [(at(1000), 5), (at(1045), 20), (at(1055), 5)] {
        server.primary.engine.tick(now);
        server
            .primary
            .engine
            .settle_dirty(&mut server.primary.keys, now, A_STEP);
        let [told, followed] = server.follow();
        let expired = |event: &&Event| matches!(event, Event::Ended(End::Expired, _));
        assert_eq!(told.iter().filter(expired).count(), ended);
        assert_eq!(told, followed);
    }
    // The oldest holder comes first.
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let lock = server.primary.keys.entry(name.as_ref()).lock.as_deref();
    let view = server
        .primary
        .engine
        .view(lock, at(1055), name.as_ref(), 2)
        .expect("it is held");
    let shown: Vec<&[u8]> = view.holders.iter().map(|hold| &*hold.owner).collect();
    assert_eq!((view.held, shown), (30, vec![&b"o30"[..], &b"o37"[..]]));
    // All that are left.
    let forced = server.run(at(1056), &[b"FORCERELEASE", b"k"]);
    assert!(forced.contains("30"), "{forced}");
    let [told, followed] = server.follow();
    let forced = |event: &&Event| matches!(event, Event::Ended(End::Forced, _));
    assert_eq!(told.iter().filter(forced).count(), 30);
    assert_eq!(told, followed);
    assert_eq!(server.primary.engine.counters().held, 0);
}

/// Tickets that arrive with a value have their places at once. They leave as one piece, which is freed in steps.
#[test]
fn tickets_that_leave_are_freed_in_steps() {
    const TICKETS: u64 = 40_000;
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let mut lock = Lock::default();
    for at in 0..TICKETS {
        let owner = format!("o{at}");
        lock.apply(&Change::Ticket {
            number: Arrival(NOW.us - TICKETS + at),
            owner: owner.as_bytes(),
            share: Share {
                limit: Limit::EXCLUSIVE,
                permits: ONE,
            },
            claim: 60_000,
        });
    }
    let mut server = Server::new(true, Policy::default());
    let value = codec::decode(&codec::encode(&lock)).expect("a lock");
    let value = Value::Lock(Box::new(value), None);
    server.keys.values.insert(name.clone(), value);
    server.engine.on_key_changed(name.as_ref());
    settle(&mut server);
    // The last ticket keeps its place, and the first is granted.
    let last = format!("o{}", TICKETS - 1);
    for (owner, found) in [(&*last, "Null"), ("o0", "Grant"), ("new", "Null")] {
        let words: [&[u8]; 3] = [b"FAIRACQUIRE", b"k", owner.as_bytes()];
        let answer = server.run(NOW, 0, Client::connection(1), &words);
        let answer = format!("{answer:?}");
        assert!(answer.contains(found), "{owner}: {answer}");
        server.keys.close();
    }
    let rank = server.engine.position(None, name.as_ref(), last.as_bytes());
    assert_eq!(rank, Some(TICKETS as usize - 2));
    server.keys.values.clear();
    server.engine.on_key_removed(name.as_ref());
    let mut steps = 0;
    while server.engine.settle_dirty(&mut server.keys, NOW, A_STEP) {
        server.keys.close();
        steps += 1;
        assert_eq!(server.engine.places(), 0);
    }
    assert!(steps >= 4, "{steps} steps");
    server.keys.close();
    assert!(server.engine.is_idle());
}

/// A ticket of a lock's value.
fn add_ticket(lock: &mut Lock, number: u64, owner: &str) {
    lock.apply(&Change::Ticket {
        number: Arrival(number),
        owner: owner.as_bytes(),
        share: Share {
            limit: Limit::EXCLUSIVE,
            permits: ONE,
        },
        claim: 60_000,
    });
}

/// Sends a line. Returns the reply.
fn ask(server: &mut Server, line: &str) -> Reply {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let reply = server.run(NOW, 0, Client::connection(1), &words);
    server.keys.close();
    reply.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The most places that one step reconciles, or refuses.
const PLACES_A_STEP: usize = 1024;

/// Makes as many places wait at `k` as tickets arrive there, every other one before a ticket; and owners that hold the lock by its
/// value. Nothing is settled yet.
fn arriving(each: u64) -> Server {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k holder 60000");
    let mut lock = Lock::default();
    for at in 0..each {
        let line = format!("FAIRACQUIRE k w{at} 60000 BLOCK 0");
        ask(&mut server, &line);
        add_ticket(&mut lock, NOW.us - 2 * each + at, &format!("early{at}"));
    }
    add_ticket(&mut lock, NOW.us + 1_000_000, "late");
    let value = codec::decode(&codec::encode(&lock)).expect("a lock");
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let value = Value::Lock(Box::new(value), None);
    server.keys.values.insert(name.clone(), value);
    server.engine.on_key_changed(name.as_ref());
    server
}

/// Very many tickets that arrive where as many wait get their places in steps. A request in between is answered as if all of them
/// had their places.
#[test]
fn tickets_arrive_in_steps_where_as_many_wait() {
    const EACH: u64 = 3_000;
    let mut server = arriving(EACH);
    let mut steps = 0;
    loop {
        let before = server.engine.places();
        let left = server.engine.settle_dirty(&mut server.keys, NOW, A_STEP);
        let closed = server.keys.close();
        let brought = server.engine.places() - before;
        assert!(brought <= PLACES_A_STEP, "{brought} places in one step");
        let written: usize = closed.iter().map(|closed| closed.effect.len()).sum();
        assert!(written < 40 * PLACES_A_STEP, "{written} bytes in one step");
        if steps == 0 {
            assert!(matches!(
                ask(&mut server, "ACQUIRE k new"),
                Reply::NullArray
            ));
            assert_eq!(ask(&mut server, "CANCEL k late"), Reply::Integer(1));
            assert!(matches!(
                ask(&mut server, "FAIRACQUIRE k early2999 1000"),
                Reply::NullArray
            ));
        }
        steps += 1;
        if !left {
            break;
        }
    }
    // What is asked meanwhile also takes steps.
    assert!(steps > 1, "{steps} steps");
    assert_eq!(server.engine.places() as u64, 2 * EACH);
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    // All stand by number, and the value has all of the tickets.
    for (owner, at) in [
        ("early0", 0),
        ("early2999", 2999),
        ("w0", 3000),
        ("w2999", 5999),
    ] {
        let rank = server
            .engine
            .position(None, name.as_ref(), owner.as_bytes());
        assert_eq!(rank, Some(at), "{owner}");
    }
    let lock = server.keys.lock(&name).expect("it is queued for");
    assert_eq!(lock.tickets_len() as u64, 2 * EACH);
}

/// No place is granted before its queue is reconciled up to there: here a step brings none of the tickets before it.
#[test]
fn nobody_overtakes_a_ticket_that_has_no_place_yet() {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k holder 60000");
    ask(&mut server, "ACQUIRE k waiter 60000 SHARED BLOCK 0");
    let mut lock = Lock::default();
    lock.apply(&Change::Hold(Hold {
        owner: b"reader",
        token: Token(NOW.us - 10_000),
        deadline: NOW.wall().after(60_000),
        holds: 1,
        limit: Limit::SHARED,
        permits: ONE,
        client: ClientId::NONE,
        fresh: false,
    }));
    // A user can bring that: a holder has no place.
    for at in 0..PLACES_A_STEP as u64 {
        add_ticket(&mut lock, NOW.us - 9_000 + at, "reader");
    }
    add_ticket(&mut lock, NOW.us - 1_000, "writer");
    let value = codec::decode(&codec::encode(&lock)).expect("a lock");
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let value = Value::Lock(Box::new(value), None);
    server.keys.values.insert(name.clone(), value);
    server.engine.on_key_changed(name.as_ref());
    let mut steps = 1;
    while server.engine.settle_dirty(&mut server.keys, NOW, A_STEP) {
        server.keys.close();
        steps += 1;
    }
    server.keys.close();
    assert_eq!((steps, server.engine.take_outputs().len()), (2, 0));
    assert_eq!(server.engine.places(), 2);
}

/// Those that wait at a key of another type are refused in steps.
#[test]
fn a_crowd_at_another_type_is_refused_in_steps() {
    let mut server = arriving(3_000);
    server.keys.close();
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    server.keys.values.insert(name.clone(), Value::Other);
    let mut told = 0;
    while server.engine.settle_dirty(&mut server.keys, NOW, A_STEP) {
        server.keys.close();
        let step = server.engine.take_outputs().len();
        assert!(step <= PLACES_A_STEP, "{step} in one step");
        told += step;
    }
    server.keys.close();
    told += server.engine.take_outputs().len();
    assert_eq!((told, server.engine.places()), (3_000, 0));
    assert!(server.engine.is_idle());
}

/// One step of refusals ends before a request for many locks, which is then at the head of what looks like a free lock.
#[test]
fn a_request_for_many_locks_takes_no_value_of_another_type() {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k ann");
    ask(&mut server, "ACQUIRE other ben");
    for at in 0..PLACES_A_STEP {
        ask(&mut server, &format!("ACQUIRE k waits{at} BLOCK 0"));
    }
    ask(&mut server, "MACQUIRE 2 k other many BLOCK 0");
    settle(&mut server);
    let name = crate::world::name(0, "k");
    server.keys.values.insert(name.clone(), Value::Other);
    server.engine.on_key_changed(name.as_ref());
    ask(&mut server, "RELEASE other ben");
    let mut told = server.engine.take_outputs();
    while server.engine.unsettled() {
        server.engine.settle_dirty(&mut server.keys, NOW, A_STEP);
        server.keys.close();
        told.extend(server.engine.take_outputs());
    }
    assert!(matches!(server.keys.values.get(&name), Some(Value::Other)));
    let refused = told.iter().map(|output| match &output.outcome {
        Outcome::Refused(Refusal::At(error, _)) => **error == Refusal::WrongType,
        outcome => *outcome == Outcome::Refused(Refusal::WrongType),
    });
    assert_eq!(
        refused.filter(|refused| *refused).count(),
        PLACES_A_STEP + 1
    );
    assert_eq!(server.engine.places(), 0);
}

/// Requests for many locks whose connections end together leave their queues in steps, and count as gone at once.
#[test]
fn requests_for_many_locks_leave_in_steps() {
    const KEYS: usize = 500;
    const REQUESTS: usize = 40;
    // The places that leave in a step, and those at the heads of the queues that are settled.
    const MOST: usize = 4096 + A_STEP * REQUESTS;
    for times_out in [false, true] {
        let mut server = Server::new(true, Policy::default());
        ask(&mut server, "ACQUIRE k0 holder 60000");
        let keys: Vec<String> = (0..KEYS).map(|at| format!("k{at}")).collect();
        let keys = format!("{KEYS} {}", keys.join(" "));
        let mut waiting = Vec::new();
        for at in 0..REQUESTS {
            let line = format!("MACQUIRE {keys} o{at} 60000 BLOCK 5000");
            match ask(&mut server, &line) {
                Reply::Wait(id, _) => waiting.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(server.engine.places(), KEYS * REQUESTS);
        let now = Now {
            us: NOW.us + 5_000_000,
            steady_us: NOW.steady_us + 5_000_000,
        };
        match times_out {
            true => drop(server.engine.tick(now)),
            false => waiting
                .into_iter()
                .for_each(|id| server.engine.leave(id, now)),
        }
        if !times_out {
            let words: [&[u8]; 3] = [b"ACQUIRE", b"k7", b"new"];
            let granted = server.run(now, 0, Client::connection(2), &words);
            assert!(matches!(granted, Ok(Reply::Grant(..))), "{granted:?}");
            server.keys.close();
        }
        let (mut steps, mut events) = (0, 0);
        loop {
            let before = server.engine.places();
            let left = server.engine.settle_dirty(&mut server.keys, now, A_STEP);
            let closed = server.keys.close();
            events += closed.iter().map(|key| key.events.len()).sum::<usize>();
            steps += 1;
            let gone = before - server.engine.places();
            assert!(gone <= MOST, "{gone} places in one step");
            if !left {
                break;
            }
        }
        assert!(steps > 3, "{steps} steps");
        assert_eq!(server.engine.places(), 0);
        let timeouts = if times_out { KEYS * REQUESTS } else { 0 };
        assert_eq!(events, timeouts);
        let told = server.engine.take_outputs().len();
        assert_eq!(told, if times_out { REQUESTS } else { 0 });
    }
}

/// A wait whose time is up is not the longer in coming for a long chain of requests for many locks before it.
#[test]
fn a_chain_before_a_wait_delays_no_time_out() {
    const CHAIN: usize = 2_000;
    const WAITS: usize = 200;
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k0 holder 60000");
    for at in 0..CHAIN {
        let line = format!("MACQUIRE 2 k{at} k{} o{at} 60000 BLOCK 60000", at + 1);
        assert!(matches!(ask(&mut server, &line), Reply::Wait(..)));
    }
    for at in 0..WAITS {
        let line = format!("ACQUIRE k{CHAIN} w{at} 60000 BLOCK 5000");
        assert!(matches!(ask(&mut server, &line), Reply::Wait(..)));
    }
    server.engine.tick(LATER);
    let mut steps = 1;
    while server.engine.settle_dirty(&mut server.keys, LATER, A_STEP) {
        server.keys.close();
        steps += 1;
    }
    assert_eq!(server.engine.take_outputs().len(), WAITS);
    assert!(steps < 40, "{steps} steps");
}

/// The number of requests that become grantable together.
const GRANTABLE: usize = 300;

/// An event that concerns very many places.
struct Mass {
    what: &'static str,
    make: fn() -> Server,
    happens: fn(&mut Server),
    /// The most places that come or go, and answers, in the event or a step after it.
    most: usize,
}

/// Five seconds after the beginning.
const LATER: Now = Now {
    us: NOW.us + 5_000_000,
    steady_us: NOW.steady_us + 5_000_000,
};

/// Makes `requests` requests wait for a lock that another holds for five seconds, and for `others` more each.
fn waiting_for_many(requests: usize, others: usize) -> Server {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k holder 5000");
    for at in 0..requests {
        let others: Vec<String> = (0..others).map(|other| format!("j{at}-{other}")).collect();
        let keys = format!("{} k {}", others.len() + 1, others.join(" "));
        let line = format!("MACQUIRE {keys} o{at} 60000 SHARED BLOCK 5000");
        assert!(matches!(ask(&mut server, &line), Reply::Wait(..)));
    }
    server
}

const MASSES: [Mass; 6] = [
    Mass {
        what: "tickets arrive",
        make: || arriving(1_500),
        happens: |_| {},
        most: PLACES_A_STEP,
    },
    Mass {
        what: "a value of another type arrives",
        make: || arriving(1_500),
        happens: |server| {
            let values = server.keys.values.values_mut();
            values.for_each(|value| *value = Value::Other);
        },
        most: 2 * PLACES_A_STEP,
    },
    Mass {
        what: "connections of requests for many locks end",
        make: || waiting_for_many(20, 499),
        happens: |server| (1..=20).for_each(|id| server.engine.leave(RequestId(id), LATER)),
        most: 4096 + 500 + A_STEP * 20,
    },
    Mass {
        what: "requests for many locks time out",
        make: || {
            let mut server = waiting_for_many(20, 499);
            ask(&mut server, "RENEW k holder 60000");
            server
        },
        happens: |server| {
            server.engine.tick(LATER);
        },
        most: 4096 + 500 + A_STEP * 20,
    },
    Mass {
        what: "requests for many locks become grantable",
        make: || waiting_for_many(GRANTABLE, 7),
        happens: |server| {
            let released = server.run(
                NOW,
                0,
                Client::connection(1),
                &[b"RELEASE", b"k", b"holder"],
            );
            assert!(matches!(released, Ok(Reply::Integer(0))), "{released:?}");
        },
        most: PLACES_A_STEP + 8 + PLACES_A_STEP / 8,
    },
    Mass {
        what: "requests for many locks become grantable as their time is up",
        make: || waiting_for_many(GRANTABLE, 7),
        happens: |server| {
            server.engine.tick(LATER);
        },
        most: PLACES_A_STEP + 8 + PLACES_A_STEP / 8,
    },
];

impl Mass {
    /// Performs the event, and what follows. Returns the most work of a step; with the fault, all steps are one.
    fn happen(&self, fault: bool) -> (usize, Vec<Outcome>) {
        let mut server = (self.make)();
        let (mut most, mut work, mut told) = (0, 0, Vec::new());
        let mut before = server.engine.places();
        (self.happens)(&mut server);
        for _ in 0..1_000 {
            server.keys.close();
            let outputs = server.engine.take_outputs();
            work += server.engine.places().abs_diff(before) + outputs.len();
            before = server.engine.places();
            told.extend(outputs.into_iter().map(|output| output.outcome));
            most = most.max(work);
            if !server.engine.unsettled() {
                return (most, told);
            }
            if !fault {
                work = 0;
            }
            server.engine.settle_dirty(&mut server.keys, LATER, A_STEP);
        }
        panic!("{}: settlement does not end", self.what);
    }
}

/// The work of a step is bounded, and one that did everything at once would be seen.
#[test]
fn no_step_does_everything() {
    for mass in MASSES {
        let (most, _) = mass.happen(false);
        assert!(most <= mass.most, "{}: {most} in one step", mass.what);
        let (most, _) = mass.happen(true);
        assert!(most > mass.most, "{}: {most} in one step", mass.what);
    }
}

/// Those left to the next step get what has come free, even if their time is up, and in order.
#[test]
fn requests_for_many_locks_are_granted_in_order() {
    for mass in &MASSES[4..] {
        let (_, told) = mass.happen(false);
        let tokens = told.iter().map(|outcome| match outcome {
            Outcome::GrantedAll(grants) => grants[0].token,
            other => panic!("{}: {other:?}", mass.what),
        });
        let tokens: Vec<Token> = tokens.collect();
        assert_eq!(tokens.len(), GRANTABLE, "{}", mass.what);
        assert!(tokens.is_sorted(), "{}", mass.what);
    }
}

/// The windows of a value that has moved and comes to no other name are forgotten.
#[test]
fn windows_of_what_does_not_come_are_forgotten() {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k holder 60000");
    ask(&mut server, "FAIRACQUIRE k owner");
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    server.keys.values.clear();
    server.engine.on_key_moved(name.as_ref());
    settle(&mut server);
    assert!(!server.engine.is_idle());
    for (ms, idle) in [(6_999, false), (7_000, true)] {
        let now = Now {
            us: NOW.us + 1_000 * ms,
            steady_us: NOW.steady_us + 1_000 * ms,
        };
        server.engine.begin_scan();
        while server.engine.scan_step(&mut server.keys, now, A_STEP) {}
        assert_eq!(server.engine.is_idle(), idle, "after {ms} ms");
    }
}

/// Returns a server where this many requests wait for one lock, each with these words, in the session of its number.
fn queued(requests: usize, words: &str) -> Server {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k ann");
    for at in 0..requests {
        let words = words.replace("{}", &at.to_string());
        ask(&mut server, &format!("ACQUIRE k ben{at} {words}"));
    }
    settle(&mut server);
    server
}

/// Returns a server where one session waits for this many locks by requests of its own, and by this many requests for `each` more.
fn queued_everywhere(locks: usize, requests: usize, each: usize) -> Server {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "ACQUIRE k0 ann");
    for at in 0..locks {
        ask(&mut server, &format!("ACQUIRE k{at} ann"));
        ask(
            &mut server,
            &format!("ACQUIRE k{at} s/{at} BLOCK 1000 IN s"),
        );
    }
    for at in 0..requests {
        let others: Vec<String> = (1..each).map(|other| format!("m{at}-{other}")).collect();
        let keys = format!("{each} k0 {}", others.join(" "));
        ask(
            &mut server,
            &format!("MACQUIRE {keys} many{at} BLOCK 1000 IN s"),
        );
    }
    settle(&mut server);
    server
}

/// Returns how many rows sessions get in each step, until nothing is left.
fn rows_a_step(server: &mut Server, step: impl Fn(&mut Server) -> bool) -> Vec<usize> {
    let mut ended = Vec::new();
    while ended.last() != Some(&0) {
        let before = server.engine.session_rows().0;
        step(server);
        server.keys.close();
        ended.push(server.engine.session_rows().0 - before);
    }
    ended
}

/// The most waits that end in one step.
const ENDS: usize = 1024;

#[test]
fn waits_end_in_steps_where_the_server_accepts_no_write() {
    let mut server = queued(2 * ENDS + 1, "BLOCK 1");
    while server.engine.tick(LATER) {}
    let mut ends = || {
        (
            server.engine.time_out(LATER),
            server.engine.take_outputs().len(),
        )
    };
    assert_eq!(
        [ends(), ends(), ends()],
        [(true, ENDS), (true, ENDS), (false, 1)]
    );
}

#[test]
fn waits_of_sessions_end_in_steps_where_the_server_accepts_no_write() {
    let mut server = queued_everywhere(0, 10, 500);
    while server.engine.tick(LATER) {}
    let ended = rows_a_step(&mut server, |server| server.engine.time_out(LATER));
    assert_eq!(ended, [1_500, 1_500, 1_500, 500, 0]);
}

#[test]
fn waits_of_sessions_end_in_steps_where_the_slot_has_left() {
    // Locks that nobody waits for are forgotten besides.
    let settle = |server: &mut Server| server.engine.settle_dirty(&mut server.keys, NOW, 10_000);
    let mut server = queued(2 * ENDS + 1, "BLOCK 0 IN s{}");
    server.keys.away.extend([crate::world::name(0, "k")]);
    server.engine.on_slots_changed(|_| false);
    assert_eq!(rows_a_step(&mut server, settle), [ENDS, ENDS, 1, 0]);

    let mut server = queued_everywhere(2 * ENDS, 10, 500);
    let single = (0..2 * ENDS).map(|at| format!("k{at}"));
    let shared = (0..10).flat_map(|at| (1..500).map(move |other| format!("m{at}-{other}")));
    let keys = single.chain(shared);
    server
        .keys
        .away
        .extend(keys.map(|key| crate::world::name(0, &key)));
    server.engine.on_slots_changed(|_| false);
    let ended = rows_a_step(&mut server, settle);
    assert!(ended.iter().all(|rows| *rows < ENDS + 500), "{ended:?}");
    assert_eq!(ended.iter().sum::<usize>(), 2 * ENDS + 5_000);
}

/// Returns a server that renews more holds of one session than fit one step, five seconds after the beginning.
fn with_renewals() -> Server {
    let mut server = Server::new(true, Policy::default());
    ask(&mut server, "SESSION k s 60000");
    for at in 0..LOCKS {
        ask(&mut server, &format!("ACQUIRE k{at} s/{at} 6000 IN s"));
    }
    server
}

/// Renewals that the server refuses, however many they are, neither keep it busy nor delay the end of a wait.
#[test]
fn settlement_rests_while_renewals_are_refused() {
    let mut server = with_renewals();
    let names = server.keys.values.keys().cloned().collect::<Vec<_>>();
    server.keys.away.extend(names);
    ask(&mut server, "ACQUIRE held ann 60000");
    ask(&mut server, "ACQUIRE held ben BLOCK 5000");
    while server.engine.tick(LATER) {}
    assert!(!server.engine.settle_dirty(&mut server.keys, LATER, A_STEP));
    assert!(server.engine.unsettled(), "the renewals are due");
    let outputs = server.engine.take_outputs();
    let told: Vec<_> = outputs.iter().map(|output| &output.outcome).collect();
    assert_eq!(told, [&Outcome::TimedOut]);
}

/// The time of the request that was asked first has been up for a while, but the server has had no time for that.
#[test]
fn a_request_for_many_locks_that_is_asked_again_waits_on() {
    let mut server = with_renewals();
    ask(&mut server, "ACQUIRE held ann 60000");
    ask(&mut server, "MACQUIRE 2 held free s/many BLOCK 5000 IN s");
    while server.engine.tick(LATER) {}
    assert!(server.engine.settle_dirty(&mut server.keys, LATER, A_STEP));
    server.keys.close();
    let again = b"MACQUIRE 2 held free s/many BLOCK 60000 IN s".as_slice();
    let words: Vec<&[u8]> = again.split(|byte| *byte == b' ').collect();
    let rows = server.engine.session_rows().0;
    let reply = server.run(LATER, 0, Client::connection(1), &words);
    assert!(reply.is_ok(), "{reply:?}");
    while server.engine.settle_dirty(&mut server.keys, LATER, A_STEP) {
        server.keys.close();
    }
    server.keys.close();
    assert_eq!(server.engine.session_rows().0, rows);
    assert_eq!(server.engine.places(), 2);
}
