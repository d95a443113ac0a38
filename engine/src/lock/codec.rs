//! A lock as bytes: what RDB files, DUMP and the digest see.
//!
//! Version 1: the version, the flags (bit 0: the queue was not empty), the number of holders, each holder (token,
//! deadline, hold count, limit, owner), the number of tickets, each ticket (number, claim, limit, owner). Numbers are
//! LEB128, an owner is its length and its bytes. Holders stand in the order of their owners, tickets in the order of
//! their numbers.
//!
//! Version 2 has the permits after each limit. Only a lock with a hold or a ticket of several permits is written in it.

use super::change::{some_permits, Change};
use super::{Hold, Lock};
use crate::types::{Arrival, ClientId, Limit, Permits, Share, Token, WallMs, MAX_OWNER, ONE};

/// The version of a value in which each hold and ticket has one permit. Every release of the module reads it.
const PLAIN: u8 = 1;

/// The latest version: of a value where one has several permits. This module reads every version from 1 to this one.
pub const VERSION: u8 = 2;

/// Encodes a lock.
pub fn encode(lock: &Lock) -> Vec<u8> {
    let version = version(lock);
    let mut out = vec![version, u8::from(lock.watched())];
    let share = |out: &mut Vec<u8>, limit: Limit, permits: Permits| {
        write_number(out, u64::from(limit.to_wire()));
        if version > PLAIN {
            write_number(out, u64::from(permits.get()));
        }
    };
    write_number(&mut out, lock.holders() as u64);
    // A primary and a replica may reach the same state in different ways, and must agree on its bytes.
    let mut holds: Vec<Hold> = lock.holds().collect();
    holds.sort_unstable_by_key(|hold| hold.owner);
    for hold in holds {
        write_number(&mut out, hold.token.0);
        write_number(&mut out, hold.deadline.0);
        write_number(&mut out, u64::from(hold.holds));
        share(&mut out, hold.limit, hold.permits);
        write_owner(&mut out, hold.owner);
    }
    write_number(&mut out, lock.tickets().count() as u64);
    for (at, ticket) in lock.tickets() {
        write_number(&mut out, at.0);
        write_number(&mut out, ticket.claim);
        share(&mut out, ticket.share.limit, ticket.share.permits);
        write_owner(&mut out, &ticket.owner);
    }
    out
}

/// Decodes a lock; none for bytes that `encode` does not write. It checks the form only: the holders may break their limits, or share
/// a token. RESTORE lets any user bring bytes here, so no count is trusted before its bytes are read.
pub fn decode(bytes: &[u8]) -> Option<Lock> {
    let mut rest = bytes;
    let (version_read, flags) = (read_byte(&mut rest)?, read_byte(&mut rest)?);
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
        let sound = Token::may_be(token) && holds > 0 && before.is_none_or(|before| before < owner);
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
        if at <= last || !Token::may_be(at) {
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

/// Returns the version of a value if this module is too old to read it; else none, also for bytes that are no value.
pub fn later(bytes: &[u8]) -> Option<u8> {
    bytes.first().copied().filter(|version| *version > VERSION)
}

fn write_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_owner(out: &mut Vec<u8>, owner: &[u8]) {
    write_number(out, owner.len() as u64);
    out.extend_from_slice(owner);
}

fn read_byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    Some(*first)
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let next = read_byte(rest)?;
        value |= u64::from(next & 0x7f) << shift;
        if next < 0x80 {
            // A number has one form: its last byte is not 0, unless the number is.
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
