//! A write that only the holder of a lock can make: the cost of its check.

use std::rc::Rc;

use dlock_harness::{command, Ask, Grant};

use crate::holding::pair::{names, Pipelined};
use crate::tools::locking::OWNER;
use crate::tools::replies::Pattern;
use crate::tools::setting::Setting;
use crate::way::{way, Opened};
use dlock_harness::rivals::COMPARE_AND_SET;

/// The module's own command.
pub const GUARD: &str = "dlock, GUARD";
/// A script that checks a plain key before it writes.
pub const SCRIPT: &str = "compare-and-set script";
/// The write alone.
pub const SET: &str = "SET";

/// Longer than the whole run.
const LEASE_MS: u64 = 86_400_000;

/// Opens all ways on one server: each lock is held, and its data is written again and again.
pub fn open(writes: usize) -> Opened {
    let stage = Rc::new(Setting::Memory.start());
    let mut connection = stage.server.connection();
    let names = names();
    let sha1: String = connection.ask_command(command("SCRIPT LOAD").arg(COMPARE_AND_SET));
    let mut guarded = Vec::new();
    let mut by_script = Vec::new();
    let mut plain = Vec::new();
    for name in &names {
        let (token, _): Grant = connection.ask(&format!("DLOCK.ACQUIRE {name} {OWNER} {LEASE_MS}"));
        connection.run(&format!("SET plain:{name} {OWNER} NX PX {LEASE_MS}"));
        guarded.push(format!("DLOCK.GUARD {name} {token} SET data:{name} 1"));
        by_script.push(format!(
            "EVALSHA {sha1} 2 plain:{name} data:{name} {OWNER} 1"
        ));
        plain.push(format!("SET data:{name} 1"));
    }
    let writes = |(name, lines): (_, Vec<String>)| {
        let commands = lines.iter().map(|line| command(line).get_packed_command());
        let (commands, done): (Vec<_>, _) = (commands.collect(), Pattern::new("+OK\r\n"));
        let writes = Pipelined::of(&commands, &done, Rc::clone(&stage), writes)?;
        Ok(way(name, writes))
    };
    let all = [(GUARD, guarded), (SCRIPT, by_script), (SET, plain)];
    all.into_iter().map(writes).collect()
}
