//! `DLOCK.DOWNGRADE`, `DLOCK.RENEW`, `DLOCK.RELEASE`, `DLOCK.FORCERELEASE`.

use crate::call::{Call, MayWait, Reply};
use crate::error::Error;
use crate::table::Args;
use crate::words::args::check_none;
use dlock_engine::{
    ClientId, HoldRef, Keyspace, Limit, Millis, NameRef, NoAck, Refusal, SessionNo, SessionRef,
    TieRequest, Token, SHORTEST_AUTO_LEASE_MS,
};

/// Weakens a hold's limit: `key owner SHARED | LIMIT n [TOKEN t]`.
pub(crate) fn downgrade<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let limit = given.sharing().unwrap_or(Limit::EXCLUSIVE);
    let hold = call.engine.downgrade(
        call.keys,
        call.now,
        name,
        owner,
        given.token.map(Token),
        limit,
    )?;
    Ok(Reply::Grant(hold.token, hold.holds, None))
}

/// Finds or begins the session of a request.
///
/// Errors if another option excludes it; if no lease may be as long as the shortest that the server renews by itself; if another user
/// has begun it; if there are as many as may be.
pub(crate) fn session<K: Keyspace>(
    call: &mut Call<K>,
    given: &Args,
    name: &[u8],
) -> Result<SessionNo, Error> {
    let excluded = [
        (given.auto.is_some(), "AUTO"),
        (given.ephemeral, "EPHEMERAL"),
        (given.holds.is_some(), "HOLDS"),
        (given.claim.is_some(), "CLAIM"),
    ];
    check_none(excluded, "IN")?;
    let most = call.engine.policy().max_lease_ms;
    if most < SHORTEST_AUTO_LEASE_MS {
        return Err(Error::Argument("IN", no_auto(most)));
    }
    let (db, user) = (call.db, call.caller.user());
    let user = &user;
    Ok(call
        .engine
        .enter_session(call.now, SessionRef { db, name, user })?)
}

/// Returns how `DLOCK.RENEW` and `DLOCK.MRENEW` tie a hold: to the caller's connection, or to a session.
///
/// Errors if the caller has none, or if no lease may be as long as the shortest that the server renews by itself.
pub(crate) fn tie<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<TieRequest, Error> {
    if let Some(name) = given.session {
        return Ok(TieRequest {
            client: ClientId(call.caller.client()),
            session: Some(session(call, given, name)?),
            ..TieRequest::default()
        });
    }
    if !given.ephemeral && given.auto.is_none() {
        return Ok(TieRequest::default());
    }
    check_tie(call, given)?;
    Ok(TieRequest {
        client: ClientId(call.caller.client()),
        ephemeral: given.ephemeral,
        auto: given.auto,
        session: None,
    })
}

/// Errors if a caller without a connection asks for a tie, or if no lease may be long enough for renewals by the server.
#[cold]
pub(crate) fn check_tie<K: Keyspace>(call: &Call<K>, given: &Args) -> Result<(), Error> {
    if !call.own_connection() {
        let option = if given.ephemeral { "EPHEMERAL" } else { "AUTO" };
        return Err(Error::NoConnection(option));
    }
    let most = call.engine.policy().max_lease_ms;
    match given.auto {
        Some(_) if most < SHORTEST_AUTO_LEASE_MS => Err(Error::Argument("AUTO", no_auto(most))),
        _ => Ok(()),
    }
}

/// Returns what AUTO must be where no lease may be long enough for it.
fn no_auto(most: Millis) -> String {
    format!("left out: it needs leases of {SHORTEST_AUTO_LEASE_MS} ms, and the longest that is allowed is {most} ms")
}

/// Errors if replicas must confirm the answer and the caller cannot wait for that.
pub(crate) fn check_confirmable<K: Keyspace>(call: &Call<K>) -> Result<(), Error> {
    if call.engine.policy().confirms() && call.caller.may_wait() != MayWait::Yes {
        return Err(Refusal::NoAck(NoAck::Barred).into());
    }
    check_room_to_confirm(call)
}

/// Errors if `dlock.max-waiters` answers already wait for replicas.
pub(crate) fn check_room_to_confirm<K: Keyspace>(call: &Call<K>) -> Result<(), Error> {
    let policy = call.engine.policy();
    if policy.confirms() && call.caller.unconfirmed() >= policy.max_waiters {
        return Err(Refusal::NoAck(NoAck::Full).into());
    }
    Ok(())
}

/// Makes the reply to a renewal of the owner's holds of these locks.
pub(crate) fn renewed<K: Keyspace>(
    call: &mut Call<K>,
    names: &[NameRef],
    owner: &[u8],
    tie: &TieRequest,
    left: Millis,
) -> Reply {
    if !call.engine.policy().confirms() {
        return match tie.session {
            Some(no) => Reply::array([left, call.engine.session_id(no)].map(Reply::Integer)),
            None => Reply::Integer(left),
        };
    }
    let (engine, keys) = (&mut *call.engine, &mut *call.keys);
    Reply::Wait(
        engine.confirm_renewal(keys, call.now, names, owner, tie.session, left),
        None,
    )
}

/// Renews a lease: `key owner [lease-ms] [TOKEN t] [EPHEMERAL] [AUTO ms] [IN session]`.
pub(crate) fn renew<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let (lease, token) = (call.lease(given.lease), given.token.map(Token));
    check_confirmable(call)?;
    let tie = tie(call, given)?;
    let whose = HoldRef { name, owner };
    let left = call
        .engine
        .renew(call.keys, call.now, whose, token, lease, &tie)?;
    Ok(renewed(call, &[name], owner, &tie, left))
}

/// Releases holds: `key owner [HOLDS n] [TOKEN t]`, one hold without `HOLDS`.
#[inline(never)]
pub(crate) fn release<K: Keyspace>(
    call: &mut Call<K>,
    (key, owner): (&[u8], &[u8]),
    token: Option<u64>,
    holds: Option<u64>,
) -> Result<Reply, Error> {
    let (name, leave) = (call.name(key), holds.map(|holds| holds as u32));
    let (whose, token) = (HoldRef { name, owner }, token.map(Token));
    let left = call
        .engine
        .release(call.keys, call.now, whose, token, leave)?;
    Ok(Reply::number(left))
}

/// Ends holds by force: `key [owner]`.
pub(crate) fn force<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let name = call.name(given.key());
    let ended = call.engine.force(call.keys, call.now, name, given.owner)?;
    Ok(Reply::Integer(ended as u64))
}
