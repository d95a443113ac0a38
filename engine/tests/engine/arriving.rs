//! Values that arrive at names with waiters, of kinds that no command here produces.

use crate::client::Client;
use crate::keys::Value;
use crate::server::Server;
use crate::world::name;
use dlock_commands::Reply;
use dlock_engine::{
    change::Change, codec, Arrival, Limit, Lock, Now, Outcome, Output, Policy, Refusal, Share, ONE,
};

const NOW: Now = Now {
    us: 2_000_000_000_000_000,
    steady_us: 1_000_000,
};

/// A time after the end of every window.
const LATER: Now = Now {
    us: NOW.us + 60_000_000,
    steady_us: NOW.steady_us + 60_000_000,
};

fn ask(server: &mut Server, line: &str) -> Reply {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let answer = server.run(NOW, 0, Client::connection(1), &words);
    server.keys.close();
    answer.unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn tickets(tickets: impl Iterator<Item = (u64, String)>) -> Lock {
    let mut lock = Lock::default();
    for (number, owner) in tickets {
        lock.apply(&Change::Ticket {
            number: Arrival(number),
            owner: owner.as_bytes(),
            share: Share {
                limit: Limit::EXCLUSIVE,
                permits: ONE,
            },
            claim: 1_000,
        });
    }
    lock
}

/// Puts a value at a key, as the server reports it.
fn bring(server: &mut Server, key: &str, lock: &Lock) {
    let value = codec::decode(&codec::encode(lock)).expect("a lock");
    let (name, value) = (name(0, key), Value::Lock(Box::new(value), None));
    server.keys.values.insert(name.clone(), value);
    server.engine.on_key_changed(name.as_ref());
}

/// Settles one step. Returns the outcomes that waiting requests received, and whether anything is left.
fn step(server: &mut Server, now: Now) -> (Vec<Outcome>, bool) {
    let left = server.engine.settle_dirty(&mut server.keys, now, 100);
    server.keys.close();
    let told = |output: Output| output.outcome;
    (
        server.engine.take_outputs().into_iter().map(told).collect(),
        left,
    )
}

/// A user can make a value with any numbers, including that of a waiting place whose owner has no ticket here. The ticket then
/// belongs to the value, and nothing of it is left after its window.
#[test]
fn a_ticket_with_the_number_of_a_waiter_is_the_values() {
    for number in NOW.us - 5..NOW.us + 5 {
        let mut server = Server::new(true, Policy::default());
        ask(&mut server, "ACQUIRE k holder 1000");
        assert!(matches!(
            ask(&mut server, "ACQUIRE k ann BLOCK 0"),
            Reply::Wait(..)
        ));
        bring(
            &mut server,
            "k",
            &tickets([(number, "ann".into())].into_iter()),
        );
        let (told, _) = step(&mut server, NOW);
        assert_eq!(told, [Outcome::Refused(Refusal::TryAgain)], "{number}");
        assert_eq!(server.engine.places(), 1);
        server.engine.tick(LATER);
        while step(&mut server, LATER).1 {}
        let left = (server.engine.places(), server.keys.values.len());
        assert_eq!(left, (0, 0), "{number}");
    }
}
