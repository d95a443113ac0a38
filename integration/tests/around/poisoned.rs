//! After a fault of its own the module decides nothing any more, and keeps nothing for later. No input is known that makes it
//! panic, so the test itself sets the mark that a panic leaves, in the server's memory.

#![cfg(target_os = "linux")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use dlock_integration::{assert_sound, module_path, Ask, Server};

/// Sets the mark.
fn poison(server: &Server) {
    let module = module_path().canonicalize().expect("the module");
    let listed = Command::new("nm").arg("--demangle").arg(&module).output();
    let symbols = String::from_utf8(listed.expect("nm").stdout).expect("text");
    let line = symbols
        .lines()
        .find(|line| line.ends_with("::POISONED"))
        .expect("the mark");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let offset = number(line.split(' ').next().unwrap_or_default());
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("its memory");
    let first = maps
        .lines()
        .find(|line| line.ends_with(&*module.to_string_lossy()))
        .expect("the module in it");
    let base = number(first.split('-').next().unwrap_or_default());
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/mem", server.pid()))
        .expect("its memory");
    let mut mark = [7];
    memory
        .read_exact_at(&mut mark, base + offset)
        .expect("the mark");
    assert_eq!(mark, [0], "it is the mark of a sound module");
    memory.write_all_at(&[1], base + offset).expect("the mark");
}

/// What the server says of its memory, in bytes.
fn used(server: &Server) -> u64 {
    server.info("memory").number("used_memory")
}

#[test]
fn after_a_panic_nothing_is_decided_and_nothing_is_noted() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE other alice 600000 SESSION");
    poison(&server);
    for line in [
        "DLOCK.ACQUIRE k bob",
        "DLOCK.RELEASE k alice",
        "DLOCK.HELD k",
    ] {
        let error = c.refusal(line);
        assert!(error.contains("internal fault"), "{error}");
    }
    // Each of these is told to the module.
    let disturb = |c: &mut dlock_integration::redis::Connection, times: u64| {
        let script = "for at = 1, ARGV[1] do
            redis.call('RENAME', KEYS[1], KEYS[2])
            redis.call('PEXPIRE', KEYS[2], 600000)
            redis.call('RENAME', KEYS[2], KEYS[1]) end";
        let mut eval = dlock_integration::redis::cmd("EVAL");
        eval.arg(script).arg(2).arg("k").arg("k2").arg(times);
        c.ask_command::<Option<u64>>(&eval);
    };
    disturb(&mut c, 1_000);
    let before = used(&server);
    disturb(&mut c, 20_000);
    let grown = used(&server).saturating_sub(before);
    assert!(
        grown < 200_000,
        "the module keeps {grown} bytes of what nobody will read"
    );
    assert_eq!(c.ask::<u64>("DEL k other"), 2);
    assert_sound(&server);
}
