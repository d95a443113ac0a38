//! Shared holds: the cost of releasing one and taking it again, among few and among many.

use std::rc::Rc;

use dlock_harness::Server;

use crate::tools::errand::{owners, Errand, Errands};
use crate::tools::line::Line;
use crate::way::{way, Named, Opened};

const TAKE: &str = "DLOCK.ACQUIRE {key} {owner} 86400000 SHARED";
const JOIN: Errand = Errand {
    commands: &[TAKE],
    reply: "*2\r\n:#\r\n:1\r\n",
};

const LEAVE_AND_JOIN: Errand = Errand {
    commands: &["DLOCK.RELEASE {key} {owner}", TAKE],
    reply: ":0\r\n*2\r\n:#\r\n:1\r\n",
};

/// Opens both locks on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Named> = Vec::new();
    for (name, key, count) in [
        ("shared, 10 holders", "few", 10),
        ("shared, 10,000 holders", "many", 10_000),
    ] {
        let owners = owners(count);
        JOIN.once(&mut Line::wide(server.port())?, key, &owners)?;
        let errands = Errands::new(LEAVE_AND_JOIN, key, &owners, &server)?;
        ways.push(way(name, errands));
    }
    Ok(ways)
}
