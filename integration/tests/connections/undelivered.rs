//! Grants that do not reach their connection: it ends, or is unblocked by error, in the very iteration of the event loop in which
//! its lock is granted. The server gives a new hold back before it decides any later command on that lock, and serves the next
//! waiter. A hold that another command of its owner has touched stands, since that command was answered.

use dlock_harness::redis::{cmd, Value};
use dlock_harness::{
    await_until, command, held, is_held, position, wait_as, Ask, Blocked, Grant, Server, Wire,
    PATIENCE,
};

/// Requests, each of which waits for `k`.
const REQUESTS: [&str; 7] = [
    "DLOCK.ACQUIRE k dies 600000 BLOCK 0",
    "DLOCK.ACQUIRE k dies 600000 BLOCK 0 EPHEMERAL",
    "DLOCK.FAIRACQUIRE k dies 600000 BLOCK 0",
    "DLOCK.FAIRACQUIRE k dies 600000 BLOCK 0 EPHEMERAL",
    "DLOCK.FAIRACQUIRE k dies 600000 BLOCK 0 CLAIM 600000",
    "DLOCK.MACQUIRE 2 k free dies 600000 BLOCK 0",
    "DLOCK.MACQUIRE 2 free k dies 600000 BLOCK 0 EPHEMERAL",
];

const RELEASE: &str = "DLOCK.RELEASE k alice";

/// The waiter `dies` for `k`.
struct Waiting<'s> {
    server: &'s Server,
    wire: Wire,
    id: u64,
}

/// Makes `dies` wait for `k` with each request, and `next` behind it. Then alice releases, and `end` ends the waiting connection
/// in that turn; it returns a socket to be kept open on this side. Replies to the lines sent `before` the request on its
/// connection are not read.
#[track_caller]
fn check(server: &Server, before: &str, end: impl Fn(Waiting) -> Option<Wire>) {
    for request in REQUESTS {
        let (waiting, next) = setup(server, before, request);
        let _open = end(waiting);
        assert_taken_back(server, next, request);
    }
}

/// Sets up a lock `k` that alice holds, with `dies` waiting for it, and `next` behind.
#[track_caller]
fn setup<'s>(server: &'s Server, before: &str, request: &str) -> (Waiting<'s>, Blocked) {
    println!("{request}");
    let mut c = server.connection();
    c.run("FLUSHALL");
    c.run("DLOCK.ACQUIRE k alice 600000");
    let waiting = wait(server, before, request);
    (waiting, wait_as(server, "next"))
}

/// Asserts that the grant has left no trace: with `CLAIM` the place stays, otherwise it is gone and the next waiter is granted.
#[track_caller]
fn assert_taken_back(server: &Server, next: Blocked, request: &str) {
    let mut c = server.connection();
    if request.contains("CLAIM") {
        await_until("the ticket stands again", PATIENCE, || {
            position(&mut c, "k", "dies") == Some(0)
        });
        assert!(!is_held(&mut c, "k", "dies") && next.is_blocked(server));
        assert_eq!(c.ask::<u64>("DLOCK.CANCEL k dies"), 1);
    }
    next.reply::<Grant>();
    for key in ["k", "free"] {
        assert!(!is_held(&mut c, key, "dies"), "{key}");
        assert_eq!(position(&mut c, key, "dies"), None, "{key}");
    }
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k next"), 0);
    assert_eq!(c.ask::<u64>("EXISTS k free"), 0);
}

#[track_caller]
fn wait<'s>(server: &'s Server, before: &str, request: &str) -> Waiting<'s> {
    let mut wire = server.connection();
    let id = wire.client_id();
    before.lines().for_each(|line| wire.send(line));
    wire.send(request);
    await_waiting(server, "dies");
    Waiting { server, wire, id }
}

#[track_caller]
fn await_waiting(server: &Server, owner: &str) {
    let mut c = server.connection();
    await_until("the request waits", PATIENCE, || {
        position(&mut c, "k", owner).is_some()
    });
}

