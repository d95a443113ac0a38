//! Whether a grant was sent, by the line that CLIENT LIST shows for its connection.

use dlock_commands::words::client_line::grant_is_unsent;

/// The line of a connection of the user `app`, with the fields that decide.
fn line(obl: u32, oll: u32, command: &str) -> String {
    format!(
        "id=7 addr=127.0.0.1:5000 name= obl={obl} oll={oll} omem=0 cmd={command} user=app resp=2"
    )
}

fn is_unsent(line: &str, sending: bool) -> bool {
    grant_is_unsent(line, b"app", sending)
}

#[test]
fn a_grant_that_is_pending_alone_is_unsent() {
    for command in ["dlock.acquire", "dlock.fairacquire", "dlock.macquire"] {
        for sending in [true, false] {
            assert!(is_unsent(&line(30, 0, command), sending), "{command}");
            assert!(is_unsent(&line(0, 2, command), sending), "{command}");
            assert!(!is_unsent(&line(0, 0, command), sending), "{command}");
        }
    }
}

/// The grant may have been sent, and the reply to the PING not.
#[test]
fn behind_a_later_command_only_a_server_that_sends_nothing_yet_leaves_no_doubt() {
    let pings = line(30, 0, "ping");
    assert!(is_unsent(&pings, false));
    assert!(!is_unsent(&pings, true));
    assert!(!is_unsent(&line(0, 0, "ping"), false));
}

/// The server closes it and sends nothing more.
#[test]
fn a_connection_whose_user_was_deleted_gets_nothing() {
    let deleted = line(0, 0, "dlock.acquire").replace("user=app", "user=(superuser)");
    assert!(is_unsent(&deleted, true));
    // AUTH, which has run since: another user is no sign.
    let authenticated = line(0, 0, "auth").replace("user=app", "user=other");
    assert!(!is_unsent(&authenticated, false));
}

#[test]
fn a_line_without_the_fields_shows_nothing() {
    assert!(!is_unsent("", false));
    assert!(!is_unsent("id=7 cmd=ping", false));
}
