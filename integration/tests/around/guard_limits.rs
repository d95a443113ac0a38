//! What `DLOCK.GUARD` does not run, and what it does not fall over.

use dlock_integration::redis::{Cmd, Value};
use dlock_integration::{
    assert_sound, awkward, command, reply_of, with, Ask, Blocked, Grant, Guarded, Server,
};

/// The command within GUARD: whatever it is, the lock and the server come to no harm, and under a wrong token nothing runs.
#[test]
fn guarded_commands_are_bounded() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let token = guarded.token;
    let long = "x".repeat(100_000);
    for inner in [
        "DLOCK.RELEASE guarded alice",
        "dlock.forcerelease guarded",
        "DLOCK.ACQUIRE guarded eve BLOCK 0",
        "DLOCK.APPLY guarded x",
        "DLOCK.GUARD guarded {token} SET data x",
        "DLOCK.HELD guarded alice",
        "DLOCK.nothing",
        "SELECT 1",
        "select 1",
        "MULTI",
        "EXEC",
        "WATCH data",
        "EVAL return{1} 0",
        "FCALL f 0",
        "SUBSCRIBE c",
        "PSUBSCRIBE *",
        "MONITOR",
        "AUTH x",
        "HELLO 3",
        "RESET",
        "QUIT",
        "CLIENT KILL TYPE normal",
        "CLIENT REPLY OFF",
        "CLIENT PAUSE 1",
        "CONFIG SET maxmemory 1",
        "SHUTDOWN NOSAVE",
        "DEBUG SLEEP 0",
        "REPLICAOF 127.0.0.1 1",
        "BGREWRITEAOF",
        "SAVE",
        "SYNC",
        "BLPOP list 1",
        "BLMOVE list list LEFT LEFT 1",
        "BZPOPMIN zset 1",
        "XREAD BLOCK 1 STREAMS s $",
        "WAIT 1 0",
        "ACL WHOAMI",
        "SCRIPT KILL",
        "SET data",
        "SET data x y z",
        "SET",
        "no-such-command",
        "client|list",
        "%s%n",
        &long,
    ] {
        let line =
            format!("DLOCK.GUARD guarded {token} {inner}").replace("{token}", &token.to_string());
        let shown = &line[..line.len().min(80)];
        let error = c.try_ask(&line).expect_err(shown);
        assert!(!error.is_empty() && error.len() < 500, "{shown}: {error}");
        guarded.assert_untouched(&mut c);
    }
    // A name that is no command's: one error, and the next reply is the next command's.
    let mut wire = server.wire();
    for name in awkward() {
        let line = format!("DLOCK.GUARD guarded {token}");
        for words in [&[&name[..]][..], &[&name, b"data", b"x"]] {
            wire.send_command(&with(&line, words));
            wire.send("ECHO next");
            let reply = wire.read_line();
            assert!(reply.starts_with('-'), "{name:?}: {reply}");
            let next = (wire.read_line(), wire.read_line());
            assert_eq!(next, ("$4".into(), "next".into()), "{name:?}");
        }
        c.answer(&with("DLOCK.GUARD", &[&name, b"1", b"SET", b"data", b"x"]))
            .expect_err("no lock");
    }
    for token in [
        "",
        "0",
        "1",
        "-1",
        "x",
        "9007199254740991",
        "9007199254740992",
        "99999999999999999999",
    ] {
        let error = c
            .answer(&with(
                "DLOCK.GUARD guarded",
                &[token.as_bytes(), b"SET", b"data", b"x"],
            ))
            .expect_err(token);
        assert!(
            error.starts_with("FENCED") || error.starts_with("ERR token"),
            "{token}: {error}"
        );
    }
    assert_eq!(c.ask::<u64>("EXISTS data"), 0);
    // The data's own refusals pass through, and what is right runs, in all surroundings.
    c.run("RPUSH list 1");
    assert!(c
        .refusal(&format!("DLOCK.GUARD guarded {token} INCR list"))
        .starts_with("WRONGTYPE"));
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.GUARD guarded {token} INCR n")),
        1
    );
    c.run("MULTI");
    c.run(&format!("DLOCK.GUARD guarded {token} INCR n"));
    c.run("DLOCK.GUARD guarded 1 INCR n");
    let replies: Vec<Value> = c.ask("EXEC");
    assert_eq!(replies[0], Value::Int(2));
    assert!(reply_of(replies[1].clone()).is_err_and(|error| error.starts_with("FENCED")));
    let many: Vec<String> = (0..100_000).map(|at| at.to_string()).collect();
    let mut line = command(&format!("DLOCK.GUARD guarded {token} RPUSH list"));
    line.arg(&many);
    assert_eq!(c.ask_command::<u64>(&line), 100_001);
    // What it does to the lock's own key is what it would do by itself.
    let (own, _): Grant = c.ask("DLOCK.ACQUIRE own alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE own bob 600000 BLOCK 0");
    assert_eq!(c.ask::<u64>(&format!("DLOCK.GUARD own {own} DEL own")), 1);
    let (next, _): Grant = bob.reply();
    assert!(next > own);
    assert!(c
        .refusal(&format!("DLOCK.GUARD own {own} SET data x"))
        .starts_with("FENCED"));
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE own carol 600000 BLOCK 0");
    c.run(&format!("DLOCK.GUARD own {next} SET own x"));
    assert!(carol.refusal().starts_with("WRONGTYPE"));
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// A GUARD within a GUARD within a GUARD: the keys of all of them are asked for before any of it is refused.
#[test]
fn nested_guards_do_not_exhaust_the_stack() {
    for depth in [2, 1_000, 300_000] {
        for user in [false, true] {
            let server = Server::start();
            let mut c = server.connection();
            let guarded = Guarded::new(&server, &mut c);
            // Of a user whose keys are bounded the server asks which keys a command has.
            c.run("ACL SETUSER app on >secret ~k +dlock.guard +ping");
            let mut line = if user {
                Cmd::new()
            } else {
                command("COMMAND GETKEYS")
            };
            for _ in 0..depth {
                line.arg("DLOCK.GUARD").arg("k").arg("1");
            }
            line.arg("SET").arg("k").arg("v");
            let mut asking = server.wire();
            if user {
                asking.ask::<()>("AUTH app secret");
            }
            // Keys or a refusal: both are an answer.
            asking.send_command(&line);
            let reply = asking.read_value().map(reply_of);
            let answered = match &reply {
                Ok(Ok(_)) => !user,
                Ok(Err(_)) => true,
                Err(_) => false,
            };
            assert!(answered, "{depth} deep, by a bounded user: {user}");
            guarded.assert_intact(&server, &mut c);
            assert_sound(&server);
        }
    }
}
