//! Sequences by which the comparison found a fault of the engine, told once more by themselves.

use super::node::Node;
use crate::client::Client;
use dlock_commands::Reply;
use dlock_engine::{Millis, Policy};

/// Returns a server at which this session is kept, and these commands have run on one connection.
fn after(session: &str, commands: &[&str]) -> Node {
    let mut node = Node::new(Policy::default());
    for command in [&*format!("SESSION k {session} 60000")]
        .iter()
        .chain(commands)
    {
        let answer = node.send(Client::connection(1), command);
        assert!(matches!(answer, Some(Ok(_))), "{command}: {answer:?}");
        node.settle();
    }
    node
}

/// Returns the words of a session's rows, and what is left of each lease.
fn told(node: &Node, session: &str) -> Vec<(&'static str, Millis)> {
    let rows = node.rows(session).into_iter();
    rows.map(|row| (row.word, row.left)).collect()
}

#[test]
fn a_hold_that_is_taken_ends_when_the_command_says_that_took_it() {
    for (lease, command) in [
        (5_000, "RENEW k s/1 5000"),
        (20_000, "RENEW k s/1 20000"),
        (5_000, "RENEW k s/1 5000 EPHEMERAL"),
        (20_000, "ACQUIRE k s/1 20000 EPHEMERAL"),
        (20_000, "RENEW k s/1 20000 IN t"),
        (20_000, "ACQUIRE k s/1 20000 IN t"),
    ] {
        let node = after("s", &["ACQUIRE k s/1 10000 IN s", command]);
        let rows = told(&node, "s");
        assert_eq!(rows, [("granted", 0), ("taken", lease)], "{command}");
    }
}

#[test]
fn a_request_for_many_locks_replaces_one_for_one_of_them_in_its_session() {
    let free = &["ACQUIRE k ann 60000", "ACQUIRE k s/1 BLOCK 0 IN s"];
    let waits = [
        free,
        &["ACQUIRE m ann 60000", "MACQUIRE 2 k m s/1 BLOCK 0 IN s"][..],
    ]
    .concat();
    assert_eq!(told(&after("s", &waits), "s"), [("replaced", 0)]);
    let granted = [
        "ACQUIRE k ann 60000 SHARED",
        "ACQUIRE k s/1 BLOCK 0 IN s",
        "MACQUIRE 2 k m s/1 10000 SHARED IN s BLOCK 0",
    ];
    let rows = [("replaced", 0), ("granted", 10_000), ("granted", 10_000)];
    assert_eq!(told(&after("s", &granted), "s"), rows);
}

#[test]
fn what_a_reply_has_said_answers_nothing_early_after_a_later_row_has_gone() {
    let mut node = after(
        "s",
        &[
            "ACQUIRE k s/1 60000 IN s",
            "ACQUIRE m ann 60000",
            "ACQUIRE m s/2 60000 BLOCK 0 IN s",
            "RELEASE m ann",
        ],
    );
    let token = node.rows("s").last().expect("the row of the grant").token;
    let released = node.send(
        Client::connection(1),
        &format!("RELEASE m s/2 TOKEN {token}"),
    );
    assert_eq!(released, Some(Ok(Reply::Integer(0))));
    let answer = node.send(Client::connection(1), "SESSION k s 60000 BLOCK 1000");
    assert_eq!(answer, None, "the row that is left repeats a reply");
}

#[test]
fn who_asks_again_in_a_session_that_is_not_alive_keeps_the_place_for_another_window() {
    for request in [
        "ACQUIRE k s/1 BLOCK 0 IN s",
        "MACQUIRE 2 k m s/1 BLOCK 0 IN s",
    ] {
        let mut node = after("s", &["ACQUIRE k ann 60000", request]);
        node.dies(1);
        node.pass(4_000);
        node.send(Client::connection(2), request);
        node.pass(4_000);
        let place = node.send(Client::connection(2), "POSITION k s/1");
        assert_eq!(place, Some(Ok(Reply::Integer(0))), "{request}");
        node.pass(1_000);
        let place = node.send(Client::connection(2), "POSITION k s/1");
        assert_eq!(place, Some(Ok(Reply::Null)), "{request}");
    }
}

/// Another program is granted a lock by a command that asks again: no reply has told it so.
#[test]
fn who_is_granted_behind_a_request_that_asks_again_hears_of_it_at_once() {
    let again = "MACQUIRE 2 k m s/1 SHARED BLOCK 0 IN s";
    let mut node = Node::new(Policy::default());
    for command in [
        "ACQUIRE k ann 60000",
        again, // in a session that is not alive
        "SESSION k t 60000",
        "ACQUIRE k t/1 60000 SHARED BLOCK 0 IN t",
    ] {
        let answer = node.send(Client::connection(1), command);
        assert!(matches!(answer, Some(Ok(_))), "{command}: {answer:?}");
        node.settle();
    }
    let answer = node.send(Client::connection(2), "SESSION k t 60000 BLOCK 60000");
    assert_eq!(answer, None);
    node.send(Client::connection(1), "RELEASE k ann");
    node.settle();
    assert!(node.is_blocked(2), "the request before it is withheld");
    node.send(Client::connection(1), again);
    node.settle();
    assert!(!node.is_blocked(2));
    assert_eq!(told(&node, "t"), [("granted", 60_000)]);
}
