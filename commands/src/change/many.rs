//! `DLOCK.MACQUIRE`, `DLOCK.MRENEW`, `DLOCK.MRELEASE`.

use super::{acquire, hold};
use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::{Args, Verb};
use dlock_engine::{Answer, Grant, Keyspace};

/// Takes many locks: `numkeys key [key …] owner [lease-ms] [BLOCK ms] [HOLDS n] [SHARED | LIMIT n [PERMITS k]]
/// [EPHEMERAL] [AUTO ms] [IN session]`.
pub(crate) fn acquire<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (names, owner) = (call.names(given), given.owner());
    if owner == acquire::AUTO_OWNER {
        return Err(Error::Argument(
            "owner",
            "a name: only DLOCK.ACQUIRE and DLOCK.FAIRACQUIRE make one for *".to_string(),
        ));
    }
    let ask = acquire::ask(call, given, owner, Verb::AcquireMany)?;
    let answer = call
        .engine
        .acquire_many(call.keys, call.now, &names, &ask)?;
    Ok(match answer {
        Answer::Granted(grants) => match ask.terms.session {
            Some(no) => {
                let id = Reply::Integer(call.engine.session_id(no));
                Reply::array([tokens(&grants), id])
            }
            None => tokens(&grants),
        },
        Answer::Null => Reply::NullArray,
        Answer::Waiting(id) if ask.terms.session.is_some() => acquire::waiting(call, &ask, id),
        Answer::Waiting(id) => Reply::Wait(id, None),
    })
}

/// Makes the reply to a grant of many locks: their tokens.
pub fn tokens(grants: &[Grant]) -> Reply {
    Reply::array(grants.iter().map(|grant| Reply::Integer(grant.token.0)))
}

/// Renews many leases: `numkeys key [key …] owner [lease-ms] [EPHEMERAL] [AUTO ms] [IN session]`.
pub(crate) fn renew<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (names, owner) = (call.names(given), given.owner());
    hold::check_confirmable(call)?;
    let (lease, tie) = (call.lease(given.lease), hold::tie(call, given)?);
    let left = call
        .engine
        .renew_many(call.keys, call.now, &names, owner, lease, &tie)?;
    Ok(hold::renewed(call, &names, owner, &tie, left))
}

/// Releases one hold of each of many locks: `numkeys key [key …] owner`.
pub(crate) fn release<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let (names, owner) = (call.names(given), given.owner());
    let left = call
        .engine
        .release_many(call.keys, call.now, &names, owner)?;
    let reply = |left: Option<u32>| left.map_or(Reply::Null, Reply::number);
    Ok(Reply::array(left.into_iter().map(reply)))
}
