//! Many holds that are taken within a second. The newest of them are in none of a session's orders, which nobody may notice.

use super::node::Node;
use crate::client::Client;
use dlock_commands::Reply;
use dlock_engine::Policy;

/// More than may stay out of the orders.
const HOLDS: u64 = 1_500;

fn send(node: &mut Node, words: &str) -> Vec<Reply> {
    let answer = node.send(Client::connection(1), words);
    node.settle();
    match answer {
        Some(Ok(Reply::Array(parts))) => parts,
        Some(Ok(reply)) => vec![reply],
        other => panic!("{words}: {other:?}"),
    }
}

/// Takes all locks within a second, and releases those that `released` is true of, at once. Returns the shortest lease of the others.
fn take(node: &mut Node, released: impl Fn(u64) -> bool) -> u64 {
    let lease = |nth| 12_000 + nth * 7_919 % HOLDS;
    for nth in 0..HOLDS {
        let granted = send(node, &format!("ACQUIRE k{nth} s/{nth} {} IN s", lease(nth)));
        let [Reply::Integer(token), _] = granted[..] else {
            panic!("k{nth} was not granted: {granted:?}");
        };
        if released(nth) {
            send(node, &format!("RELEASE k{nth} s/{nth} TOKEN {token}"));
        }
    }
    (0..HOLDS)
        .filter(|nth| !released(*nth))
        .map(lease)
        .min()
        .unwrap_or(0)
}

fn held(node: &mut Node) -> usize {
    let mut holds = |nth| matches!(send(node, &format!("HELD k{nth}"))[..], [_, _, ..]);
    (0..HOLDS).filter(|nth| holds(*nth)).count()
}

#[test]
fn the_shortest_lease_is_told_at_once() {
    let mut node = Node::new(Policy::default());
    let shortest = take(&mut node, |nth| nth % 3 > 0);
    let news = send(&mut node, "SESSION k s 60000");
    assert_eq!(news[2], Reply::Integer(shortest));
}

#[test]
fn each_is_renewed() {
    let mut node = Node::new(Policy::default());
    take(&mut node, |_| false);
    for _ in 0..6 {
        node.pass(5_000);
        send(&mut node, "SESSION k s 60000");
    }
    assert_eq!(held(&mut node), HOLDS as usize);
    node.pass(60_000);
    node.pass(15_000);
    assert_eq!(held(&mut node), 0, "nobody has kept the session");
}

#[test]
fn each_ends_with_the_session() {
    let mut node = Node::new(Policy::default());
    take(&mut node, |nth| nth % 2 > 0);
    send(&mut node, "SESSION k s 0");
    for _ in 0..10 {
        node.pass(10);
    }
    assert_eq!(held(&mut node), 0);
}
