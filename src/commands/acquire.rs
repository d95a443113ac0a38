//! `DLOCK.ACQUIRE` and `DLOCK.FAIRACQUIRE`, and the options that `DLOCK.MACQUIRE` shares with them.

use super::args::{is, once, sharing, unknown, Args};
use super::{Call, Reply};
use crate::engine::{Answer, Ask, Keyspace, Limit, Millis, NameRef, Wait};
use crate::error::{escaped, Error};

/// Which command of the family is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `DLOCK.ACQUIRE`
    Plain,
    /// `DLOCK.FAIRACQUIRE`
    Fair,
    /// `DLOCK.MACQUIRE`
    Many,
}

/// What the words after key, owner and lease say.
#[derive(Debug, Default)]
pub struct Options<'a> {
    block: Option<Millis>,
    holds: Option<u32>,
    claim: Option<Millis>,
    limit: Option<Limit>,
    notify: Option<&'a [u8]>,
    session: Option<()>,
}

/// The longest wait that may be asked for: a century. Beyond, sums with the clock would have to be watched.
const MAX_BLOCK_MS: u64 = 3_155_760_000_000;

/// The longest channel name, in bytes.
const MAX_CHANNEL: usize = 1024;

/// Takes a lock: `key owner [lease-ms] [BLOCK ms] [NOTIFY channel] [HOLDS n] [SHARED | LIMIT n] [SESSION]`, in the fair
/// family also `[CLAIM ms]`.
#[inline(never)]
pub fn run<K: Keyspace>(
    call: &mut Call<K>,
    args: &mut Args,
    family: Family,
) -> Result<Reply, Error> {
    let name = call.name(args)?;
    let owner = args.owner()?;
    if owner == b"*" {
        return run_unnamed(call, args, family, name);
    }
    let lease = call.lease(args)?;
    // Most requests have no options: they do not pay for the reading of them.
    let ask = match args.is_empty() {
        true => Options::default().ask(call, owner, lease, family)?,
        false => read_ask(call, args, owner, lease, family)?,
    };
    request(call, name, &ask, None)
}

/// The same for an owner that the server is to name.
#[cold]
fn run_unnamed<K: Keyspace>(
    call: &mut Call<K>,
    args: &mut Args,
    family: Family,
    name: NameRef,
) -> Result<Reply, Error> {
    let lease = call.lease(args)?;
    let options = Options::read(call, args, family)?;
    options.check_unnamed()?;
    let owner = call.caller.fresh_owner();
    let ask = options.ask(call, owner.as_bytes(), lease, family)?;
    request(call, name, &ask, Some(&owner))
}

#[inline(never)]
fn read_ask<'a, K: Keyspace>(
    call: &Call<K>,
    args: &mut Args<'a>,
    owner: &'a [u8],
    lease: Millis,
    family: Family,
) -> Result<Ask<'a>, Error> {
    Options::read(call, args, family)?.ask(call, owner, lease, family)
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
        Answer::Granted(grant) => Ok(Reply::Grant(grant.token, grant.holds, named())),
        Answer::Null => Ok(Reply::NullArray),
        Answer::Waiting(id) if ask.channel.is_some() => Ok(Reply::Array(vec![
            Reply::Integer(0),
            Reply::Integer(call.engine.rank(id) as u64),
        ])),
        Answer::Waiting(id) => Ok(Reply::Wait(id, named())),
    }
}

impl<'a> Options<'a> {
    /// Reads what is left of the words.
    pub fn read<K: Keyspace>(
        call: &Call<K>,
        args: &mut Args<'a>,
        family: Family,
    ) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        while let Some(word) = args.next() {
            if is(word, "BLOCK") {
                let ms = args.integer("BLOCK", 0..=MAX_BLOCK_MS)?;
                once(&mut options.block, "BLOCK", ms)?;
            } else if is(word, "HOLDS") {
                let holds = args.integer("HOLDS", 1..=u64::from(u32::MAX))?;
                once(&mut options.holds, "HOLDS", holds as u32)?;
            } else if family == Family::Fair && is(word, "CLAIM") {
                let ms = args.integer("CLAIM", 1..=call.engine.policy.max_claim_ms)?;
                once(&mut options.claim, "CLAIM", ms)?;
            } else if family != Family::Many && is(word, "NOTIFY") {
                let channel = channel(args)?;
                once(&mut options.notify, "NOTIFY", channel)?;
            } else if is(word, "SESSION") {
                once(&mut options.session, "SESSION", ())?;
            } else if !sharing(word, args, &mut options.limit)? {
                return Err(unknown(word));
            }
        }
        Ok(options)
    }

    /// What is asked of the engine. Errors if the caller may not ask for it.
    #[inline]
    pub fn ask<K: Keyspace>(
        self,
        call: &Call<K>,
        owner: &'a [u8],
        lease: Millis,
        family: Family,
    ) -> Result<Ask<'a>, Error> {
        if self.session.is_some() || self.notify.is_some() {
            self.check_caller(call)?;
        }
        let waits = self.notify.is_some() || self.block.is_some() && call.caller.may_wait();
        Ok(Ask {
            owner,
            lease,
            wait: match self.block.filter(|ms| waits && *ms > 0) {
                Some(ms) => Wait::For(Some(ms)),
                None if waits => Wait::For(None),
                None => Wait::No,
            },
            holds: self.holds,
            limit: self.limit.unwrap_or(Limit::EXCLUSIVE),
            ticket: match (family, self.claim) {
                (Family::Plain | Family::Many, _) => None,
                (Family::Fair, Some(claim)) => Some(claim),
                (Family::Fair, None) if waits => Some(0),
                (Family::Fair, None) => Some(call.engine.policy.claim_window_ms),
            },
            session: self.session.is_some(),
            channel: self.notify,
            client: call.caller.client(),
        })
    }

    /// An owner that the server is to name has no holds yet, and a message would not tell it its name.
    #[cold]
    fn check_unnamed(&self) -> Result<(), Error> {
        let excluded = [
            (self.holds.is_some(), "HOLDS"),
            (self.notify.is_some(), "NOTIFY"),
        ];
        match excluded.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(Error::Conflict(option, "owner *")),
            None => Ok(()),
        }
    }

    /// What belongs to a connection needs one, and who has the module publish must be allowed to.
    #[cold]
    fn check_caller<K: Keyspace>(&self, call: &Call<K>) -> Result<(), Error> {
        if !call.caller.own_connection() {
            let option = if self.session.is_some() {
                "SESSION"
            } else {
                "NOTIFY"
            };
            return Err(Error::NoConnection(option));
        }
        match self.notify.filter(|name| !call.caller.may_publish(name)) {
            Some(channel) => Err(Error::NoChannel(escaped(channel, 64))),
            None => Ok(()),
        }
    }
}

fn channel<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    let channel = args.next().unwrap_or_default();
    if channel.is_empty() || channel.len() > MAX_CHANNEL {
        return Err(Error::Argument(
            "NOTIFY",
            format!("a channel of 1 to {MAX_CHANNEL} bytes"),
        ));
    }
    Ok(channel)
}
