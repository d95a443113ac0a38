//! `DLOCK.MACQUIRE`, `DLOCK.MRENEW`, `DLOCK.MRELEASE`.

use super::acquire::{Family, Options};
use super::args::{unknown, Args};
use super::{Call, Reply};
use crate::engine::{Keyspace, ManyAnswer, NameRef};
use crate::error::Error;

/// Takes many locks: `numkeys key [key …] owner [lease-ms] [BLOCK ms] [HOLDS n] [SHARED | LIMIT n] [SESSION]`.
#[inline(never)]
pub fn acquire<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let names = names(call, args)?;
    let owner = args.owner()?;
    let lease = call.lease(args)?;
    let options = Options::read(call, args, Family::Many)?;
    if owner == b"*" {
        return Err(Error::Argument(
            "owner",
            "a name: * stands for a fresh one with DLOCK.ACQUIRE and DLOCK.FAIRACQUIRE only"
                .to_string(),
        ));
    }
    let ask = options.ask(call, owner, lease, Family::Many)?;
    let answer = call
        .engine
        .acquire_many(call.keys, call.now, &names, &ask)?;
    Ok(match answer {
        ManyAnswer::Granted(grants) => Reply::Array(
            grants
                .iter()
                .map(|grant| Reply::Integer(grant.token))
                .collect(),
        ),
        ManyAnswer::Null => Reply::NullArray,
        ManyAnswer::Waiting(id) => Reply::Wait(id, None),
    })
}

/// Renews many leases: `numkeys key [key …] owner [lease-ms]`.
#[inline(never)]
pub fn renew<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let names = names(call, args)?;
    let owner = args.owner()?;
    let lease = call.lease(args)?;
    if let Some(word) = args.next() {
        return Err(unknown(word));
    }
    call.engine
        .renew_many(call.keys, call.now, &names, owner, lease)
        .map(Reply::Integer)
}

/// Gives many locks back: `numkeys key [key …] owner`.
#[inline(never)]
pub fn release<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let names = names(call, args)?;
    let owner = args.owner()?;
    args.end()?;
    let left = call
        .engine
        .release_many(call.keys, call.now, &names, owner)?;
    let reply = |left: Option<u32>| left.map_or(Reply::Null, |n| Reply::Integer(u64::from(n)));
    Ok(Reply::Array(left.into_iter().map(reply).collect()))
}

fn names<'a, K: Keyspace>(call: &Call<K>, args: &mut Args<'a>) -> Result<Vec<NameRef<'a>>, Error> {
    let keys = args.keys()?;
    Ok(keys
        .iter()
        .map(|key| NameRef { db: call.db, key })
        .collect())
}
