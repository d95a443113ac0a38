//! A server with many locks: the cost of one more.

use std::rc::Rc;

use dlock_harness::Server;

use crate::failure::Failure;
use crate::holding::pair::Pipelined;
use crate::tools::line::Line;
use crate::tools::locking::{exclusive, DLOCK, OWNER, SET_DEL};
use crate::tools::setting::Setting;
use crate::way::{way, Named, Opened, Way};

/// Pairs in a sample.
const PAIRS: usize = 20_000;

/// The locks that are held while the pair is measured, and the names in the tables: the module's, and a plain key's in an equal
/// crowd.
const CROWDS: [(usize, &str, &str); 4] = [
    (1_000, "dlock, 1,000 held", "SET NX PX + DEL, 1,000 held"),
    (10_000, "dlock, 10,000 held", "SET NX PX + DEL, 10,000 held"),
    (
        100_000,
        "dlock, 100,000 held",
        "SET NX PX + DEL, 100,000 held",
    ),
    (
        1_000_000,
        "dlock, 1,000,000 held",
        "SET NX PX + DEL, 1,000,000 held",
    ),
];

/// Opens a server for each crowd.
pub fn open() -> Opened {
    let mut ways: Vec<Named> = Vec::new();
    for (held, dlock, plain) in CROWDS {
        let stage = Rc::new(Setting::Memory.start());
        hold(&stage.server, held)?;
        for (locking, name) in [(DLOCK, dlock), (SET_DEL, plain)] {
            let mut pair = Pipelined::new(exclusive(locking)?, Rc::clone(&stage), PAIRS)?;
            ways.push(way(name, move || pair.sample()));
        }
    }
    Ok(ways)
}

fn hold(server: &Server, count: usize) -> Result<(), Failure> {
    Line::wide(server.port())?.run_each(count, "*2\r\n:#\r\n:1\r\n", |number| {
        format!("DLOCK.ACQUIRE held:{number:07} {OWNER} 86400000")
    })
}
