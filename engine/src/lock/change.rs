//! Changes of durable state, and their form for replicas and the AOF.
//!
//! A change states the result, never the request: who, which token, which absolute deadline. Applying it needs no
//! clock and gives the same state everywhere. On the wire the changes of one lock in one event are one line of text:
//!
//! ```text
//! 1 h1763716432123456 1763716462123 1 1 7:owner-1 w1
//! │ │                 │             │ │ └ owner: its length, a colon, its bytes
//! │ │                 │             │ └ limit (0: unbounded)
//! │ │                 │             └ hold count
//! │ │                 └ deadline, unix milliseconds
//! │ └ h: this owner's hold is now exactly this, under this token
//! └ version of the format
//! ```
//! A hold of several permits is `H`, and says how many between its limit and its owner; a ticket that asks for several is `T`.
//! Format 2 adds these two letters to those of format 1, and only an effect that needs them is written in it.
//!
//! The others: `r|x|f|s|d<token> [<owner>]` the hold is gone (released, expired, forced, closed, removed; the only
//! holder is left unnamed), `t<number> <claim> <limit> <owner>` a ticket, `u<number>` that ticket is gone, `w1`/`w0` the
//! queue is not empty (is empty). A line without a change only sets the key's TTL again.
//!
//! The usual release, of the only hold and nothing else, goes without saying: no line at all means it. The token is that
//! of the hold, and an argument less saves the server a tenth of its work on the command.

use super::{Hold, Lock};
use crate::types::{
    Arrival, ClientId, Limit, Millis, Permits, Share, Token, WallMs, MAX_NUMBER, MAX_OWNER, ONE,
};

/// Why a hold is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Released by its owner.
    Released,
    /// Its lease ran out.
    Expired,
    /// Ended by `DLOCK.FORCERELEASE`.
    Forced,
    /// The connection that it was tied to was closed.
    Closed,
    /// The key was removed or overwritten.
    Removed,
}

impl End {
    const ALL: [End; 5] = [
        End::Released,
        End::Expired,
        End::Forced,
        End::Closed,
        End::Removed,
    ];

    /// Returns its letter in an effect, and its word in unlock messages and events.
    fn names(self) -> (u8, &'static str) {
        match self {
            End::Released => (b'r', "released"),
            End::Expired => (b'x', "expired"),
            End::Forced => (b'f', "forced"),
            End::Closed => (b's', "closed"),
            End::Removed => (b'd', "removed"),
        }
    }

    fn of(letter: u8) -> Option<End> {
        End::ALL.into_iter().find(|end| end.names().0 == letter)
    }

    /// Returns its word in unlock messages and events.
    pub fn word(self) -> &'static str {
        self.names().1
    }
}

/// One change of durable state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// This owner's hold is now exactly this.
    Hold(Hold<'a>),
    /// This owner holds no longer.
    Unhold {
        /// Whose hold it was; empty: the only holder's.
        owner: &'a [u8],
        /// Its token.
        token: Token,
        /// Why it ended.
        end: End,
    },
    /// A ticket stands at this number.
    Ticket {
        /// Its place in the order of arrival.
        number: Arrival,
        /// Whose it is.
        owner: &'a [u8],
        /// How much is asked for.
        share: Share,
        /// How long it is kept while no connection waits on it.
        claim: Millis,
    },
    /// No ticket stands at this number.
    Unticket {
        /// Its place in the order of arrival.
        number: Arrival,
    },
    /// Whether anybody is queued: then the key has no TTL, and the module watches the leases.
    Watch(bool),
}

/// The format of an effect without several permits, which every version of the module reads.
const PLAIN: u8 = b'1';

/// The format of one that has them.
const WITH_PERMITS: u8 = b'2';

/// The latest format that this version reads.
pub const FORMAT: u64 = 2;