/// Sends lines at once on a connection of their own, so that nothing can come between them. Returns their replies.
#[track_caller]
fn at_once(server: &Server, lines: &[&str]) -> Vec<Value> {
    let lines = lines.iter().map(|line| line.to_string());
    server.connection().pipeline(lines)
}

impl Waiting<'_> {
    fn kill(&self) -> String {
        format!("CLIENT KILL ID {}", self.id)
    }

    fn unblock(&self) -> String {
        format!("CLIENT UNBLOCK {} ERROR", self.id)
    }

    /// Asserts that the reply to the request is a grant: a token and a count, or the tokens of two locks.
    #[track_caller]
    fn assert_granted(&mut self) {
        let grant = self.wire.read();
        assert!(
            matches!(&grant, Ok(Value::Array(two)) if two.len() == 2),
            "{grant:?}"
        );
    }

    /// Asserts that an error is the only reply to the request.
    #[track_caller]
    fn assert_one_error(mut self) -> Option<Wire> {
        let error = self.wire.read().expect_err("an error");
        assert!(error.starts_with("UNBLOCKED "), "{error}");
        assert_eq!(self.wire.ask::<String>("PING"), "PONG");
        Some(self.wire)
    }
}

/// Makes the server find the release and the connection's end together, the release first.
fn close_behind_the_release(waiting: Waiting) -> Option<Wire> {
    let mut alice = waiting.server.connection();
    alice.ask::<String>("PING");
    waiting.server.freeze();
    alice.send_to_still(RELEASE);
    waiting.wire.close_to_still();
    waiting.server.thaw();
    alice.read().expect("a release");
    None
}

#[test]
fn closed() {
    check(&Server::start(), "", close_behind_the_release);
}

/// A socket that is closed with unread data is reset.
#[test]
fn reset() {
    check(&Server::start(), "PING", close_behind_the_release);
}

#[test]
fn killed() {
    check(&Server::start(), "", |waiting| {
        at_once(waiting.server, &[RELEASE, &waiting.kill()]);
        Some(waiting.wire)
    });
}

#[test]
fn killed_in_a_transaction() {
    check(&Server::start(), "", |waiting| {
        let lines = ["MULTI", RELEASE, &waiting.kill(), "EXEC"];
        at_once(waiting.server, &lines);
        Some(waiting.wire)
    });
}

#[test]
fn killed_behind_a_transaction() {
    check(&Server::start(), "", |waiting| {
        let lines = ["MULTI", RELEASE, "EXEC", &waiting.kill()];
        at_once(waiting.server, &lines);
        Some(waiting.wire)
    });
}

#[test]
fn killed_behind_a_script() {
    check(&Server::start(), "", |waiting| {
        let mut wire = waiting.server.connection();
        let script = "return redis.call('DLOCK.RELEASE', KEYS[1], ARGV[1])";
        let script = cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg("k")
            .arg("alice")
            .to_owned();
        let kill = command(&waiting.kill());
        let both = [script.get_packed_command(), kill.get_packed_command()].concat();
        wire.send_bytes(&both).expect("the server reads");
        assert_eq!(wire.read(), Ok(Value::Int(0)));
        wire.read().expect("a killed connection");
        Some(waiting.wire)
    });
}

/// From then on the server accepts no writes, so not even the end of a session, which may come by itself, decides anything.
#[test]
fn killed_where_writes_are_refused() {
    let server = Server::start();
    let (waiting, next) = setup(&server, "", REQUESTS[0]);
    let refuse = "CONFIG SET min-replicas-to-write 1";
    let lines = [RELEASE, &waiting.kill(), refuse, "DLOCK.SESSION x s 0"];
    let bytes = lines
        .map(|line| command(line).get_packed_command())
        .concat();
    let mut wire = server.connection();
    wire.send_bytes(&bytes).expect("the server reads");
    let replies = lines.map(|_| wire.read());
    let refused = replies[3].as_ref().expect_err("an error");
    assert!(refused.contains("accepts no writes now"), "{refused}");
    assert!(next.is_blocked(&server) && is_held(&mut wire, "k", "dies"));
    wire.run("CONFIG SET min-replicas-to-write 0");
    assert_taken_back(&server, next, REQUESTS[0]);
}

