//! `DLOCK.DOWNGRADE`, `DLOCK.RENEW`, `DLOCK.RELEASE`, `DLOCK.FORCERELEASE`.

use super::args::Usual;
use super::table::Given;
use super::{Call, Reply};
use crate::engine::{Keyspace, Limit, Millis, Token};
use crate::error::Error;

/// Weakens a hold's limit: `key owner SHARED | LIMIT n`.
#[inline(never)]
pub fn downgrade<K: Keyspace>(call: &mut Call<K>, given: &Given) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let limit = given.sharing().unwrap_or(Limit::EXCLUSIVE);
    let hold = call
        .engine
        .downgrade(call.keys, call.now, name, owner, limit)?;
    Ok(Reply::Grant(hold.token, hold.holds, None))
}

/// What `DLOCK.RENEW` and `DLOCK.MRENEW` ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// The lease, from now on.
    pub lease: Millis,
    /// The token that the hold must have.
    pub token: Option<Token>,
    /// Whether the hold is to end with the connection, from now on.
    pub session: bool,
    /// How long the server is to renew it by itself while the connection is open; 0: without bound.
    pub auto: Option<Millis>,
    /// The connection's client id.
    pub client: u64,
}

impl Renewal {
    /// What the words say. Errors if the caller may not ask for it.
    pub fn read<K: Keyspace>(call: &Call<K>, given: &Given) -> Result<Renewal, Error> {
        let tie = match (given.session, given.auto) {
            (false, None) => None,
            (true, _) => Some("SESSION"),
            (false, Some(_)) => Some("AUTO"),
        };
        if let Some(option) = tie {
            if !call.caller.own_connection() {
                return Err(Error::NoConnection(option));
            }
            // UNTIL THE ENGINE TIES HOLDS BY A RENEWAL: the one place that refuses it.
            return Err(Error::UnknownOption(option.to_string()));
        }
        Ok(Renewal {
            lease: call.lease(given.lease),
            token: given.token,
            session: given.session,
            auto: given.auto,
            client: call.caller.client(),
        })
    }
}

/// Renews a lease: `key owner [lease-ms] [TOKEN t] [SESSION] [AUTO ms]`.
#[inline(never)]
pub fn renew<K: Keyspace>(call: &mut Call<K>, given: &Given) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let Renewal { lease, token, .. } = Renewal::read(call, given)?;
    call.engine
        .renew(call.keys, call.now, name, owner, token, lease)
        .map(Reply::Integer)
}

/// The same without options.
#[inline(never)]
pub fn renew_usual<K: Keyspace>(call: &mut Call<K>, usual: Usual) -> Result<Reply, Error> {
    let (name, lease) = (call.name(usual.key), call.lease(usual.lease));
    call.engine
        .renew(call.keys, call.now, name, usual.owner, None, lease)
        .map(Reply::Integer)
}

/// Gives holds back: `key owner [HOLDS n] [TOKEN t]`.
#[inline(never)]
pub fn release<K: Keyspace>(call: &mut Call<K>, given: &Given) -> Result<Reply, Error> {
    let (name, owner) = (call.name(given.key()), given.owner());
    let leave = given.holds.map(|holds| holds as u32);
    let left = call
        .engine
        .release(call.keys, call.now, name, owner, given.token, leave)?;
    Ok(Reply::Integer(u64::from(left)))
}

/// The same without options: one hold.
#[inline(never)]
pub fn release_usual<K: Keyspace>(call: &mut Call<K>, usual: Usual) -> Result<Reply, Error> {
    let name = call.name(usual.key);
    let left = call
        .engine
        .release(call.keys, call.now, name, usual.owner, None, None)?;
    Ok(Reply::Integer(u64::from(left)))
}

/// Ends holds by force: `key [owner]`.
#[inline(never)]
pub fn force<K: Keyspace>(call: &mut Call<K>, given: &Given) -> Result<Reply, Error> {
    let name = call.name(given.key());
    let ended = call.engine.force(call.keys, call.now, name, given.owner)?;
    Ok(Reply::Integer(ended as u64))
}