impl Change<'_> {
    fn has_several_permits(&self) -> bool {
        match self {
            Change::Hold(hold) => hold.permits > ONE,
            Change::Ticket { share, .. } => share.permits > ONE,
            _ => false,
        }
    }

    /// Appends this change to an effect, which may be empty.
    pub fn write(&self, effect: &mut Vec<u8>) {
        begin(effect);
        effect.push(b' ');
        match self {
            Change::Hold(hold) => {
                letter(effect, hold.permits, [b'h', b'H']);
                number(effect, hold.token.0);
                field(effect, hold.deadline.0);
                field(effect, u64::from(hold.holds));
                field(effect, u64::from(hold.limit.to_wire()));
                several(effect, hold.permits);
                bytes(effect, hold.owner);
            }
            Change::Unhold { owner, token, end } => {
                effect.push(end.names().0);
                number(effect, token.0);
                if !owner.is_empty() {
                    bytes(effect, owner);
                }
            }
            Change::Ticket {
                number: at,
                owner,
                share,
                claim,
            } => {
                letter(effect, share.permits, [b't', b'T']);
                number(effect, at.0);
                field(effect, *claim);
                field(effect, u64::from(share.limit.to_wire()));
                several(effect, share.permits);
                bytes(effect, owner);
            }
            Change::Unticket { number: at } => {
                effect.push(b'u');
                number(effect, at.0);
            }
            Change::Watch(watched) => {
                effect.extend_from_slice(if *watched { b"w1" } else { b"w0" })
            }
        }
    }
}

/// Returns true if an effect says no more than that the only hold was released. Then an empty one stands for it.
pub fn is_usual_release(effect: &[u8]) -> bool {
    let token = effect.strip_prefix(b"1 r");
    token.is_some_and(|token| !token.contains(&b' '))
}

/// Returns the effect that an empty one stands for: the release of the only hold; none if the lock does not have exactly one.
pub fn usual_release(lock: &Lock) -> Option<Vec<u8>> {
    let hold = lock.last().filter(|_| lock.holders() == 1)?;
    let mut effect = Vec::new();
    Change::Unhold {
        owner: &[],
        token: hold.token,
        end: End::Released,
    }
    .write(&mut effect);
    Some(effect)
}

/// Begins an effect that may stay without a change.
pub fn begin(effect: &mut Vec<u8>) {
    if effect.is_empty() {
        // As much as the longest usual effect takes, at once.
        effect.reserve(128);
        effect.push(PLAIN);
    }
}

/// Returns the effect that makes this lock from nothing, for an AOF rewrite.
pub fn rebuild(lock: &Lock) -> Vec<u8> {
    let mut effect = Vec::new();
    begin(&mut effect);
    if lock.watched() {
        Change::Watch(true).write(&mut effect);
    }
    for hold in lock.holds() {
        Change::Hold(hold).write(&mut effect);
    }
    for (number, ticket) in lock.tickets() {
        Change::Ticket {
            number,
            owner: &ticket.owner,
            share: ticket.share,
            claim: ticket.claim,
        }
        .write(&mut effect);
    }
    effect
}

/// Reads an effect that is not empty; none if any of it is not well formed, or its format is not the one that its changes need.
pub fn read(effect: &[u8]) -> Option<Vec<Change<'_>>> {
    let (format, mut rest) = effect.split_first()?;
    let mut changes = Vec::new();
    while !rest.is_empty() {
        changes.push(change(&mut rest)?);
    }
    let needed = if changes.iter().any(Change::has_several_permits) {
        WITH_PERMITS
    } else {
        PLAIN
    };
    (*format == needed).then_some(changes)
}

/// Returns the format of an effect if it is later than any that this version reads.
pub fn later(effect: &[u8]) -> Option<u64> {
    let mut rest = effect;
    let version = read_number(&mut rest)?;
    let ends = rest.first().is_none_or(|byte| *byte == b' ');
    (ends && version > FORMAT).then_some(version)
}

