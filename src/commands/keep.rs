//! `DLOCK.DOWNGRADE`, `DLOCK.RENEW`, `DLOCK.RELEASE`, `DLOCK.FORCERELEASE`.

use super::args::{is, once, sharing, unknown, Args};
use super::{Call, Reply};
use crate::engine::{Keyspace, Limit, Token, MAX_TOKEN};
use crate::error::Error;

/// Weakens a hold's limit: `key owner SHARED | LIMIT n`.
#[inline(never)]
pub fn downgrade<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let owner = args.owner()?;
    let mut limit = None;
    let word = args.word()?;
    if !sharing(word, args, &mut limit)? {
        return Err(unknown(word));
    }
    args.end()?;
    let limit = limit.unwrap_or(Limit::EXCLUSIVE);
    let hold = call
        .engine
        .downgrade(call.keys, call.now, name, owner, limit)?;
    Ok(Reply::Grant(hold.token, hold.holds, None))
}

/// Renews a lease: `key owner [lease-ms] [TOKEN t]`.
#[inline(never)]
pub fn renew<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let owner = args.owner()?;
    let lease = call.lease(args)?;
    let mut token = None;
    while let Some(word) = args.next() {
        read_token(args, word, &mut token)?;
    }
    call.engine
        .renew(call.keys, call.now, name, owner, token, lease)
        .map(Reply::Integer)
}

/// Gives holds back: `key owner [HOLDS n] [TOKEN t]`.
#[inline(never)]
pub fn release<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let owner = args.owner()?;
    // As most releases have none.
    let (token, leave) = match args.is_empty() {
        true => (None, None),
        false => read_release(args)?,
    };
    let left = call
        .engine
        .release(call.keys, call.now, name, owner, token, leave)?;
    Ok(Reply::Integer(u64::from(left)))
}

/// Reads the options of a release: the token, and how many holds it leaves.
#[cold]
fn read_release(args: &mut Args) -> Result<(Option<Token>, Option<u32>), Error> {
    let (mut token, mut leave) = (None, None);
    while let Some(word) = args.next() {
        if is(word, "HOLDS") {
            let holds = args.integer("HOLDS", 0..=u64::from(u32::MAX))?;
            once(&mut leave, "HOLDS", holds as u32)?;
        } else {
            read_token(args, word, &mut token)?;
        }
    }
    Ok((token, leave))
}

/// Ends holds by force: `key [owner]`.
#[inline(never)]
pub fn force<K: Keyspace>(call: &mut Call<K>, args: &mut Args) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let rest = *args;
    let owner = match args.next() {
        Some(_) => {
            *args = rest;
            Some(args.owner()?)
        }
        None => None,
    };
    args.end()?;
    let ended = call.engine.force(call.keys, call.now, name, owner)?;
    Ok(Reply::Integer(ended as u64))
}

fn read_token(args: &mut Args, word: &[u8], token: &mut Option<Token>) -> Result<(), Error> {
    if !is(word, "TOKEN") {
        return Err(unknown(word));
    }
    let value = args.integer("TOKEN", 1..=MAX_TOKEN - 1)?;
    once(token, "TOKEN", value)
}
