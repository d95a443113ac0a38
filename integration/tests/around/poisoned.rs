//! After an internal fault the module no longer decides anything, and keeps nothing for later. No known input makes it panic, so a
//! test sets the mark of a panic in the server's memory, or removes a function that the module needs.

#![cfg(target_os = "linux")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use dlock_harness::{assert_sound, await_until, module_path, Ask, Server, PATIENCE};

/// Returns the address of a variable of the module in the server's memory, and that memory.
fn place(server: &Server, variable: &str) -> (u64, File) {
    let module = module_path().canonicalize().expect("the module");
    let listed = Command::new("nm").arg("--demangle").arg(&module).output();
    let symbols = String::from_utf8(listed.expect("nm").stdout).expect("text");
    let line = symbols
        .lines()
        .find(|line| line.ends_with(variable))
        .expect("the variable");
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
    (base + offset, memory)
}

/// Sets the mark of a panic.
fn poison(server: &Server) {
    let (at, memory) = place(server, "::POISONED");
    let mut mark = [7];
    memory.read_exact_at(&mut mark, at).expect("the mark");
    assert_eq!(mark, [0], "the module has not panicked");
    memory.write_all_at(&[1], at).expect("the mark");
}

/// Makes the module panic: a function of the server that it needs for the answer is removed.
fn panic(server: &Server) {
    let (at, memory) = place(server, " RedisModule_ReplyWithMap");
    let mut pointer = [0; 8];
    memory.read_exact_at(&mut pointer, at).expect("the pointer");
    assert_ne!(pointer, [0; 8], "the server has the function");
    memory.write_all_at(&[0; 8], at).expect("the pointer");
    server.connection().send("DLOCK.INFO k");
}

/// Returns the memory that the server reports, in bytes.
fn used(server: &Server) -> u64 {
    server.info("memory").number("used_memory")
}

#[test]
fn after_a_panic_nothing_is_decided_and_nothing_is_noted() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE other alice 600000 EPHEMERAL");
    poison(&server);
    for line in [
        "DLOCK.ACQUIRE k bob",
        "DLOCK.RELEASE k alice",
        "DLOCK.HELD k",
    ] {
        let error = c.refusal(line);
        assert!(error.contains("internal fault"), "{error}");
    }
    // The module receives each of these events.
    let disturb = |c: &mut dlock_harness::Wire, times: u64| {
        let script = "for at = 1, ARGV[1] do
            redis.call('RENAME', KEYS[1], KEYS[2])
            redis.call('PEXPIRE', KEYS[2], 600000)
            redis.call('RENAME', KEYS[2], KEYS[1]) end";
        let mut eval = dlock_harness::redis::cmd("EVAL");
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

#[test]
fn a_panic_ends_at_its_callback() {
    let mut server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    panic(&server);
    await_until("the log tells of the fault", PATIENCE, || {
        server.log().contains("internal fault: panicked")
    });
    let error = c.refusal("DLOCK.HELD k");
    assert!(error.contains("internal fault"), "{error}");
    assert!(server.is_running());
}

#[test]
fn a_panic_ends_the_server_where_that_is_configured() {
    let mut server = Server::builder()
        .module_argument("on-panic")
        .module_argument("abort")
        .start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    panic(&server);
    let status = server.await_exit();
    assert!(!status.success(), "{status}");
    let log = server.log();
    assert!(log.contains("so that a replica can take over"), "{log}");
}

#[test]
fn a_broken_invariant_is_counted_and_told() {
    let server = Server::start();
    let mut c = server.connection();
    // The mark by which the module sees that its list of subscribers is in use.
    let (at, memory) = place(&server, "::subscribers::ITERATION");
    let mut mark = [7; 8];
    memory.read_exact_at(&mut mark, at).expect("the mark");
    assert_eq!(mark, [0; 8], "nobody does");
    memory.write_all_at(&[0xff; 8], at).expect("the mark");
    await_until("a broken invariant is counted", PATIENCE, || {
        let count: u64 = server.info("dlock").number("dlock_invariants_broken");
        count > 0
    });
    let log = server.log();
    assert!(log.contains("internal fault: this does not hold"), "{log}");
    let granted: Vec<u64> = c.ask("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(granted.len(), 2);
    memory.write_all_at(&[0; 8], at).expect("the mark");
}
