//! Tickets: what a command costs in a long queue and in a short one.

use std::rc::Rc;

use dlock_integration::{Ask, Grant, Server};

use crate::errand::{owners, Errand, Errands};
use crate::line::Line;
use crate::way::{Opened, Way};

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

/// Asking again, short queue.
pub const POLL_SHORT: &str = "poll, 100 queued";
/// Asking again, long queue.
pub const POLL_LONG: &str = "poll, 10,000 queued";
/// Looking, short queue.
pub const POSITION_SHORT: &str = "position, 100 queued";
/// Looking, long queue.
pub const POSITION_LONG: &str = "position, 10,000 queued";
/// Leaving and coming back, short queue.
pub const CANCEL_SHORT: &str = "cancel + queue again, 100 queued";
/// Leaving and coming back, long queue.
pub const CANCEL_LONG: &str = "cancel + queue again, 10,000 queued";

/// What somebody with a ticket does, and what the tables call it with a short queue and with a long one.
const ERRANDS: [(Errand, &str, &str); 3] = [
    (POLL, POLL_SHORT, POLL_LONG),
    (POSITION, POSITION_SHORT, POSITION_LONG),
    (CANCEL, CANCEL_SHORT, CANCEL_LONG),
];

/// Both queues on one server: somebody holds the lock, and all the others have a ticket.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (key, length) in [("short", SHORT), ("long", LONG)] {
        let owners = owners(length);
        let _: Grant = server
            .connection()
            .ask(&format!("DLOCK.ACQUIRE {key} holder 86400000"));
        POLL.once(&mut Line::wide(server.port())?, key, &owners)?;
        for (errand, short, long) in ERRANDS {
            let name = if length == SHORT { short } else { long };
            let errands = Errands::new(name, errand, key, &owners, &server)?;
            ways.push(Box::new(errands));
        }
    }
    Ok(ways)
}
