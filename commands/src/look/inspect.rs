//! `DLOCK.HELD`, `DLOCK.CHECK`, `DLOCK.GUARD`'s check of the lock, `DLOCK.POSITION`, `DLOCK.INFO`, `DLOCK.HELP`.

use crate::call::{Call, Caller, Reply};
use crate::error::Error;
use crate::table::{Args, Spec, COMMANDS};
use dlock_engine::{
    ClientId, HoldView, Keyspace, LockState, PlaceKind, PlaceView, SessionView, Token,
};

/// The holders and places that INFO shows without `COUNT`.
const SHOWN: u64 = 100;

/// Shows an owner's hold: `key owner`; or the hold whose lease ends last, and its owner: `key`.
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
        Reply::number(hold.holds),
        Reply::Integer(hold.deadline.since(now.wall())),
    ];
    if given.owner.is_none() {
        fields.push(Reply::Bulk(hold.owner.to_vec()));
    }
    Ok(Reply::Array(fields))
}

/// Answers OK while the lock is held under a token: `key token`.
pub(crate) fn check<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    check_token(call, given).map(|()| Reply::Ok)
}

/// Lets a command run while the lock is held under a token: `key token command [arg ...]`.
pub(crate) fn guard<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    check_token(call, given).map(|()| Reply::Run)
}

/// Checks that the lock is held under this token.
fn check_token<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<(), Error> {
    let (name, token) = (call.name(given.key()), Token(given.token.unwrap_or(0)));
    let now = call.now;
    let (engine, lock) = call.lock(name)?;
    Ok(engine.check(lock, now, token)?)
}

/// Shows how many places are before an owner's: `key owner`.
pub(crate) fn position<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let (engine, lock) = call.lock(name)?;
    Ok(engine
        .position(lock, name, owner)
        .map_or(Reply::Null, |rank| Reply::Integer(rank as u64)))
}

/// Shows who holds a lock and who waits for it: `key [COUNT n]`.
pub(crate) fn info<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let name = call.name(given.key());
    let most = given.count(SHOWN);
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
    let holders = view.holders.into_iter().map(|hold| holder(hold, caller));
    let queue = view.queue.into_iter().map(|place| queued(place, caller));
    Ok(Reply::Map(vec![
        ("state", Reply::Text(state)),
        ("limit", Reply::number(view.limit.to_wire())),
        ("held", Reply::Integer(view.held as u64)),
        ("permits", Reply::Integer(view.permits)),
        ("queued", Reply::Integer(view.queued as u64)),
        ("holders", Reply::array(holders)),
        ("queue", Reply::array(queue)),
    ]))
}

fn holder(hold: HoldView, caller: &dyn Caller) -> Reply {
    let fields = vec![
        ("owner", Reply::Bulk(hold.owner)),
        ("token", Reply::Integer(hold.token.0)),
        ("holds", Reply::number(hold.holds)),
        ("limit", Reply::number(hold.limit.to_wire())),
        ("permits", Reply::number(hold.permits.get())),
        ("lease-ms", Reply::Integer(hold.lease_ms)),
        ("held-ms", Reply::Integer(hold.held_ms)),
        ("ephemeral", Reply::number(hold.ephemeral)),
        ("auto", Reply::number(hold.auto)),
        ("acked", Reply::number(hold.acked)),
    ];
    with_connection(in_session(fields, hold.session), hold.client, caller)
}

fn queued(place: PlaceView, caller: &dyn Caller) -> Reply {
    let kind = match place.kind {
        PlaceKind::Waiter => "waiter",
        PlaceKind::Ticket => "ticket",
        PlaceKind::Absent => "absent",
    };
    let fields = vec![
        ("owner", Reply::Bulk(place.owner)),
        ("kind", Reply::Text(kind)),
        ("limit", Reply::number(place.share.limit.to_wire())),
        ("permits", Reply::number(place.share.permits.get())),
        ("waited-ms", Reply::Integer(place.waited_ms)),
        ("left-ms", place.left_ms.map_or(Reply::Null, Reply::Integer)),
    ];
    with_connection(in_session(fields, place.session), place.client, caller)
}

/// Adds the fields of a session: its name, whether it is alive, and since how many milliseconds it is that, or not that.
fn in_session(
    mut fields: Vec<(&'static str, Reply)>,
    session: Option<SessionView>,
) -> Vec<(&'static str, Reply)> {
    match session {
        None => fields.push(("in", Reply::Bulk(Vec::new()))),
        Some(session) => fields.extend([
            ("in", Reply::Bulk(session.name)),
            ("alive", Reply::number(session.alive)),
            ("since-ms", Reply::Integer(session.since_ms)),
        ]),
    }
    fields
}

/// Adds the fields of a connection that the caller may know: its id, 0 if it is not there, and its address and name; and `gone` if it
/// was there on this server, and has ended.
fn with_connection(
    mut fields: Vec<(&'static str, Reply)>,
    client: ClientId,
    caller: &dyn Caller,
) -> Reply {
    let there = client != ClientId::NONE && caller.connected(client.0);
    let id = if there { client.0 } else { 0 };
    fields.push(("client", Reply::Integer(id)));
    // What a script took has no connection, but a number like one.
    let had_one = ![ClientId::NONE, ClientId::RESTORED].contains(&client);
    if had_one && !there {
        fields.push(("gone", Reply::Integer(1)));
    }
    if let Some((addr, name)) = there.then(|| caller.describe(client.0)).flatten() {
        fields.extend([("addr", Reply::Bulk(addr)), ("name", Reply::Bulk(name))]);
    }
    Reply::Map(fields)
}

/// Lists the commands, or the one that is named: `[command]`. A line for what each takes, and one for what it does.
///
/// Errors if none of that name is listed.
pub(crate) fn help(given: &Args) -> Result<Reply, Error> {
    let named = |spec: &Spec| {
        given
            .command
            .is_none_or(|name| names(spec).any(|own| own.eq_ignore_ascii_case(name)))
    };
    let specs = COMMANDS
        .iter()
        .filter(|spec| !spec.internal() && named(spec));
    let lines: Vec<Reply> = specs
        .flat_map(|spec| [spec.syntax(), format!("    {}", spec.summary)])
        .map(|line| Reply::Bulk(line.into()))
        .collect();
    if lines.is_empty() {
        let must = "a command that DLOCK.HELP lists".into();
        return Err(Error::Argument("command", must));
    }
    Ok(Reply::Array(lines))
}

/// Returns the names of a command: as it is sent, and without `DLOCK.`.
fn names(spec: &Spec) -> impl Iterator<Item = &[u8]> {
    let short = spec.name.strip_prefix("dlock.");
    [Some(spec.name), short]
        .into_iter()
        .flatten()
        .map(str::as_bytes)
}
