//! Values that no server has made: RESTORE refuses them, or makes working locks of them.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_harness::dump::{restore, seal, value, Frame};
use dlock_harness::redis::Value;
use dlock_harness::{assert_hands_over, assert_sound, position, Ask, Blocked, Grant, Server};

const HOUR_MS: u64 = 3_600_000;

fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since.as_micros() as u64
}

/// Returns the payload with a correct checksum after a change.
fn resealed(mut payload: Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len().saturating_sub(8));
    seal(payload)
}

/// Windows near the largest number: added to the clock, or converted to microseconds, they must not end in the past. Each has a
/// server to itself, with no earlier time-out.
#[test]
fn a_restored_claim_window_is_bounded() {
    for claim in [1 << 62, (1 << 63) - 1, 18_446_744_073_709_552] {
        let server = Server::start();
        let mut c = server.connection();
        let frame = Frame::learn(&mut c);
        c.run("CONFIG SET dlock.max-claim-ms 300");
        c.run("CONFIG SET dlock.claim-window-ms 200");
        let payload = frame.around(&value(1, &[], &[(now_us(), claim, 1, b"gone")]));
        restore(&mut c, "k", &payload).expect("a window that is bounded");
        let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
        bob.reply::<Grant>();
        assert_hands_over(&server, &mut c);
        assert_sound(&server);
    }
}

/// A number too low for any server is refused. The lowest valid one keeps the lock reserved for its window, and no longer.
#[test]
fn a_restored_ticket_number_stands_in_nobodys_way() {
    const LOWEST: u64 = 1 << 40;
    let server = Server::start();
    let mut c = server.connection();
    let frame = Frame::learn(&mut c);
    let now = now_us();
    let with_ticket = |number| {
        let hold = (now, now / 1_000 + HOUR_MS, 1, 1, &b"alice"[..]);
        frame.around(&value(1, &[hold], &[(number, 600_000, 1, b"first")]))
    };
    for number in [1, LOWEST - 1] {
        let refused = restore(&mut c, "k", &with_ticket(number));
        assert!(refused.is_err(), "{number}");
    }
    restore(&mut c, "k", &with_ticket(LOWEST)).expect("a number that a server may have given");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    assert_eq!(position(&mut c, "k", "first"), Some(0));
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    assert!(bob.is_blocked(&server), "it is kept for the ticket");
    c.run("DLOCK.FAIRACQUIRE k first CLAIM 600000");
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k first"), 0);
    bob.reply::<Grant>();
    // No owner claims the next one.
    c.run("CONFIG SET dlock.max-claim-ms 300");
    c.run("CONFIG SET dlock.claim-window-ms 200");
    c.run("DEL k");
    restore(&mut c, "k", &with_ticket(LOWEST)).expect("a number that a server may have given");
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    let carol = Blocked::send(&server, "DLOCK.ACQUIRE k carol 600000 BLOCK 0");
    carol.reply::<Grant>();
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// No server makes a state with two owners of one mutex.
#[test]
fn a_restored_lock_obeys_the_rule_of_granting() {
    let server = Server::start();
    let mut c = server.connection();
    let frame = Frame::learn(&mut c);
    let (now, later) = (now_us(), now_us() / 1_000 + HOUR_MS);
    for limits in [[1, 1], [1, 0], [0, 1]] {
        let payload = frame.around(&value(
            0,
            &[
                (now, later, 1, limits[0], b"alice"),
                (now + 1, later, 1, limits[1], b"bob"),
            ],
            &[],
        ));
        assert!(restore(&mut c, "k", &payload).is_err(), "{limits:?}");
    }
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// A hold has at least one permit, and no more than its limit.
#[test]
fn restored_permits_are_possible() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000 LIMIT 16 PERMITS 8");
    let dump: Vec<u8> = c.ask("DUMP k");
    let at = (0..dump.len()).find(|at| dump[*at..].starts_with(b"\x10\x08\x05alice"));
    let at = 1 + at.expect("limit, permits and owner stand side by side");
    let with = |permits: u8| {
        let mut body = dump[..dump.len() - 8].to_vec();
        body[at] = permits;
        seal(body)
    };
    for permits in [0, 17, 127] {
        let refused = restore(&mut c, "k", &with(permits));
        assert_eq!(refused, Err("ERR Bad data format".to_string()), "{permits}");
    }
    restore(&mut c, "k", &with(16)).expect("all of them");
    assert_eq!(
        c.try_ask("DLOCK.ACQUIRE k bob LIMIT 16"),
        Ok(Value::Nil),
        "alice has all"
    );
    c.run("DLOCK.FORCERELEASE k");
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// No server gives one token to two holders.
#[test]
fn restored_holders_have_tokens_of_their_own() {
    let server = Server::start();
    let mut c = server.connection();
    let frame = Frame::learn(&mut c);
    let (now, later) = (now_us(), now_us() / 1_000 + HOUR_MS);
    let readers = |tokens: [u64; 3]| {
        let owners = [&b"alice"[..], b"bob", b"carol"];
        let hold = |(token, owner): (u64, &'static [u8])| (token, later, 1, 0, owner);
        let holds: Vec<_> = tokens.into_iter().zip(owners).map(hold).collect();
        frame.around(&value(0, &holds, &[]))
    };
    for tokens in [[now, now, now + 1], [now, now + 1, now], [now; 3]] {
        let refused = restore(&mut c, "k", &readers(tokens));
        assert!(refused.is_err(), "{tokens:?}");
    }
    restore(&mut c, "k", &readers([now, now + 1, now + 2])).expect("a token each");
    c.run("DLOCK.FORCERELEASE k");
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// Every byte of a payload changed in turn, to a few values, and every length cut off: refused, or a working lock.
#[test]
fn mutated_payloads_do_no_harm() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    for owner in ["bob", "carol", "dave"] {
        c.run(&format!("DLOCK.FAIRACQUIRE k {owner} CLAIM 600000"));
    }
    let sound: Vec<u8> = c.ask("DUMP k");
    c.run("CONFIG SET dlock.claim-window-ms 1");
    c.run("CONFIG SET dlock.max-claim-ms 1");
    let cut = (0..sound.len() - 8).map(|len| resealed([&sound[..len], &[0; 8][..]].concat()));
    let changed = (0..sound.len() - 10).flat_map(|at| {
        let sound = &sound;
        (0..=255_u8)
            .step_by(7)
            .chain([1, 2, 127, 128, 255])
            .map(move |byte| {
                let mut payload = sound.clone();
                payload[at] = byte;
                resealed(payload)
            })
    });
    let (mut tried, mut taken) = (0, 0);
    for payload in cut.chain(changed) {
        tried += 1;
        if restore(&mut c, "m", &payload).is_err() {
            continue;
        }
        taken += 1;
        // An accepted value can be read, waited for, given up, dumped and removed.
        for line in [
            "DLOCK.INFO m",
            "DLOCK.ACQUIRE m eve 1000",
            "DLOCK.FORCERELEASE m",
            "DUMP m",
            "DEL m",
        ] {
            // WRONGTYPE is an answer as well: a changed type byte makes another type.
            let _ = c.try_ask(line);
        }
    }
    assert!(tried > 2_000 && taken > 0, "{tried} tried, {taken} taken");
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}
