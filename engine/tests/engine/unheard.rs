//! Answers that wait for replicas: which holds are revoked, and which stand, if the replicas do not confirm them.

use crate::client::Client;
use crate::server::Server;
use crate::world::name;
use dlock_commands::Reply;
use dlock_engine::{codec, Now, Policy, Promise};

const NOW: Now = Now {
    us: 1_000_000_000_000,
    steady_us: 5_000,
};

/// Returns a primary with one counting replica, which must confirm its answers.
fn primary() -> Server {
    let policy = Policy {
        replicas_needed: 1,
        replicas_counting: 1,
        ..Policy::default()
    };
    Server::new(true, policy)
}

/// Returns the promises of the answer to a command, which waits for replicas.
fn ask(server: &mut Server, client: u64, line: &str) -> Vec<Promise> {
    let reply = say(server, client, line);
    let waits = match &reply {
        Reply::Wait(..) => true,
        // In a session: token 0.
        Reply::Array(parts) => parts[0] == Reply::Integer(0),
        _ => false,
    };
    assert!(waits, "{line}: {reply:?}");
    let mut outputs = server.engine.take_outputs();
    assert_eq!(outputs.len(), 1, "{line}");
    outputs
        .pop()
        .map(|output| output.pending)
        .unwrap_or_default()
        .promises
}

