//! A holder's commands: it renews its lease, or takes the lock once more and releases that hold.

use std::rc::Rc;

use dlock_integration::{command, Ask, Server};

use crate::holding::pair::{names, Pipelined};
use crate::tools::line::{Batch, Line};
use crate::tools::locking::OWNER;
use crate::tools::replies::Pattern;
use crate::tools::setting::Setting;
use crate::way::{Opened, Way};
use dlock_integration::rivals::{COUNTED_GIVE, COUNTED_RENEW, COUNTED_TAKE};

/// The number of commands in a sample.
const TIMES: usize = 10_000;

/// A renewal by this module.
pub const RENEW: &str = "dlock, RENEW";
/// How the lock is held, and the holder's commands. In the commands `{key}` and `{owner}` are placeholders, and `{take}`,
/// `{give}`, `{renew}` stand for the SHA-1 of the scripts.
struct Again {
    name: &'static str,
    hold: &'static str,
    held: &'static str,
    commands: &'static [&'static str],
    replies: &'static str,
}

const ACQUIRE: &str = "DLOCK.ACQUIRE {key} {owner} 86400000";
const TAKE: &str = "EVALSHA {take} 1 {key} 86400000 {owner}";

const ALL: [Again; 4] = [
    Again {
        name: RENEW,
        hold: ACQUIRE,
        held: "*2\r\n:#\r\n:1\r\n",
        commands: &["DLOCK.RENEW {key} {owner} 86400000"],
        replies: ":86400000\r\n",
    },
    Again {
        name: "hexists + pexpire, a script",
        hold: TAKE,
        held: "$-1\r\n",
        commands: &["EVALSHA {renew} 1 {key} 86400000 {owner}"],
        replies: ":1\r\n",
    },
    Again {
        name: "dlock, re-entered pair",
        hold: ACQUIRE,
        held: "*2\r\n:#\r\n:1\r\n",
        commands: &[ACQUIRE, "DLOCK.RELEASE {key} {owner}"],
        replies: "*2\r\n:#\r\n:2\r\n:1\r\n",
    },
    Again {
        name: "counted-hash scripts, re-entered pair",
        hold: TAKE,
        held: "$-1\r\n",
        commands: &[
            TAKE,
            "EVALSHA {give} 2 {key} unlocked:{key} 0 86400000 {owner}",
        ],
        replies: "$-1\r\n:0\r\n",
    },
];

/// Opens all ways on one server, with locks of their own.
pub fn open() -> Opened {
    let stage = Rc::new(Setting::Memory.start());
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (number, again) in ALL.iter().enumerate() {
        let filled = |line: &str| fill(line, &stage.server);
        let hold = filled(again.hold);
        let commands: Vec<String> = again.commands.iter().map(|line| filled(line)).collect();
        let names: Vec<String> = names()
            .iter()
            .map(|name| format!("{number}:{name}"))
            .collect();
        Line::wide(stage.server.port())?.run(&Batch {
            bytes: names.iter().flat_map(|name| bytes(&hold, name)).collect(),
            reply: Pattern::new(again.held),
            times: names.len(),
        })?;
        let of_lock = |name: &String| commands.iter().flat_map(|line| bytes(line, name)).collect();
        let commands: Vec<Vec<u8>> = names.iter().map(of_lock).collect();
        ways.push(Box::new(Pipelined::of(
            again.name,
            &commands,
            &Pattern::new(again.replies),
            Rc::clone(&stage),
            TIMES,
        )?));
    }
    Ok(ways)
}

fn fill(line: &str, server: &Server) -> String {
    let scripts = [
        ("{take}", COUNTED_TAKE),
        ("{give}", COUNTED_GIVE),
        ("{renew}", COUNTED_RENEW),
    ];
    let mut connection = server.connection();
    scripts
        .into_iter()
        .fold(line.to_owned(), |line, (name, script)| {
            let sha1: String = connection.ask_command(command("SCRIPT LOAD").arg(script));
            line.replace(name, &sha1)
        })
}

fn bytes(line: &str, key: &str) -> Vec<u8> {
    let line = line.replace("{key}", key).replace("{owner}", OWNER);
    command(&line).get_packed_command()
}
