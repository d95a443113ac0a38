//! Tickets: the cost of a command in a long queue and in a short one.

use std::rc::Rc;

use dlock_harness::{Ask, Grant, Server};

use crate::tools::errand::{owners, Errand, Errands};
use crate::tools::line::Line;
use crate::way::{way, Named, Opened};

const SHORT: usize = 100;
const LONG: usize = 10_000;

const FAIRACQUIRE: &str = "DLOCK.FAIRACQUIRE {key} {owner} CLAIM 600000";

const POLL: Errand = Errand {
    commands: &[FAIRACQUIRE],
    reply: "*-1\r\n",
};

const POSITION: Errand = Errand {
    commands: &["DLOCK.POSITION {key} {owner}"],
    reply: ":#\r\n",
};

const CANCEL: Errand = Errand {
    commands: &["DLOCK.CANCEL {key} {owner}", FAIRACQUIRE],
    reply: ":1\r\n*-1\r\n",
};

/// The commands of an owner with a ticket, and their names in the tables with a short queue and with a long one.
const ERRANDS: [(Errand, &str, &str); 3] = [
    (POLL, "poll, 100 queued", "poll, 10,000 queued"),
    (POSITION, "position, 100 queued", "position, 10,000 queued"),
    (
        CANCEL,
        "cancel + queue again, 100 queued",
        "cancel + queue again, 10,000 queued",
    ),
];

/// Opens both queues on one server: one owner holds the lock, and all others have a ticket.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Named> = Vec::new();
    for (key, length) in [("short", SHORT), ("long", LONG)] {
        let owners = owners(length);
        let _: Grant = server
            .connection()
            .ask(&format!("DLOCK.ACQUIRE {key} holder 86400000"));
        POLL.once(&mut Line::wide(server.port())?, key, &owners)?;
        for (errand, short, long) in ERRANDS {
            let name = if length == SHORT { short } else { long };
            ways.push(way(name, Errands::new(errand, key, &owners, &server)?));
        }
    }
    Ok(ways)
}
