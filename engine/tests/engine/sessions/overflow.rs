//! A session whose program reads none of its rows: it begins again, once they are too many.

use super::node::{rows, Node};
use crate::client::Client;
use dlock_commands::Reply;
use dlock_engine::Policy;

/// The most rows that are kept.
const MOST_ROWS: usize = 10_000;

/// Sends a command that is answered at once.
fn send(node: &mut Node, words: &str) -> Reply {
    let answer = node.send(Client::connection(1), words);
    node.settle();
    match answer {
        Some(Ok(reply)) => reply,
        other => panic!("{words}: {other:?}"),
    }
}

/// Returns the id in the reply to a SESSION command, and the last number.
fn id(news: &Reply) -> (u64, u64) {
    match news {
        Reply::Array(parts) => match parts[..2] {
            [Reply::Integer(id), Reply::Integer(last)] => (id, last),
            _ => panic!("this is no id: {parts:?}"),
        },
        other => panic!("this is no news: {other:?}"),
    }
}

#[test]
fn a_session_begins_anew_beyond_the_most_rows() {
    let mut node = Node::new(Policy::default());
    let (first, _) = id(&send(&mut node, "SESSION k s 60000"));
    send(&mut node, "ACQUIRE held s/0 60000 IN s");
    send(&mut node, "ACQUIRE wanted ann 60000");
    send(&mut node, "ACQUIRE wanted s/1 60000 BLOCK 0 IN s");
    // Strangers release what it takes: two rows each.
    for _ in 0..MOST_ROWS / 2 {
        send(&mut node, "ACQUIRE k s/2 60000 IN s");
        send(&mut node, "RELEASE k s/2");
    }
    assert_eq!(
        node.rows("s").len(),
        MOST_ROWS + 1,
        "the row of a hold that is still in it does not count"
    );
    let (same, last) = id(&send(&mut node, "SESSION k s 60000"));
    assert_eq!((same, last), (first, MOST_ROWS as u64 + 1));
    // The release is a row too many.
    send(&mut node, "ACQUIRE k s/2 60000 IN s");
    send(&mut node, "RELEASE k s/2");
    let (other, last) = id(&send(&mut node, "SESSION k s 60000"));
    assert_ne!(other, first);
    assert_eq!(last, 0);
    // Its place has stayed; what it held belongs to nothing.
    send(&mut node, "RELEASE wanted ann");
    let news = send(&mut node, &format!("SESSION k s 60000 SEEN {other} 0"));
    let told: Vec<_> = rows(&news)
        .into_iter()
        .map(|row| (row.word, row.key, row.left))
        .collect();
    assert_eq!(told, [("granted", "wanted".to_string(), 60_000)]);
    node.pass(59_000);
    send(&mut node, "SESSION k s 60000");
    node.pass(2_000);
    assert_eq!(send(&mut node, "HELD held s/0"), Reply::NullArray);
    assert_ne!(send(&mut node, "HELD wanted s/1"), Reply::NullArray);
}

/// The ends of its holds are more rows than are kept, and nobody will read them.
#[test]
fn a_session_that_its_program_ends_gives_back_everything() {
    const HOLDS: usize = MOST_ROWS / 2 + 1_000;
    let mut node = Node::new(Policy::default());
    let (first, _) = id(&send(&mut node, "SESSION k s 60000"));
    for nth in 0..HOLDS {
        send(&mut node, &format!("ACQUIRE k{nth} s/{nth} 60000 IN s"));
    }
    let ended = node.send(Client::connection(1), "SESSION k s 0");
    assert!(matches!(ended, Some(Ok(news)) if id(&news).0 == first));
    // The server does other work between two steps.
    let (now, server) = (node.now, &mut node.server);
    while server.engine.unsettled() {
        server.engine.settle_dirty(&mut server.keys, now, 16);
        server.engine.tell_sessions(now);
    }
    assert_eq!(node.server.engine.session_rows().1, 0);
    let held = |nth: &usize| send(&mut node, &format!("HELD k{nth}")) != Reply::NullArray;
    assert_eq!((0..HOLDS).filter(held).count(), 0);
}

/// It ends in the event in which it has become too many rows.
#[test]
fn a_session_that_ends_as_it_overflows_gives_back_everything() {
    const LOST: usize = MOST_ROWS / 2 + 1;
    const HOLDS: usize = LOST + 1_000;
    let mut node = Node::new(Policy::default());
    send(&mut node, "SESSION k s 60000");
    for nth in 0..HOLDS {
        send(&mut node, &format!("ACQUIRE k{nth} s/{nth} 60000 IN s"));
    }
    let (now, server) = (node.now, &mut node.server);
    let mut run = |words: &str| {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let reply = server.run(now, 0, Client::connection(1), &words);
        assert!(reply.is_ok(), "{reply:?}");
        server.keys.close();
    };
    for nth in 0..LOST {
        run(&format!("FORCERELEASE k{nth}"));
    }
    run("SESSION k s 0");
    server.engine.tell_sessions(now);
    while server.engine.unsettled() {
        server.engine.settle_dirty(&mut server.keys, now, 16);
        server.keys.close();
        server.engine.tell_sessions(now);
    }
    assert!(server.data().is_empty());
}
