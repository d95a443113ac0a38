//! `DLOCK.ACQUIRE` and `DLOCK.FAIRACQUIRE`, what `DLOCK.MACQUIRE` has in common with them, and `DLOCK.CANCEL`.

use super::hold;
use crate::call::{Call, MayWait, Reply};
use crate::error::Error;
use crate::table::{Args, Verb};
use crate::words::args::{check_none, PlainArgs};
use dlock_engine::{
    Answer, Ask, ClientId, Keyspace, Limit, NameRef, Permits, RequestId, Share, Terms, Wait, ONE,
    SHORTEST_AUTO_LEASE_MS,
};
use std::num::NonZeroU32;

/// The owner for which the server makes a name.
pub(crate) const AUTO_OWNER: &[u8] = b"*";

/// Takes a lock: `key owner [lease-ms [IN session [BLOCK ms]]]` and no other options.
#[inline(never)]
pub(crate) fn run_plain<K: Keyspace>(
    call: &mut Call<K>,
    plain: PlainArgs,
    verb: Verb,
) -> Result<Reply, Error> {
    let args = Args {
        lease: plain.lease,
        session: plain.session,
        block: plain.block,
        ..Args::default()
    };
    let name = call.name(plain.key);
    let ask = ask(call, &args, plain.owner, verb)?;
    request(call, name, &ask, None)
}

/// Takes a lock: `key owner [lease-ms] [BLOCK ms] [HOLDS n] [SHARED | LIMIT n [PERMITS k]] [EPHEMERAL] [AUTO ms] [IN session]`, for
/// `DLOCK.FAIRACQUIRE` also `[CLAIM ms]`.
pub(crate) fn run<K: Keyspace>(
    call: &mut Call<K>,
    given: &Args,
    verb: Verb,
) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    if owner == AUTO_OWNER {
        check_fresh(given, verb)?;
        let owner = call.caller.fresh_owner();
        let mut ask = ask(call, given, owner.as_bytes(), verb)?;
        if ask.wait == Wait::No {
            // Nobody would know the name of the ticket that it left.
            ask.ticket = None;
        }
        return request(call, name, &ask, Some(&owner));
    }
    let ask = ask(call, given, owner, verb)?;
    request(call, name, &ask, None)
}

/// Hands the request to the engine. `named` is the owner if the server named it.
#[inline(always)]
fn request<K: Keyspace>(
    call: &mut Call<K>,
    name: NameRef,
    ask: &Ask,
    named: Option<&str>,
) -> Result<Reply, Error> {
    let named = || named.map(str::to_string);
    match call.engine.acquire(call.keys, call.now, name, ask)? {
        Answer::Granted(grant) => Ok(match ask.terms.session {
            Some(no) => Reply::GrantIn(grant.token, call.engine.session_id(no)),
            None => Reply::Grant(grant.token, grant.holds, named()),
        }),
        Answer::Waiting(id) if ask.terms.session.is_some() => Ok(waiting(call, ask, id)),
        Answer::Null => Ok(Reply::NullArray),
        Answer::Waiting(id) => Ok(Reply::Wait(id, named())),
    }
}

/// Makes the reply to a request that waits in a session, for its turn or for replicas.
pub(crate) fn waiting<K: Keyspace>(call: &Call<K>, ask: &Ask, id: RequestId) -> Reply {
    let session = ask.terms.session.map_or(0, |no| call.engine.session_id(no));
    let numbers = [0, call.engine.rank(id) as u64, session];
    Reply::array(numbers.map(Reply::Integer))
}

/// Makes the request to the engine.
///
/// Errors if the caller may not make it.
#[inline(always)]
pub(crate) fn ask<'a, K: Keyspace>(
    call: &mut Call<K>,
    given: &Args<'a>,
    owner: &'a [u8],
    verb: Verb,
) -> Result<Ask<'a>, Error> {
    if given.ephemeral || given.auto.is_some() {
        hold::check_tie(call, given)?;
    }
    let session = match given.session {
        Some(name) => Some(hold::session(call, given, name)?),
        None => None,
    };
    let permits = match given.permits {
        Some(permits) => check_permits(given, permits)?,
        None => ONE,
    };
    if session.is_some() {
        hold::check_room_to_confirm(call)?;
    } else {
        hold::check_confirmable(call)?;
    }
    let waits = given.block.is_some() && (session.is_some() || may_block(call)?);
    Ok(Ask {
        owner,
        terms: Terms {
            share: Share {
                limit: given.sharing().unwrap_or(Limit::EXCLUSIVE),
                permits,
            },
            lease: if given.auto.is_some() || session.is_some() {
                call.lease(given.lease).max(SHORTEST_AUTO_LEASE_MS)
            } else {
                call.lease(given.lease)
            },
            holds: match session {
                // A copy of the request that comes late adds none.
                Some(_) => Some(NonZeroU32::MIN),
                None => given.holds.and_then(|holds| NonZeroU32::new(holds as u32)),
            },
            ephemeral: given.ephemeral,
            auto: given.auto.and_then(|ms| NonZeroU32::new(ms as u32)),
            session,
            client: ClientId(call.caller.client()),
        },
        wait: match given.block.filter(|ms| waits && *ms > 0) {
            Some(ms) => Wait::For(Some(ms)),
            None if waits => Wait::For(None),
            None => Wait::No,
        },
        ticket: (verb == Verb::FairAcquire && (waits || session.is_none())).then(|| {
            match given.claim {
                Some(claim) => claim,
                None if waits => 0,
                None => call.engine.policy().claim_window_ms,
            }
        }),
    })
}

/// Checks the permits against the limit.
fn check_permits(given: &Args, permits: u64) -> Result<Permits, Error> {
    let Some(limit) = given.limit else {
        return Err(Error::Argument("PERMITS", "given with LIMIT".to_string()));
    };
    let permits = Permits::new(permits as u32).filter(|_| permits <= limit);
    permits.ok_or_else(|| {
        let must = format!("an integer from 1 to {limit}, as LIMIT says");
        Error::Argument("PERMITS", must)
    })
}

/// Checks the options of a request for which the server makes the owner's name. The client learns the name from the grant: it has
/// no holds yet, and it could not claim a ticket that outlives its wait. A program names its owners in a session before it asks.
fn check_fresh(given: &Args, verb: Verb) -> Result<(), Error> {
    let excluded = [
        (given.holds.is_some(), "HOLDS"),
        (given.claim.is_some(), "CLAIM"),
        (given.session.is_some(), "IN"),
    ];
    check_none(excluded, "owner *")?;
    if verb == Verb::FairAcquire && given.block.is_none() {
        let must = "a name: * needs BLOCK with DLOCK.FAIRACQUIRE".to_string();
        return Err(Error::Argument("owner", must));
    }
    Ok(())
}

/// Returns whether `BLOCK` takes effect here.
///
/// Errors if the server does not block this connection.
pub(crate) fn may_block<K: Keyspace>(call: &Call<K>) -> Result<bool, Error> {
    match call.caller.may_wait() {
        MayWait::Yes => Ok(true),
        MayWait::Ignored => Ok(false),
        MayWait::Refused => Err(Error::MayNotWait),
    }
}

/// Takes an owner out of the queue: `key owner`.
pub(crate) fn cancel<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let removed = call.engine.cancel(call.keys, call.now, name, owner)?;
    Ok(Reply::number(removed))
}