fn change<'a>(rest: &mut &'a [u8]) -> Option<Change<'a>> {
    take(rest, b' ')?;
    let (letter, tail) = rest.split_first()?;
    *rest = tail;
    let first = read_number(rest)?;
    match letter {
        b'w' if first <= 1 => Some(Change::Watch(first == 1)),
        b'u' => Some(Change::Unticket {
            number: Arrival(first),
        }),
        b'h' | b'H' => {
            let (deadline, holds) = (read_field(rest)?, u32::try_from(read_field(rest)?).ok()?);
            let Share { limit, permits } = read_share(rest, *letter)?;
            let owner = read_bytes(rest)?;
            let sound = Token::may_be(first) && holds > 0;
            sound.then_some(Change::Hold(Hold {
                owner,
                token: Token(first),
                deadline: WallMs(deadline),
                holds,
                limit,
                permits,
                client: ClientId::NONE,
                fresh: false,
            }))
        }
        b't' | b'T' => {
            let claim = read_field(rest)?;
            let share = read_share(rest, *letter)?;
            let owner = read_bytes(rest)?;
            Token::may_be(first).then_some(Change::Ticket {
                number: Arrival(first),
                owner,
                share,
                claim,
            })
        }
        letter => Some(Change::Unhold {
            token: Token(first),
            end: End::of(*letter)?,
            owner: match **rest {
                // A change begins with a letter.
                [b' ', b'0'..=b'9', ..] => read_bytes(rest)?,
                _ => &[],
            },
        }),
    }
}

/// Reads the limit and the permits of a change with this letter. An upper-case letter says that several permits follow.
fn read_share(rest: &mut &[u8], letter: u8) -> Option<Share> {
    let limit = Limit::from_wire(u32::try_from(read_field(rest)?).ok()?)?;
    let permits = if letter.is_ascii_uppercase() {
        let permits = some_permits(u32::try_from(read_field(rest)?).ok()?, limit);
        permits.filter(|permits| *permits > ONE)?
    } else {
        ONE
    };
    Some(Share { limit, permits })
}

/// Returns this many permits; none if there can be no such hold, and no request for one.
pub(super) fn some_permits(permits: u32, limit: Limit) -> Option<Permits> {
    Permits::new(permits).filter(|permits| limit.allows(u64::from(permits.get())))
}

/// Begins a change with the first of the letters; with the second if it has several permits, which also raises the effect's format.
fn letter(effect: &mut Vec<u8>, permits: Permits, [one, several]: [u8; 2]) {
    if permits == ONE {
        return effect.push(one);
    }
    if let Some(format) = effect.first_mut() {
        *format = WITH_PERMITS;
    }
    effect.push(several);
}

/// Appends the number of permits, if they are several.
fn several(effect: &mut Vec<u8>, permits: Permits) {
    if permits != ONE {
        field(effect, u64::from(permits.get()));
    }
}

fn number(effect: &mut Vec<u8>, value: u64) {
    match u8::try_from(value) {
        // As hold counts and limits are.
        Ok(digit @ 0..=9) => effect.push(b'0' + digit),
        _ => effect.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

fn field(effect: &mut Vec<u8>, value: u64) {
    effect.push(b' ');
    number(effect, value);
}

fn bytes(effect: &mut Vec<u8>, value: &[u8]) {
    field(effect, value.len() as u64);
    effect.push(b':');
    effect.extend_from_slice(value);
}

fn take(rest: &mut &[u8], byte: u8) -> Option<()> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    (*first == byte).then_some(())
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (text, tail) = rest.split_at_checked(digits)?;
    *rest = tail;
    if text.is_empty() {
        return None;
    }
    let value = text.iter().try_fold(0_u64, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    // The bytes of a value (see `codec`) have no more room.
    (value <= MAX_NUMBER).then_some(value)
}

fn read_field(rest: &mut &[u8]) -> Option<u64> {
    take(rest, b' ')?;
    read_number(rest)
}

fn read_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(read_field(rest)?).ok()?;
    take(rest, b':')?;
    let (value, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    (1..=MAX_OWNER).contains(&len).then_some(value)
}
