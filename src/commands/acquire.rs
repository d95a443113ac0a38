//! `DLOCK.ACQUIRE` and `DLOCK.FAIRACQUIRE`.

use super::args::{is, once, sharing, unknown, Args};
use super::{Call, Reply};
use crate::engine::{Answer, Ask, Keyspace, Limit, Millis, Wait};
use crate::error::Error;

/// What the words after key and owner say.
#[derive(Debug, Default)]
struct Options {
    lease: Option<Millis>,
    block: Option<Millis>,
    holds: Option<u32>,
    claim: Option<Millis>,
    limit: Option<Limit>,
}

/// The longest wait that may be asked for: a century. Beyond, sums with the clock would have to be watched.
const MAX_BLOCK_MS: u64 = 3_155_760_000_000;

/// Takes a lock: `key owner [lease-ms] [BLOCK ms] [HOLDS n] [SHARED | LIMIT n]`, with `fair` also `[CLAIM ms]`.
#[inline(never)]
pub fn run<K: Keyspace>(call: &mut Call<K>, args: &mut Args, fair: bool) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let owner = args.owner()?;
    let options = parse(call, args, fair)?;
    let named = (owner == b"*").then(|| call.caller.fresh_owner());
    if named.is_some() && options.holds.is_some() {
        return Err(Error::Conflict("HOLDS", "owner *"));
    }
    let waits = options.block.is_some() && call.caller.may_wait();
    let ticket = match (fair, options.claim) {
        (false, _) => None,
        (true, Some(claim)) => Some(claim),
        (true, None) if waits => Some(0),
        (true, None) => Some(call.engine.policy.claim_window_ms),
    };
    let ask = Ask {
        owner: named.as_ref().map_or(owner, |named| named.as_bytes()),
        lease: options
            .lease
            .unwrap_or(call.defaults.lease_ms)
            .min(call.longest_lease()),
        wait: match options.block.filter(|_| waits) {
            None => Wait::No,
            Some(0) => Wait::For(None),
            Some(ms) => Wait::For(Some(ms)),
        },
        holds: options.holds,
        limit: options.limit.unwrap_or(Limit::EXCLUSIVE),
        ticket,
        client: call.caller.client(),
    };
    match call.engine.acquire(call.keys, call.now, name, &ask)? {
        Answer::Granted(grant) => Ok(Reply::Grant(grant.token, grant.holds, named)),
        Answer::Null => Ok(Reply::NullArray),
        Answer::Waiting(id) => Ok(Reply::Wait(id, named)),
    }
}

fn parse<K: Keyspace>(call: &Call<K>, args: &mut Args, fair: bool) -> Result<Options, Error> {
    let mut options = Options::default();
    if args.at_number() {
        options.lease = Some(args.integer("lease-ms", 1..=call.longest_lease())?);
    }
    while let Some(word) = args.next() {
        if is(word, "BLOCK") {
            let ms = args.integer("BLOCK", 0..=MAX_BLOCK_MS)?;
            once(&mut options.block, "BLOCK", ms)?;
        } else if is(word, "HOLDS") {
            let holds = args.integer("HOLDS", 1..=u64::from(u32::MAX))?;
            once(&mut options.holds, "HOLDS", holds as u32)?;
        } else if fair && is(word, "CLAIM") {
            let ms = args.integer("CLAIM", 1..=call.engine.policy.max_claim_ms)?;
            once(&mut options.claim, "CLAIM", ms)?;
        } else if sharing(word, args, &mut options.limit)? {
            continue;
        } else if let Some(option) = ["SESSION", "NOTIFY"].into_iter().find(|o| is(word, o)) {
            return Err(Error::NotBuilt(option));
        } else {
            return Err(unknown(word));
        }
    }
    Ok(options)
}
