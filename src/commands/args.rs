//! The argument cursor: reads a command's words one after the other, and names what is wrong with one.

use crate::engine::{Limit, MAX_LIMIT, MAX_OWNER};
use crate::error::{escaped, Error};
use std::ops::RangeInclusive;

/// The most keys that one command may name.
pub const MAX_KEYS: usize = 1024;

/// The words of a command that are still to be read.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    command: &'static str,
    rest: &'a [&'a [u8]],
}

impl<'a> Args<'a> {
    /// The words after the command's own name.
    pub fn new(command: &'static str, rest: &'a [&'a [u8]]) -> Args<'a> {
        Args { command, rest }
    }

    /// The next word, if there is one.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The next word. Errors with the server's arity error if there is none.
    pub fn word(&mut self) -> Result<&'a [u8], Error> {
        // Not by `ok_or`: an error would be made, and dropped, for every word that is there.
        match self.next() {
            Some(word) => Ok(word),
            None => Err(missing(self.command)),
        }
    }

    /// The next word as an owner's name: 1 to 1,024 bytes of any kind.
    pub fn owner(&mut self) -> Result<&'a [u8], Error> {
        let owner = self.word()?;
        if owner.is_empty() || owner.len() > MAX_OWNER {
            return Err(no_owner());
        }
        Ok(owner)
    }

    /// The next word as a decimal integer within `range`; `name` stands in the error.
    pub fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, Error> {
        let (least, most) = range.into_inner();
        match self.next().and_then(integer) {
            Some(value) if least <= value && value <= most => Ok(value),
            _ => Err(no_integer(name, least, most)),
        }
    }

    /// A count and as many keys: `numkeys key [key …]`. No key may be named twice.
    pub fn keys(&mut self) -> Result<&'a [&'a [u8]], Error> {
        let count = self.integer("numkeys", 1..=MAX_KEYS as u64)? as usize;
        let (keys, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Error::Arity(self.command))?;
        self.rest = rest;
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Argument("key", "named only once".to_string()));
        }
        Ok(keys)
    }

    /// Whether the next word is meant as a number: so an optional number is told from an option.
    pub fn at_number(&self) -> bool {
        self.rest
            .first()
            .and_then(|word| word.first())
            .is_some_and(|c| matches!(c, b'0'..=b'9' | b'-' | b'+' | b'.'))
    }

    /// Whether no word is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Errors with the server's arity error if words are left.
    pub fn end(self) -> Result<(), Error> {
        self.rest
            .is_empty()
            .then_some(())
            .ok_or(Error::Arity(self.command))
    }
}

/// A count of keys as it stands before them; 0 if it is none.
pub fn count(word: &[u8]) -> usize {
    integer(word)
        .filter(|count| *count <= MAX_KEYS as u64)
        .unwrap_or(0) as usize
}

#[cold]
fn missing(command: &'static str) -> Error {
    Error::Arity(command)
}

#[cold]
fn no_owner() -> Error {
    Error::Argument("owner", format!("1 to {MAX_OWNER} bytes long"))
}

#[cold]
fn no_integer(name: &'static str, least: u64, most: u64) -> Error {
    Error::Argument(name, format!("an integer from {least} to {most}"))
}

/// Reads `SHARED` or `LIMIT n` if the word begins one. At most one of them may be given.
pub fn sharing(word: &[u8], args: &mut Args, limit: &mut Option<Limit>) -> Result<bool, Error> {
    let given = if is(word, "SHARED") {
        Limit::SHARED
    } else if is(word, "LIMIT") {
        let n = args.integer("LIMIT", 1..=MAX_LIMIT)?;
        Limit::from_wire(n as u32).unwrap_or(Limit::EXCLUSIVE)
    } else {
        return Ok(false);
    };
    let kind = |limit: Limit| {
        if limit == Limit::SHARED {
            "SHARED"
        } else {
            "LIMIT"
        }
    };
    match limit.replace(given) {
        None => Ok(true),
        Some(before) => Err(Error::Conflict(kind(before), kind(given))),
    }
}

/// Whether a word is this option, in any case.
pub fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// The error for a word that is no option of the command.
#[cold]
pub fn unknown(word: &[u8]) -> Error {
    Error::UnknownOption(escaped(word, 64))
}

/// Sets an option that may be given once.
///
/// Errors if it was set before.
pub fn once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Conflict(name, name)),
    }
}

/// A decimal integer as the server itself reads them: no plus, no leading zero, no blanks. No number that a command takes is
/// negative, so one with a minus is none.
fn integer(word: &[u8]) -> Option<u64> {
    // Nineteen digits cannot overflow 64 bits, and more are no number that is wanted.
    if word.is_empty() || word.len() > 19 || (word.len() > 1 && word[0] == b'0') {
        return None;
    }
    let mut sum = 0_u64;
    for digit in word {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum * 10 + u64::from(digit);
    }
    Some(sum)
}
