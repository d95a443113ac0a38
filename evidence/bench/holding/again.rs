//! A holder's commands: it renews its lease, or takes the lock once more and releases that hold.

use std::rc::Rc;

use crate::holding::pair::{names, Pipelined};
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{lockings, OWNER};
use crate::tools::setting::Setting;
use crate::way::{way, Named, Opened};

/// The number of commands in a sample.
const TIMES: usize = 10_000;

/// Longer than any sample.
const LEASE_MS: u64 = 86_400_000;

/// Opens all ways on one server, with locks of their own.
pub fn open() -> Opened {
    let stage = Rc::new(Setting::Memory.start());
    let mut ways: Vec<Named> = Vec::new();
    for (number, locking) in lockings("held").iter().enumerate() {
        let loaded = locking.load_with_lease(&stage.server, LEASE_MS);
        let names = names();
        let names: Vec<String> = names
            .iter()
            .map(|name| format!("{number}:{name}"))
            .collect();
        Line::wide(stage.server.port())?.run(&Batch {
            bytes: names.iter().flat_map(|name| loaded.take(name)).collect(),
            reply: loaded.taken.clone(),
            times: names.len(),
        })?;
        let commands = names.iter().map(|name| loaded.give_as(name, OWNER));
        let commands: Vec<Vec<u8>> = commands.collect();
        let commands = Pipelined::of(&commands, &loaded.given, Rc::clone(&stage), TIMES)?;
        ways.push(way(locking.name, commands));
    }
    Ok(ways)
}
