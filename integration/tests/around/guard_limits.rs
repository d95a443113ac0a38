//! Commands that `DLOCK.GUARD` refuses to run, and deep nesting that it survives.

use dlock_harness::redis::Cmd;
use dlock_harness::{assert_sound, command, reply_of, Ask, Guarded, Server};

/// A GUARD within a GUARD within a GUARD: the server asks for the keys of all of them before any is refused.
#[test]
fn nested_guards_do_not_exhaust_the_stack() {
    for depth in [2, 1_000, 300_000] {
        for user in [false, true] {
            let server = Server::start();
            let mut c = server.connection();
            let guarded = Guarded::new(&server, &mut c);
            // For a user with restricted keys the server asks for a command's keys.
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
            let mut asking = server.connection();
            if user {
                asking.ask::<()>("AUTH app secret");
            }
            // Keys or a refusal: both are answers.
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
