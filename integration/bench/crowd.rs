//! A server that already keeps many locks: what one more costs.

use std::rc::Rc;

use dlock_integration::Server;

use crate::failure::Failure;
use crate::line::{Batch, Line};
use crate::locking::{exclusive, DLOCK, SET_DEL};
use crate::pair::Pipelined;
use crate::setting::Setting;
use crate::way::{Figure, Opened, Way};

/// Pairs in a sample.
const PAIRS: usize = 20_000;

/// Sent at once.
const BATCH: usize = 1_000;

/// The locks that are held while the pair is measured, and what the tables call the way: the module's, and a
/// plain key in the same crowd.
const CROWDS: [(usize, &str, &str); 4] = [
    (1_000, DLOCK_FEW, "SET NX PX + DEL, 1,000 held"),
    (10_000, "dlock, 10,000 held", "SET NX PX + DEL, 10,000 held"),
    (
        100_000,
        "dlock, 100,000 held",
        "SET NX PX + DEL, 100,000 held",
    ),
    (1_000_000, DLOCK_MANY, "SET NX PX + DEL, 1,000,000 held"),
];

/// The fewest.
pub const DLOCK_FEW: &str = "dlock, 1,000 held";
/// The most.
pub const DLOCK_MANY: &str = "dlock, 1,000,000 held";

/// A server for each crowd.
pub fn open() -> Opened {
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (held, dlock, plain) in CROWDS {
        let stage = Rc::new(Setting::Memory.start());
        hold(&stage.server, held)?;
        for (locking, name) in [(DLOCK, dlock), (SET_DEL, plain)] {
            ways.push(Box::new(Crowd {
                name,
                pair: Pipelined::new(exclusive(locking)?, Rc::clone(&stage), PAIRS)?,
            }));
        }
    }
    Ok(ways)
}

fn hold(server: &Server, count: usize) -> Result<(), Failure> {
    let loaded = exclusive(DLOCK)?.load_with_lease(server, 86_400_000);
    let mut line = Line::wide(server.port())?;
    for start in (0..count).step_by(BATCH) {
        let numbers = start..count.min(start + BATCH);
        line.run(&Batch {
            times: numbers.len(),
            reply: loaded.taken.clone(),
            bytes: numbers
                .flat_map(|number| loaded.take(&format!("held:{number:07}")))
                .collect(),
        })?;
    }
    Ok(())
}

struct Crowd {
    name: &'static str,
    pair: Pipelined,
}

impl Way for Crowd {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        self.pair.sample()
    }
}
