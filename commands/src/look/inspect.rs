//! `DLOCK.HELD`, `DLOCK.CHECK`, `DLOCK.GUARD`'s check of the lock, `DLOCK.POSITION`, `DLOCK.INFO`, `DLOCK.HELP`.

use crate::call::{Call, Caller, Reply};
use crate::error::Error;
use crate::table::{Args, COMMANDS};
use dlock_engine::{HoldView, Keyspace, LockState, PlaceKind, PlaceView, Token};

/// Holders and places that INFO shows where the request does not say.
const SHOWN: u64 = 100;

/// An owner's hold: `key owner`; that whose lease ends last, and whose it is: `key`.
pub(crate) fn held<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, now) = (call.name(given.key()), call.now);
    let (engine, lock) = call.lock(name)?;
    let hold = match given.owner {
        Some(owner) => engine.held(lock, now, owner),
        None => engine.longest(lock, now),
    };
    let Some(hold) = hold else {
        return Ok(Reply::NullArray);
    };
    let mut fields = vec![
        Reply::Integer(hold.token.0),
        Reply::Integer(u64::from(hold.holds)),
        Reply::Integer(hold.deadline.since(now.wall())),
    ];
    if given.owner.is_none() {
        fields.push(Reply::Bulk(hold.owner.to_vec()));
    }
    Ok(Reply::Array(fields))
}

/// Answers OK while the lock is held under a token: `key token`.
pub(crate) fn check<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    live(call, given).map(|()| Reply::Ok)
}

/// Lets a command run while the lock is held under a token: `key token command [arg ...]`.
pub(crate) fn guard<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    live(call, given).map(|()| Reply::Run)
}

/// Checks that the lock is held under this token.
fn live<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<(), Error> {
    let (name, token) = (call.name(given.key()), Token(given.token.unwrap_or(0)));
    let now = call.now;
    let (engine, lock) = call.lock(name)?;
    Ok(engine.check(lock, now, token)?)
}

/// How many stand before an owner: `key owner`.
pub(crate) fn position<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let (engine, lock) = call.lock(name)?;
    Ok(engine
        .position(lock, name, owner)
        .map_or(Reply::Null, |rank| Reply::Integer(rank as u64)))
}

/// What there is to see of a lock: `key [COUNT n]`.
pub(crate) fn info<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let name = call.name(given.key());
    let most = usize::try_from(given.count.unwrap_or(SHOWN)).unwrap_or(usize::MAX);
    let (now, caller) = (call.now, call.caller);
    let (engine, lock) = call.lock(name)?;
    let Some(view) = engine.view(lock, now, name, most) else {
        return Ok(Reply::NullArray);
    };
    let state = match view.state {
        LockState::Held => "held",
        LockState::Reserved => "reserved",
        LockState::Quarantined => "quarantined",
    };
    Ok(Reply::Map(vec![
        ("state", Reply::Text(state)),
        ("limit", Reply::Integer(u64::from(view.limit.to_wire()))),
        ("held", Reply::Integer(view.held as u64)),
        ("permits", Reply::Integer(view.permits)),
        ("queued", Reply::Integer(view.queued as u64)),
        (
            "holders",
            Reply::Array(
                view.holders
                    .into_iter()
                    .map(|hold| holder(hold, caller))
                    .collect(),
            ),
        ),
        (
            "queue",
            Reply::Array(
                view.queue
                    .into_iter()
                    .map(|place| queued(place, caller))
                    .collect(),
            ),
        ),
    ]))
}

fn holder(hold: HoldView, caller: &dyn Caller) -> Reply {
    let (client, described) = connection(hold.client.0, caller);
    let mut fields = vec![
        ("owner", Reply::Bulk(hold.owner)),
        ("token", Reply::Integer(hold.token.0)),
        ("holds", Reply::Integer(u64::from(hold.holds))),
        ("limit", Reply::Integer(u64::from(hold.limit.to_wire()))),
        ("permits", Reply::Integer(u64::from(hold.permits.get()))),
        ("lease-ms", Reply::Integer(hold.lease_ms)),
        ("held-ms", Reply::Integer(hold.held_ms)),
        ("session", Reply::Integer(u64::from(hold.session))),
        ("auto", Reply::Integer(u64::from(hold.auto))),
        ("acked", Reply::Integer(u64::from(hold.acked))),
        ("client", Reply::Integer(client)),
    ];
    fields.extend(described);
    Reply::Map(fields)
}

fn queued(place: PlaceView, caller: &dyn Caller) -> Reply {
    let kind = match place.kind {
        PlaceKind::Waiter => "waiter",
        PlaceKind::Notify => "notify",
        PlaceKind::Ticket => "ticket",
        PlaceKind::Absent => "absent",
    };
    let (client, described) = connection(place.client.0, caller);
    let mut fields = vec![
        ("owner", Reply::Bulk(place.owner)),
        ("kind", Reply::Text(kind)),
        (
            "limit",
            Reply::Integer(u64::from(place.share.limit.to_wire())),
        ),
        (
            "permits",
            Reply::Integer(u64::from(place.share.permits.get())),
        ),
        ("waited-ms", Reply::Integer(place.waited_ms)),
        ("left-ms", place.left_ms.map_or(Reply::Null, Reply::Integer)),
        ("client", Reply::Integer(client)),
    ];
    fields.extend(described);
    Reply::Map(fields)
}

/// A connection as far as the caller may know it: its id, 0 if it is gone, and its address and name.
fn connection(client: u64, caller: &dyn Caller) -> (u64, Vec<(&'static str, Reply)>) {
    if client == 0 || !caller.connected(client) {
        return (0, Vec::new());
    }
    let described = caller
        .describe(client)
        .map(|(addr, name)| vec![("addr", Reply::Bulk(addr)), ("name", Reply::Bulk(name))]);
    (client, described.unwrap_or_default())
}

/// The commands: a line for what each takes, and one for what it does.
pub(crate) fn help() -> Reply {
    let lines = COMMANDS.iter().filter(|spec| !spec.internal());
    Reply::Array(
        lines
            .flat_map(|spec| [spec.syntax(), format!("    {}", spec.summary)])
            .map(|line| Reply::Bulk(line.into()))
            .collect(),
    )
}
