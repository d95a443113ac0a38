//! Reads a command's words as the table says, and names what is wrong with one.

use crate::error::{shown, Error};
use crate::number::integer;
use crate::table::{self, Arg, Args, Kind, Spec, Verb};
use dlock_engine::{Millis, Policy, Token, MAX_OWNER};

/// Reads all words of a command: the positional arguments, then the options, in any order and any case, each at most once.
///
/// Errors name the argument and what it must be.
#[inline(always)]
pub fn read<'a>(
    spec: &'static Spec,
    words: &'a [&'a [u8]],
    policy: &Policy,
) -> Result<Args<'a>, Error> {
    let mut given = Args::default();
    let mut reader = Reader {
        command: spec.name,
        policy,
        rest: words,
        given: &mut given,
    };
    let mut args = spec.args;
    while let [arg, rest @ ..] = args {
        if arg.is_option() {
            break;
        }
        reader.positional(arg)?;
        args = rest;
    }
    while let Some(word) = reader.next() {
        reader.option(spec, args, word)?;
    }
    for option in args {
        if !option.optional && !option.is_given(reader.given) {
            return Err(Error::Arity(spec.name));
        }
    }
    Ok(given)
}

/// The arguments of most requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainArgs<'a> {
    /// The lock's key.
    pub key: &'a [u8],
    /// An owner.
    pub owner: &'a [u8],
    /// A lease.
    pub lease: Option<Millis>,
    /// `IN session`, which only an acquire may have.
    pub session: Option<&'a [u8]>,
    /// `BLOCK ms` behind that.
    pub block: Option<Millis>,
    /// `TOKEN t`, which only a release may have.
    pub token: Option<u64>,
}

/// Reads the words of such a request, in the order in which clients send them, without the table, which would take as long as the rest
/// of an uncontended command. None for any other words, and if anything is wrong with these: `read` says what.
#[inline(always)]
pub fn plain<'a>(verb: Verb, words: &[&'a [u8]], policy: &Policy) -> Option<PlainArgs<'a>> {
    let (key, owner, options) = match *words {
        [key, owner, ref options @ ..] => (key, owner, options),
        _ => return None,
    };
    let mut plain = PlainArgs {
        key,
        owner,
        lease: None,
        session: None,
        block: None,
        token: None,
    };
    let sound = (1..=MAX_OWNER).contains(&owner.len());
    match (verb, options) {
        _ if !sound => return None,
        (_, []) => return Some(plain),
        (Verb::Release, [option, token]) if table::TOKEN.is_named(option) => {
            plain.token = Some(within(token, 1, Token::END.0 - 1)?);
            return Some(plain);
        }
        (Verb::Release, _) => return None,
        _ => {}
    }
    let (lease, options) = options.split_first()?;
    plain.lease = Some(within(lease, 1, policy.max_lease_ms)?);
    let (session, block) = match options {
        [] => return Some(plain),
        [option, session] if table::IN.is_named(option) => (session, None),
        [option, session, block, ms]
            if table::IN.is_named(option) && table::BLOCK.is_named(block) =>
        {
            (session, Some(within(ms, 0, table::MAX_BLOCK_MS)?))
        }
        _ => return None,
    };
    (plain.session, plain.block) = (Some(*session), block);
    (1..=table::MAX_SESSION)
        .contains(&session.len())
        .then_some(plain)
}

fn within(word: &[u8], least: u64, most: u64) -> Option<u64> {
    integer(word).filter(|number| (least..=most).contains(number))
}

/// The words that are still to be read, and the arguments so far. Its functions are inlined into `read`, and that where it is
/// used: this saves a command with an option a tenth of the module's instructions.
struct Reader<'a, 'r> {
    command: &'static str,
    policy: &'r Policy,
    rest: &'a [&'a [u8]],
    given: &'r mut Args<'a>,
}