fn say(server: &mut Server, client: u64, line: &str) -> Reply {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let reply = server.run(NOW, 0, Client::connection(client), &words);
    server.keys.close();
    reply.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Reports that the replicas have not confirmed these.
fn refuse(server: &mut Server, promises: Vec<Promise>) {
    server.engine.on_undelivered(promises);
    server.engine.revoke_undelivered(&mut server.keys, NOW);
    server.keys.close();
}

/// Returns the words of the rows that a session has not seen.
fn news(server: &mut Server) -> Vec<&'static str> {
    let word = |row: &Reply| match row {
        Reply::Array(parts) => match parts[1] {
            Reply::Text(word) => word,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    match say(server, 1, "SESSION shop app 9000") {
        Reply::Array(parts) => match &parts[..] {
            [_, _, _, Reply::Array(rows)] => rows.iter().map(word).collect(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn is_held(server: &mut Server, key: &str) -> bool {
    !matches!(say(server, 9, &format!("HELD {key} ada")), Reply::NullArray)
}

#[test]
fn a_new_hold_that_nothing_has_touched_is_given_back() {
    let mut server = primary();
    let promises = ask(&mut server, 1, "MACQUIRE 2 shop yard ada EPHEMERAL");
    refuse(&mut server, promises);
    assert!(!is_held(&mut server, "shop") && !is_held(&mut server, "yard"));
    assert_eq!(server.engine.ephemeral(), 0);
    assert!(server.engine.holds().unconfirmed.is_empty());
}

/// Whether the answer to the later command was confirmed or not.
#[test]
fn a_hold_that_a_later_command_has_touched_stands() {
    for line in [
        "ACQUIRE shop ada HOLDS 1",
        "RENEW shop ada",
        "MRENEW 1 shop ada",
        "FAIRACQUIRE shop ada",
        "MACQUIRE 2 shop yard ada",
    ] {
        let mut server = primary();
        let first = ask(&mut server, 1, "ACQUIRE shop ada");
        let second = ask(&mut server, 2, line);
        refuse(&mut server, first);
        refuse(&mut server, second);
        assert!(is_held(&mut server, "shop"), "{line}");
        assert!(!is_held(&mut server, "yard"), "{line}");
    }
    for line in [
        "DOWNGRADE shop ada LIMIT 1",
        "DOWNGRADE shop ada SHARED",
        "RELEASE shop ada",
        "RELEASE shop ada HOLDS 2",
    ] {
        let mut server = primary();
        let first = ask(&mut server, 1, "ACQUIRE shop ada HOLDS 2");
        say(&mut server, 2, line);
        refuse(&mut server, first);
        assert!(is_held(&mut server, "shop"), "{line}");
    }
}

/// Commands of others, and the server's own actions, do not count.
#[test]
fn only_its_owner_touches_a_hold() {
    let mut server = primary();
    let first = ask(&mut server, 1, "ACQUIRE shop ada LIMIT 2");
    let second = ask(&mut server, 2, "ACQUIRE shop ben LIMIT 2");
    say(&mut server, 3, "INFO shop");
    refuse(&mut server, first);
    assert!(!is_held(&mut server, "shop"));
    refuse(&mut server, second);
    assert!(server.data().is_empty());
}

#[test]
fn a_reentry_and_an_upgrade_stand() {
    let mut server = primary();
    let promises = ask(&mut server, 1, "ACQUIRE shop ada SHARED");
    server.engine.confirmed(&promises, 0);
    let reentry = ask(&mut server, 1, "ACQUIRE shop ada SHARED");
    refuse(&mut server, reentry);
    let upgrade = ask(&mut server, 1, "ACQUIRE shop ada");
    let Some(Promise { token, .. }) = upgrade.first().cloned() else {
        panic!("the upgrade is granted")
    };
    refuse(&mut server, upgrade);
    let Reply::Array(held) = say(&mut server, 1, "HELD shop ada") else {
        panic!("the lock is held")
    };
    assert_eq!(held[..2], [Reply::Integer(token.0), Reply::Integer(3)]);
}

/// A hold that no program knew is no loss. A hold that its session had before is one.
#[test]
fn what_nobody_had_nobody_loses() {
    let mut server = primary();
    let promises = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    say(&mut server, 2, "FORCERELEASE shop");
    refuse(&mut server, promises);
    assert_eq!(news(&mut server), ["again"]);

    let mut server = primary();
    let promises = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    server.engine.confirmed(&promises, 0);
    let reentry = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    say(&mut server, 2, "FORCERELEASE shop");
    refuse(&mut server, reentry);
    assert_eq!(news(&mut server), ["granted", "forced", "again"]);
}

/// A second hold under a token, which a user has brought, is another hold: the outcome of its answer says nothing about the first.
#[test]
fn answers_about_two_holds_of_one_token_are_told_apart() {
    let acked = |server: &mut Server, key: &str| {
        let name = name(0, key);
        let lock = server.keys.lock(&name);
        let view = server.engine.view(lock, NOW, name.as_ref(), 1);
        view.is_some_and(|view| view.holders.iter().all(|hold| hold.acked))
    };
    let mut server = primary();
    let first = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    let stored = server.keys.lock(&name(0, "shop")).map(codec::encode);
    server.bring(&name(0, "cart"), &stored.unwrap_or_default(), None, NOW);
    assert!(acked(&mut server, "cart") && !acked(&mut server, "shop"));
    let second = ask(&mut server, 2, "ACQUIRE cart ada EPHEMERAL");
    server.engine.confirmed(&second, 0);
    assert!(acked(&mut server, "cart") && !acked(&mut server, "shop"));
    // Nobody had it yet, so nobody loses it.
    say(&mut server, 3, "FORCERELEASE shop");
    assert!(!news(&mut server).contains(&"forced"));
    refuse(&mut server, first);
    assert!(is_held(&mut server, "cart"));
}

/// Its answer still waits for a confirmation, whatever became of a later one.
#[test]
fn a_later_answer_leaves_a_hold_unconfirmed() {
    let mut server = primary();
    let first = ask(&mut server, 1, "ACQUIRE shop ada BLOCK 60000 IN app");
    let second = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    server.engine.on_undelivered(second);
    assert_eq!(server.engine.holds().unconfirmed.len(), 1);
    server.engine.confirmed(&first, 0);
    assert!(server.engine.holds().unconfirmed.is_empty());
}

/// The server's renewal is confirmed only after commands have ended the lease earlier.
#[test]
fn a_late_confirmation_prolongs_no_lease() {
    let mut server = primary();
    let mut promises = ask(&mut server, 1, "ACQUIRE shop ada 60000 IN app");
    server.engine.confirmed(&promises, 0);
    ask(&mut server, 2, "RENEW shop ada 1000");
    let shortened = ask(&mut server, 2, "RENEW shop ada 1000 IN app");
    promises
        .iter_mut()
        .for_each(|promise| promise.is_new = false);
    server.engine.prolonged(&promises);
    server.engine.confirmed(&shortened, 0);
    let Reply::Array(told) = say(&mut server, 1, "SESSION shop app 9000") else {
        panic!("a session has a reply")
    };
    let Reply::Integer(left) = told[2] else {
        panic!("a confirmed lease ends: {told:?}")
    };
    assert!(left <= 1_000, "{left}");
}

/// Its program asked again before the first answer's time was up, and the replicas confirm only the second one.
#[test]
fn a_hold_that_is_to_be_revoked_is_confirmed_to_nobody() {
    for line in [
        "ACQUIRE shop ada BLOCK 60000 IN app",
        "RENEW shop ada",
        "RENEW shop ada IN app",
    ] {
        let mut server = primary();
        let first = ask(&mut server, 1, "ACQUIRE shop ada IN app");
        let second = ask(&mut server, 1, line);
        let stands = |server: &mut Server| {
            let mut each = second.iter();
            let stands = each.all(|one| server.engine.stands(&mut server.keys, NOW, one));
            server.keys.close();
            stands
        };
        assert!(stands(&mut server), "{line}");
        // The server accepts no write now.
        server.engine.on_undelivered(first);
        assert!(!stands(&mut server), "{line}");
        refuse(&mut server, Vec::new());
        assert!(!is_held(&mut server, "shop"), "{line}");
    }
}

#[test]
fn the_next_session_of_that_name_hears_nothing_of_the_last_one() {
    let mut server = primary();
    let promises = ask(&mut server, 1, "ACQUIRE shop ada IN app");
    say(&mut server, 2, "FORCERELEASE shop");
    server.engine.settle_dirty(&mut server.keys, NOW, 16);
    server.engine.tell_sessions(NOW);
    assert_eq!(server.engine.sessions().0, 0);
    refuse(&mut server, promises);
    assert_eq!(news(&mut server), [""; 0]);
}