#[test]
fn unblocked_by_error() {
    check(&Server::start(), "", |waiting| {
        at_once(waiting.server, &[RELEASE, &waiting.unblock()]);
        waiting.assert_one_error()
    });
}

#[test]
fn unblocked_by_error_in_a_transaction() {
    check(&Server::start(), "", |waiting| {
        let lines = ["MULTI", RELEASE, &waiting.unblock(), "EXEC"];
        at_once(waiting.server, &lines);
        waiting.assert_one_error()
    });
}

/// CLIENT UNBLOCK … TIMEOUT after the grant changes nothing: the only reply is the grant.
#[test]
fn unblocked_by_timeout() {
    let server = Server::start();
    for request in REQUESTS {
        let (mut waiting, next) = setup(&server, "", request);
        let unblock = format!("CLIENT UNBLOCK {} TIMEOUT", waiting.id);
        at_once(&server, &[RELEASE, &unblock]);
        waiting.assert_granted();
        assert_eq!(waiting.wire.ask::<String>("PING"), "PONG");
        assert!(next.is_blocked(&server));
    }
}

/// The answer is written then, and the connection ends before it is sent.
#[test]
fn unblocked_by_timeout_and_killed() {
    check(&Server::start(), "", |waiting| {
        let unblock = format!("CLIENT UNBLOCK {} TIMEOUT", waiting.id);
        at_once(waiting.server, &[RELEASE, &unblock, &waiting.kill()]);
        Some(waiting.wire)
    });
}

/// The server closes idle connections; a waiting one is not idle, however long it waits.
#[test]
fn the_idle_time_out_leaves_those_who_wait() {
    let (server, mut alice, _) = held();
    alice.run("CONFIG SET timeout 1");
    let bob = wait_as(&server, "bob");
    let mut idle = server.connection();
    let id = idle.client_id();
    server.await_client_gone(id);
    at_once(&server, &[RELEASE]);
    bob.reply::<Grant>();
    assert!(is_held(&mut server.connection(), "k", "bob"));
}

/// The server closes a connection of this kind without sending the rest.
#[test]
fn over_its_output_buffer_limit() {
    // Keys that the connection tracks: the notifications exceed the fixed part of its buffer.
    let keys = (0..400).map(|at| format!("{at}:{}", "x".repeat(100)));
    let keys: Vec<String> = keys.collect();
    let before = format!("HELLO 3\nCLIENT TRACKING ON\nMGET {}", keys.join(" "));
    let script = "for at = 0, 399 do redis.call('SET', at .. ':' .. string.rep('x', 100), at) end";
    let change = cmd("EVAL").arg(script).arg(0).get_packed_command();
    let release = command(RELEASE).get_packed_command();
    let server = Server::builder()
        .config("client-output-buffer-limit", "normal 10000 0 0")
        .start();
    for both in [
        [&release[..], &change].concat(),
        [&change[..], &release].concat(),
    ] {
        check(&server, &before, |waiting| {
            let mut alice = waiting.server.connection();
            alice.send_bytes(&both).expect("the server reads");
            for _ in 0..2 {
                alice.read().expect("no refusal");
            }
            Some(waiting.wire)
        });
    }
}

