//! Tickets by a real clock, and of owners that the server names. `tests/scenarios/tickets.txt` has the rest.

use std::collections::HashMap;

use dlock_harness::redis::{from_redis_value, Value};
use dlock_harness::{held, Ask, Blocked, Wire};

/// Returns the kind of each owner's place, in order.
fn queue(connection: &mut Wire) -> Vec<(String, String)> {
    let info: HashMap<String, Value> = connection.ask("DLOCK.INFO k");
    let places: Vec<HashMap<String, Value>> =
        from_redis_value(&info["queue"]).expect("an array of maps");
    let text = |value: &Value| from_redis_value(value).expect("a text");
    places
        .iter()
        .map(|place| (text(&place["owner"]), text(&place["kind"])))
        .collect()
}

/// An owner that the server names learns its name from the grant only: it leaves no ticket, since no client could claim it.
#[test]
fn an_owner_without_a_name_yet_leaves_no_ticket() {
    let (server, mut c, _) = held();
    for (line, error) in [
        (
            "DLOCK.FAIRACQUIRE k *",
            "ERR owner must be a name: * needs BLOCK with DLOCK.FAIRACQUIRE",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 CLAIM 1000",
            "ERR CLAIM cannot be combined with owner *",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 IN s",
            "ERR IN cannot be combined with owner *",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 HOLDS 1",
            "ERR HOLDS cannot be combined with owner *",
        ),
    ] {
        assert_eq!(c.refusal(line), error, "{line}");
    }
    let script = "EVAL return(redis.call('DLOCK.FAIRACQUIRE',KEYS[1],'*','BLOCK','0')) 1 k";
    assert_eq!(c.try_ask(script), Ok(Value::Nil));
    c.run("MULTI");
    c.run("DLOCK.FAIRACQUIRE k * BLOCK 0");
    assert_eq!(c.try_ask("EXEC"), Ok(Value::Array(vec![Value::Nil])));
    assert_eq!(queue(&mut c), []);
    // A wait that the server may keep is a ticket for its duration.
    let fresh = Blocked::start(&server, "DLOCK.FAIRACQUIRE k * 600000 BLOCK 0");
    let kinds: Vec<String> = queue(&mut c).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, ["ticket"]);
    c.run("DLOCK.RELEASE k alice");
    let (_, holds, owner): (u64, u64, String) = fresh.reply();
    assert_eq!((holds, owner.len()), (1, 36));
    assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}