impl<'a> Reader<'a, '_> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn many(&mut self, count: usize) -> Result<&'a [&'a [u8]], Error> {
        let (words, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Error::Arity(self.command))?;
        self.rest = rest;
        Ok(words)
    }

    /// Reads a positional argument.
    #[inline(always)]
    fn positional(&mut self, arg: &Arg) -> Result<(), Error> {
        if arg.optional && !self.looks_like(arg) {
            return Ok(());
        }
        if self.rest.is_empty() && !arg.optional {
            return Err(Error::Arity(self.command));
        }
        self.value(arg)
    }

    /// Returns true if the next word looks like this optional positional argument: a number differs from an option by its first
    /// byte; no command takes options after any other.
    fn looks_like(&self, arg: &Arg) -> bool {
        let first = self.rest.first().map(|word| word.first());
        match (arg.kind, first) {
            (_, None) => false,
            (Kind::Integer(..), Some(c)) => {
                matches!(c, Some(b'0'..=b'9' | b'-' | b'+' | b'.'))
            }
            _ => true,
        }
    }

    /// Reads the option that begins with this word.
    #[inline(always)]
    fn option(&mut self, spec: &Spec, options: &[Arg], word: &[u8]) -> Result<(), Error> {
        if options.is_empty() {
            return Err(Error::Arity(self.command));
        }
        for option in options {
            if let Kind::OneOf(choices) = option.kind {
                for choice in choices {
                    if choice.is_named(word) {
                        return self.once(choices, choice);
                    }
                    if let Kind::With([first, others @ ..]) = choice.kind {
                        if first.is_named(word) {
                            return self.once(choices, first);
                        }
                        if let Some(other) = others.iter().find(|other| other.is_named(word)) {
                            return self.once(std::slice::from_ref(other), other);
                        }
                    }
                }
            } else if option.is_named(word) {
                return self.once(std::slice::from_ref(option), option);
            }
        }
        Err(self.unknown(spec, word))
    }

    /// Returns the error for a word that begins no option. It may be an option's former word, or a number that should have come
    /// earlier.
    #[cold]
    fn unknown(&mut self, spec: &Spec, word: &[u8]) -> Error {
        for renamed in &table::RENAMED {
            let is_known = spec.args.iter().any(|arg| arg.token == Some(renamed.now));
            if is_known && word.eq_ignore_ascii_case(renamed.before.as_bytes()) {
                return Error::Renamed(renamed.before, renamed.now, renamed.since);
            }
        }
        let mut before = spec.name;
        for arg in spec.args {
            let left_out = arg.optional && !arg.is_option() && !arg.is_given(self.given);
            if left_out && integer(word).is_some() && matches!(arg.kind, Kind::Integer(..)) {
                return Error::Misplaced(shown(word), arg.name, before);
            }
            before = arg.name;
        }
        Error::UnknownOption(shown(word))
    }

    /// Reads an option's value, if neither it nor another that excludes it has been read before.
    #[inline(always)]
    fn once(&mut self, exclusive: &[Arg], option: &Arg) -> Result<(), Error> {
        for before in exclusive {
            if before.is_given(self.given) {
                return Err(Error::Conflict(before.called(), option.called()));
            }
        }
        self.value(option)
    }

    /// Reads one of the arguments behind a word.
    #[inline(never)]
    fn part(&mut self, arg: &Arg) -> Result<(), Error> {
        let Kind::Integer(range, field) = arg.kind else {
            return Err(wrong(arg, self.policy));
        };
        let (least, most) = range.bounds(self.policy);
        *field(self.given) = self.next().and_then(|word| within(word, least, most));
        match field(self.given) {
            Some(_) => Ok(()),
            None => Err(wrong(arg, self.policy)),
        }
    }

    /// Reads an argument's value.
    #[inline(always)]
    fn value(&mut self, arg: &Arg) -> Result<(), Error> {
        let right = match arg.kind {
            Kind::Key => {
                self.given.keys = self.many(1)?;
                true
            }
            Kind::Keys => {
                // No command has more keys than its `numkeys` may say.
                self.given.keys = self.many(self.given.numkeys.unwrap_or(0) as usize)?;
                all_differ(self.given.keys)
            }
            Kind::Text(length, field) => {
                let text = self.next().filter(|text| length.fits(text));
                *field(self.given) = text;
                text.is_some()
            }
            Kind::Integer(range, field) => {
                let (least, most) = range.bounds(self.policy);
                let word = self.next();
                let number = word.and_then(|word| within(word, least, most));
                *field(self.given) = number;
                let no_integer = || word.is_some_and(|word| integer(word).is_none());
                if number.is_none() && arg.is_token() && no_integer() {
                    return Err(rounded(arg, self.policy));
                }
                number.is_some()
            }
            Kind::Flag(field) => {
                *field(self.given) = true;
                true
            }
            Kind::Word => self.next().is_some(),
            Kind::Words => {
                self.rest = &[];
                true
            }
            Kind::All(args) => {
                for arg in args {
                    self.part(arg)?;
                }
                true
            }
            // Their parts are read in their place.
            Kind::OneOf(_) | Kind::With(_) => true,
        };
        if right {
            Ok(())
        } else {
            Err(wrong(arg, self.policy))
        }
    }
}

#[cold]
fn wrong(arg: &Arg, policy: &Policy) -> Error {
    Error::Argument(arg.called(), arg.must(policy).unwrap_or_default())
}

/// Returns the error for a token that is no integer.
#[cold]
fn rounded(arg: &Arg, policy: &Policy) -> Error {
    let must = arg.must(policy).unwrap_or_default();
    Error::Argument(arg.called(), must + ": send all digits")
}

fn all_differ(keys: &[&[u8]]) -> bool {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair.first() != pair.last())
}

/// Checks that none of these options is given, since `other` excludes them.
pub(crate) fn check_none<const N: usize>(
    options: [(bool, &'static str); N],
    other: &'static str,
) -> Result<(), Error> {
    match options.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::Conflict(option, other)),
        None => Ok(()),
    }
}