/// The commands that it has sent since it waits take too much memory.
#[test]
fn evicted() {
    let server = Server::start();
    check(&server, "", |mut waiting| {
        let mut c = waiting.server.connection();
        let half = [
            b"*2\r\n$4\r\nECHO\r\n$20000000\r\n".as_slice(),
            &[b'x'; 10_000_000],
        ];
        waiting
            .wire
            .send_bytes(&half.concat())
            .expect("the server reads");
        await_until("the server has read it", PATIENCE, || {
            let line: String = c.ask(&format!("CLIENT LIST ID {}", waiting.id));
            let read = line.split(' ').find_map(|word| word.strip_prefix("qbuf="));
            read.and_then(|read| read.parse::<u64>().ok()) > Some(9_000_000)
        });
        at_once(
            waiting.server,
            &[RELEASE, "CONFIG SET maxmemory-clients 5mb", "PING"],
        );
        c.run("CONFIG SET maxmemory-clients 0");
        Some(waiting.wire)
    });
}

#[test]
fn its_user_is_deleted() {
    let server = Server::start();
    server
        .connection()
        .run("ACL SETUSER mortal on >secret allkeys allcommands");
    check(&server, "AUTH mortal secret", |waiting| {
        at_once(waiting.server, &[RELEASE, "ACL DELUSER mortal"]);
        waiting
            .server
            .connection()
            .run("ACL SETUSER mortal on >secret allkeys allcommands");
        Some(waiting.wire)
    });
}

/// By a command that runs after all others of the turn: it stands behind another wait that ends in this turn.
#[test]
fn killed_behind_another_wait() {
    check(&Server::start(), "", |waiting| {
        let mut other = waiting.server.connection();
        let id = other.client_id();
        other.send("BLPOP list 0");
        let mut c = waiting.server.connection();
        await_until("it waits", PATIENCE, || {
            let line: String = c.ask(&format!("CLIENT LIST ID {id}"));
            line.contains("cmd=blpop")
        });
        other.send(&waiting.kill());
        at_once(waiting.server, &[RELEASE, "LPUSH list value"]);
        other.read().expect("an element");
        assert_eq!(other.read(), Ok(Value::Int(1)));
        Some(waiting.wire)
    });
}

/// The server notices the reset when it writes the grant.
#[test]
fn reset_before_it_is_written() {
    let server = Server::builder().config("lua-time-limit", 60_000).start();
    for request in REQUESTS {
        loop {
            let (waiting, next) = setup(&server, "PING", request);
            if in_the_turn_of_the_release(&server, || waiting.wire.close_to_still()) {
                assert_taken_back(&server, next, request);
                break;
            }
        }
    }
}

/// Makes alice release the lock, and calls `act` in that iteration of the event loop, after the server has read all input and
/// before it writes. Returns whether it was in time.
#[track_caller]
fn in_the_turn_of_the_release(server: &Server, act: impl FnOnce()) -> bool {
    // Keeps the server in that turn and logs it. The script cannot read the time, but it does not count while the server is
    // stopped.
    let script = "redis.log(redis.LOG_WARNING, 'in the turn of the release')
        for _ = 1, 5e7 do end";
    let mut alice = server.connection();
    let release = command(RELEASE).get_packed_command();
    let script = cmd("EVAL").arg(script).arg(0).get_packed_command();
    let logged = server.log().len();
    alice
        .send_bytes(&[release, script].concat())
        .expect("the server reads");
    await_until("the server is in the turn", PATIENCE, || {
        server.log()[logged..].contains("in the turn of the release")
    });
    server.freeze();
    let in_time = !alice.has_something();
    act();
    server.thaw();
    alice.read().expect("a release");
    alice.read().expect("a script's end");
    in_time
}

/// A sent answer is a grant, whether or not a client reads it: it stands until its lease or, with EPHEMERAL, its connection ends.
#[test]
fn sent_is_granted() {
    let server = Server::start();
    for request in REQUESTS
        .iter()
        .filter(|request| !request.contains("EPHEMERAL"))
    {
        let (mut leaves, next) = setup(&server, "", request);
        // Behind its grant it leaves by itself.
        leaves.wire.send("QUIT");
        at_once(&server, &[RELEASE]);
        leaves.assert_granted();
        server.await_client_gone(leaves.id);
        assert!(is_held(&mut server.connection(), "k", "dies"));
        assert!(next.is_blocked(&server));
    }
}

