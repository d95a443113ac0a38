//! A lock as bytes: what RDB files, DUMP and the digest see.
//!
//! Version 1: the version, the flags (bit 0: somebody was queued), the number of holders, each holder (token,
//! deadline, hold count, limit, owner), the number of tickets, each ticket (number, claim, limit, owner). Numbers are
//! LEB128, an owner is its length and its bytes. Holders stand in the order of their owners, tickets in the order of
//! their numbers.

use super::change::{is_token, Change};
use super::{Hold, Lock};
use crate::types::{Arrival, ClientId, Limit, Token, WallMs, MAX_OWNER};

/// The version that is written. Every version up to it is read.
pub const VERSION: u8 = 1;

/// The lock's bytes.
pub fn encode(lock: &Lock) -> Vec<u8> {
    let mut out = vec![VERSION, u8::from(lock.watched())];
    number(&mut out, lock.holders() as u64);
    // However a primary and a replica came by the same state, they are to agree on its bytes.
    let mut holds: Vec<Hold> = lock.holds().collect();
    holds.sort_unstable_by_key(|hold| hold.owner);
    for hold in holds {
        number(&mut out, hold.token.0);
        number(&mut out, hold.deadline.0);
        number(&mut out, u64::from(hold.holds));
        number(&mut out, u64::from(hold.limit.to_wire()));
        owner(&mut out, hold.owner);
    }
    number(&mut out, lock.tickets().count() as u64);
    for (at, ticket) in lock.tickets() {
        number(&mut out, at.0);
        number(&mut out, ticket.claim);
        number(&mut out, u64::from(ticket.limit.to_wire()));
        owner(&mut out, &ticket.owner);
    }
    out
}

/// Reads what `encode` wrote. None for anything that it could not have written: RESTORE lets any user bring bytes
/// here, so counts are never believed before the bytes are seen.
pub fn decode(bytes: &[u8]) -> Option<Lock> {
    let mut rest = bytes;
    let (version, flags) = (byte(&mut rest)?, byte(&mut rest)?);
    if version != VERSION || flags > 1 {
        return None;
    }
    let mut lock = Lock::default();
    lock.apply(&Change::Watch(flags == 1));
    let mut before: Option<&[u8]> = None;
    for _ in 0..read_number(&mut rest)? {
        let (token, deadline) = (read_number(&mut rest)?, read_number(&mut rest)?);
        let (holds, limit) = (
            read_small(&mut rest)?,
            Limit::from_wire(read_small(&mut rest)?)?,
        );
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
            limit,
            client: ClientId::NONE,
            fresh: false,
        }));
    }
    let mut last = 0;
    for _ in 0..read_number(&mut rest)? {
        let (at, claim) = (read_number(&mut rest)?, read_number(&mut rest)?);
        let (limit, owner) = (
            Limit::from_wire(read_small(&mut rest)?)?,
            read_owner(&mut rest)?,
        );
        if at <= last || !is_token(at) {
            return None;
        }
        last = at;
        lock.apply(&Change::Ticket {
            number: Arrival(at),
            owner,
            limit,
            claim,
        });
    }
    (rest.is_empty() && !lock.is_empty()).then_some(lock)
}

/// The version of bytes that is later than any that is known here.
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
