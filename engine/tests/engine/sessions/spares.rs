//! Sessions that are over, which the engine keeps for a program that comes back soon. It may notice nothing of that.

use super::node::Node;
use crate::client::Client;
use dlock_commands::Reply;
use dlock_engine::Policy;

/// The most sessions that are kept.
const MOST_SPARES: usize = 1_024;

fn send(node: &mut Node, words: &str) -> Vec<Reply> {
    let answer = node.send(Client::connection(1), words);
    node.settle();
    match answer {
        Some(Ok(Reply::Array(parts))) => parts,
        Some(Ok(reply)) => vec![reply],
        other => panic!("{words}: {other:?}"),
    }
}

/// Takes a lock in a session and releases it, which ends the session. Returns the session's id.
fn take_and_release(node: &mut Node, session: &str) -> u64 {
    let granted = send(node, &format!("ACQUIRE k {session}/1 60000 IN {session}"));
    let [Reply::Integer(token), Reply::Integer(id)] = granted[..] else {
        panic!("it was not granted: {granted:?}");
    };
    send(node, &format!("RELEASE k {session}/1 TOKEN {token}"));
    id
}

/// Counts the sessions that are kept after their end. The engine has no getter for them: its debug form shows them.
fn spares(node: &Node) -> usize {
    format!("{:?}", node.server.engine)
        .matches("over: true")
        .count()
}

#[test]
fn a_session_that_begins_again_is_another_one() {
    let mut node = Node::new(Policy::default());
    let first = take_and_release(&mut node, "s");
    assert_eq!((spares(&node), node.server.engine.sessions().0), (1, 0));
    // A row reports a release that names no token. The row goes with the session.
    send(&mut node, "ACQUIRE k s/2 60000 IN s");
    send(&mut node, "RELEASE k s/2");
    let news = send(&mut node, &format!("SESSION k s 1 SEEN {first} 7"));
    let [Reply::Integer(second), Reply::Integer(0), Reply::Null, _] = news[..] else {
        panic!("rows outlive their session: {news:?}");
    };
    assert_ne!(first, second);
    // It is ended by its program: its name is free, and nothing is kept.
    send(&mut node, "SESSION k s 0");
    assert_eq!((spares(&node), node.server.engine.sessions().0), (0, 0));
}

#[test]
fn few_sessions_are_kept_and_not_for_long() {
    let mut node = Node::new(Policy::default());
    for nth in 0..MOST_SPARES + 5 {
        take_and_release(&mut node, &format!("s{nth}"));
    }
    assert_eq!(spares(&node), MOST_SPARES);
    // The youngest begin again; the oldest have gone.
    send(&mut node, &format!("ACQUIRE k s/1 60000 IN s{MOST_SPARES}"));
    send(&mut node, "ACQUIRE l s/2 60000 IN s0");
    assert_eq!(spares(&node), MOST_SPARES - 1);
    node.server.engine.begin_scan();
    assert_eq!((spares(&node), node.server.engine.sessions().0), (0, 2));
}