/// A later command of that turn finds the lock as if the dead connection had never been granted it.
#[test]
fn later_commands_find_it_taken_back() {
    let server = Server::start();
    for request in REQUESTS {
        for transaction in [true, false] {
            let lines = |kill: &str, after: &str| {
                let mut lines = vec![RELEASE.to_owned(), kill.to_owned(), after.to_owned()];
                if transaction {
                    lines.insert(0, "MULTI".to_owned());
                    lines.push("EXEC".to_owned());
                }
                lines
            };
            // With a waiter in between.
            let (waiting, next) = setup(&server, "", request);
            let late = "DLOCK.ACQUIRE k late 600000";
            let replies = server.connection().pipeline(lines(&waiting.kill(), late));
            assert_eq!(last(replies, transaction), Value::Nil);
            assert_taken_back(&server, next, request);

            // Without one.
            let (waiting, next) = setup(&server, "", request);
            next.kill();
            await_until("nobody else waits", PATIENCE, || {
                position(&mut server.connection(), "k", "next").is_none()
            });
            let replies = server.connection().pipeline(lines(&waiting.kill(), late));
            let grant = last(replies, transaction);
            // A ticket reserves the lock for its owner.
            let free = !request.contains("CLAIM");
            assert_eq!(matches!(grant, Value::Array(_)), free, "{grant:?}");
        }
    }
}

/// Returns the reply to the last line, which may be within a transaction's.
fn last(mut replies: Vec<Value>, transaction: bool) -> Value {
    match replies.pop() {
        Some(Value::Array(mut replies)) if transaction => replies.pop().expect("a reply"),
        Some(reply) => reply,
        None => panic!("no reply"),
    }
}

/// An upgrade whose answer was lost stands, with its limit and its token. A repeated request learns of it.
#[test]
fn an_upgrade_stands() {
    let server = Server::start();
    let mut c = server.connection();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k dies 300000 SHARED");
    c.run("DLOCK.ACQUIRE k alice 600000 SHARED");
    let waiting = wait(&server, "", "DLOCK.ACQUIRE k dies 600000 BLOCK 0 HOLDS 1");
    let line = "DLOCK.ACQUIRE k reader 600000 BLOCK 0 SHARED";
    let reader = Blocked::start(&server, line);
    at_once(&server, &[RELEASE, &waiting.kill()]);
    server.await_client_gone(waiting.id);
    let (upgraded, holds): Grant = c.ask("DLOCK.ACQUIRE k dies 600000 HOLDS 1");
    assert!(upgraded > token && holds == 1, "{upgraded} {holds}");
    assert!(reader.is_blocked(&server));
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k dies"), 0);
    reader.reply::<Grant>();
}

/// An ephemeral hold that an upgrade took over from another connection ends with the connection that was not answered.
#[test]
fn an_ephemeral_hold_that_was_taken_over_ends() {
    let server = Server::start();
    let mut c = server.connection();
    let mut had = server.connection();
    had.ask::<Grant>("DLOCK.ACQUIRE k dies 600000 SHARED EPHEMERAL");
    c.run("DLOCK.ACQUIRE k alice 600000 SHARED");
    let waiting = wait(&server, "", "DLOCK.ACQUIRE k dies 600000 BLOCK 0 EPHEMERAL");
    let next = wait_as(&server, "next");
    at_once(&server, &[RELEASE, &waiting.kill()]);
    next.reply::<Grant>();
    assert!(!is_held(&mut c, "k", "dies"));
}

