//! A lock as bytes: what RDB files, DUMP and the digest see.
//!
//! Version 1: the version, the flags (bit 0: the queue was not empty), the number of holders, each holder (token,
//! deadline, hold count, limit, owner), the number of tickets, each ticket (number, claim, limit, owner). Numbers are
//! LEB128, an owner is its length and its bytes. Holders stand in the order of their owners, tickets in the order of
//! their numbers.
//!
//! Version 2 has the permits after each limit. Only a lock with a hold or a ticket of several permits is written in it.

use super::change::{is_token, some_permits, Change};
use super::{Hold, Lock};
use crate::types::{Arrival, ClientId, Limit, Permits, Share, Token, WallMs, MAX_OWNER, ONE};

/// The version of a value without several permits, which every version of the module reads.
const PLAIN: u8 = 1;

/// The latest version: of a value that has them. Every version up to it is read.
pub const VERSION: u8 = 2;

/// Encodes a lock.
pub fn encode(lock: &Lock) -> Vec<u8> {
    let version = version(lock);
    let mut out = vec![version, u8::from(lock.watched())];
    let share = |out: &mut Vec<u8>, limit: Limit, permits: Permits| {
        number(out, u64::from(limit.to_wire()));
        if version > PLAIN {
            number(out, u64::from(permits.get()));
        }
    };
    number(&mut out, lock.holders() as u64);
    // A primary and a replica may reach the same state in different ways, and must agree on its bytes.
    let mut holds: Vec<Hold> = lock.holds().collect();
    holds.sort_unstable_by_key(|hold| hold.owner);
    for hold in holds {
        number(&mut out, hold.token.0);
        number(&mut out, hold.deadline.0);
        number(&mut out, u64::from(hold.holds));
        share(&mut out, hold.limit, hold.permits);
        owner(&mut out, hold.owner);
    }
    number(&mut out, lock.tickets().count() as u64);
    for (at, ticket) in lock.tickets() {
        number(&mut out, at.0);
        number(&mut out, ticket.claim);
        share(&mut out, ticket.share.limit, ticket.share.permits);
        owner(&mut out, &ticket.owner);
    }
    out
}

/// Decodes a lock; none for bytes that `encode` could not have written. RESTORE lets any user bring bytes here, so no count is
/// trusted before its bytes are read.
pub fn decode(bytes: &[u8]) -> Option<Lock> {
    let mut rest = bytes;
    let (version_read, flags) = (byte(&mut rest)?, byte(&mut rest)?);
    if !(PLAIN..=VERSION).contains(&version_read) || flags > 1 {
        return None;
    }
    let share = |rest: &mut &[u8]| {
        let limit = Limit::from_wire(read_small(rest)?)?;
        let permits = match version_read {
            PLAIN => ONE,
            _ => some_permits(read_small(rest)?, limit)?,
        };
        Some(Share { limit, permits })
    };
    let mut lock = Lock::default();
    lock.apply(&Change::Watch(flags == 1));
    let mut before: Option<&[u8]> = None;
    for _ in 0..read_number(&mut rest)? {
        let (token, deadline) = (read_number(&mut rest)?, read_number(&mut rest)?);
        let (holds, share) = (read_small(&mut rest)?, share(&mut rest)?);
        let owner = read_owner(&mut rest)?;
        let sound = is_token(token) && holds > 0 && before.is_none_or(|before| before < owner);
        if !sound {
            return None;
        }
        before = Some(owner);
        lock.apply(&Change::Hold(Hold {
            owner,
            token: Token(token),
            deadline: WallMs(deadline),
            holds,
            limit: share.limit,
            permits: share.permits,
            client: ClientId::NONE,
            fresh: false,
        }));
    }
    let mut last = 0;
    for _ in 0..read_number(&mut rest)? {
        let (at, claim) = (read_number(&mut rest)?, read_number(&mut rest)?);
        let (share, owner) = (share(&mut rest)?, read_owner(&mut rest)?);
        if at <= last || !is_token(at) {
            return None;
        }
        last = at;
        lock.apply(&Change::Ticket {
            number: Arrival(at),
            owner,
            share,
            claim,
        });
    }
    // A value has one form.
    let sound = rest.is_empty() && !lock.is_empty() && version(&lock) == version_read;
    sound.then_some(lock)
}

/// Returns the version that a lock is written in.
fn version(lock: &Lock) -> u8 {
    let several = lock.permits() > lock.holders() as u64
        || lock
            .tickets()
            .any(|(_, ticket)| ticket.share.permits != ONE);
    if several {
        VERSION
    } else {
        PLAIN
    }
}

/// Returns the version of a value if it is later than any that this version reads.
pub fn later(bytes: &[u8]) -> Option<u8> {
    bytes.first().copied().filter(|version| *version > VERSION)
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn owner(out: &mut Vec<u8>, owner: &[u8]) {
    number(out, owner.len() as u64);
    out.extend_from_slice(owner);
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    Some(*first)
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let next = byte(rest)?;
        value |= u64::from(next & 0x7f) << shift;
        if next < 0x80 {
            // A number has one form: no zeros ahead.
            return (next > 0 || shift == 0).then_some(value);
        }
    }
    None
}

fn read_small(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(read_number(rest)?).ok()
}

fn read_owner<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(read_number(rest)?).ok()?;
    let (owner, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    (1..=MAX_OWNER).contains(&len).then_some(owner)
}