/// Commands of an owner on another connection about a hold, and their answers if it holds the lock.
const TOUCHES: [&str; 7] = [
    "DLOCK.ACQUIRE k dies 600000 HOLDS 1",
    "DLOCK.ACQUIRE k dies 600000",
    "DLOCK.MACQUIRE 1 k dies 600000",
    "DLOCK.RENEW k dies 600000",
    "DLOCK.MRENEW 1 k dies 600000",
    "DLOCK.DOWNGRADE k dies LIMIT 1",
    "DLOCK.RELEASE k dies HOLDS 1",
];

/// Another command of the owner, in the turn of the grant, was answered that it holds the lock: so it does, though the granted
/// connection is gone. Of two locks, the server revokes its grant of the untouched one.
#[test]
fn what_its_owner_has_touched_stands() {
    let server = Server::start();
    for touch in TOUCHES {
        for transaction in [false, true] {
            for request in REQUESTS
                .iter()
                .filter(|request| !request.contains("EPHEMERAL"))
            {
                let (waiting, next) = setup(&server, "", request);
                let mut lines = vec![RELEASE, touch];
                if transaction {
                    lines.insert(0, "MULTI");
                    lines.push("EXEC");
                }
                let kill = waiting.kill();
                lines.push(&kill);
                lines.push("DLOCK.ACQUIRE k late 600000");
                let replies = at_once(&server, &lines);
                let told = match &replies[lines.len() - 3] {
                    Value::Array(replies) if transaction => &replies[1],
                    reply => reply,
                };
                assert!(
                    matches!(told, Value::Array(_) | Value::Int(1..)),
                    "{touch}: {told:?}"
                );
                assert_eq!(replies.last(), Some(&Value::Nil), "{touch}");
                let mut c = server.connection();
                server.await_client_gone(waiting.id);
                assert!(is_held(&mut c, "k", "dies"), "{touch}");
                assert!(next.is_blocked(&server), "{touch}");
                assert_eq!(position(&mut c, "k", "dies"), None);
                assert!(!is_held(&mut c, "free", "dies"), "{touch}");
                assert_eq!(c.ask::<u64>("DLOCK.RELEASE k dies HOLDS 0"), 0);
                next.reply::<Grant>();
            }
        }
    }
}

/// A client that knows that a connection has ended finds neither its place nor its ephemeral hold, however soon it looks.
#[test]
fn who_looks_finds_nothing_of_the_dead() {
    let server = Server::start();
    for transaction in [false, true] {
        let look = |waiting: &Waiting, look: &str| {
            let kill = waiting.kill();
            let mut lines = vec!["MULTI", &kill, look, "EXEC"];
            if !transaction {
                lines = vec![&kill, look];
            }
            last(at_once(waiting.server, &lines), transaction)
        };
        let request = "DLOCK.FAIRACQUIRE k dies 600000 BLOCK 0";
        let (waiting, next) = setup(&server, "", request);
        assert_eq!(look(&waiting, "DLOCK.POSITION k dies"), Value::Nil);
        let (waiting, _) = (wait(&server, "", request), next.kill());
        let info = format!("{:?}", look(&waiting, "DLOCK.INFO k"));
        assert!(!info.contains("dies"), "{info}");

        let mut c = server.connection();
        c.run("FLUSHALL");
        let mut wire = server.connection();
        let id = wire.client_id();
        let (token, _): Grant = wire.ask("DLOCK.ACQUIRE k dies 600000 EPHEMERAL");
        let next = wait_as(&server, "next");
        let server = &server;
        let waiting = Waiting { server, wire, id };
        let check = format!("DLOCK.CHECK k {token}");
        let lines = [waiting.kill(), check, "DLOCK.HELD k next".to_owned()];
        let replies = server.connection().batch(lines);
        let [_, Err(fenced), Ok(Value::Array(_))] = &replies else {
            panic!("{replies:?}")
        };
        assert!(fenced.starts_with("FENCED "), "{fenced}");
        next.reply::<Grant>();
    }
}
