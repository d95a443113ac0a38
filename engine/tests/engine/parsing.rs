//! The words of every command are read as the table says: each test covers all commands and all their arguments.

use crate::random::{for_seeds, Random};
use dlock_commands::error::Error;
use dlock_commands::table::{Arg, Args, Kind, Spec, Verb, COMMANDS};
use dlock_commands::words::args::{self, PlainArgs};
use dlock_engine::Policy;

/// Words as they are sent.
type Words = Vec<Vec<u8>>;

fn read<T>(
    spec: &'static Spec,
    words: &[Vec<u8>],
    see: impl FnOnce(Result<Args, Error>) -> T,
) -> T {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    see(args::read(spec, &words, &Policy::default()))
}

fn refusal(spec: &'static Spec, words: &[Vec<u8>]) -> Error {
    read(spec, words, |given| match given {
        Ok(given) => panic!("{} {}: read as {given:?}", spec.name, shown(words)),
        Err(error) => error,
    })
}

fn shown(words: &[Vec<u8>]) -> String {
    let escaped = words
        .iter()
        .map(|word| dlock_engine::refusal::escaped(word, 40));
    escaped.collect::<Vec<_>>().join(" ")
}

/// Returns the positional arguments, and the options in groups that exclude each other, mostly of one.
fn parts(spec: &Spec) -> (Vec<Arg>, Vec<Vec<Arg>>) {
    let (options, placed): (Vec<Arg>, Vec<Arg>) = spec.args.iter().partition(|arg| arg.is_option());
    let first = |choice: &Arg| match choice.kind {
        Kind::With(args) => args[0],
        _ => *choice,
    };
    let groups = |option: &Arg| match option.kind {
        Kind::OneOf(choices) => {
            let others = choices.iter().flat_map(|choice| match choice.kind {
                Kind::With(args) => &args[1..],
                _ => &[],
            });
            let others = others.map(|other| vec![*other]);
            let choices: Vec<Arg> = choices.iter().map(first).collect();
            [choices].into_iter().chain(others).collect()
        }
        _ => vec![vec![*option]],
    };
    (placed, options.iter().flat_map(groups).collect())
}

/// Returns the words of an argument with a valid value; the larger `size`, the larger a number.
fn right(arg: &Arg, size: u64) -> Words {
    let value = match arg.kind {
        Kind::Key | Kind::Word => vec![b"shop".to_vec()],
        Kind::Keys => vec![b"shop".to_vec(), b"yard".to_vec()],
        Kind::Words => vec![b"BLOCK".to_vec(), b"EPHEMERAL".to_vec()],
        // Letters are no number, so the word is not read as a lease.
        Kind::Text(length, _) => vec![b"x".repeat(length.least.max(length.most.min(9)))],
        Kind::Integer(..) if arg.name == "numkeys" => vec![b"2".to_vec()],
        Kind::Integer(range, _) => {
            let (least, most) = range.bounds(&Policy::default());
            vec![(least + size % (most - least + 1)).to_string().into_bytes()]
        }
        Kind::Flag(_) => vec![],
        Kind::All(args) => args.iter().flat_map(|arg| right(arg, size)).collect(),
        Kind::OneOf(_) | Kind::With(_) => unreachable!("its parts are taken one by one"),
    };
    let token = arg.token.map(|token| token.as_bytes().to_vec());
    token.into_iter().chain(value).collect()
}

/// Returns the words of all positional arguments.
fn placed(spec: &Spec) -> Words {
    let (placed, _) = parts(spec);
    placed.iter().flat_map(|arg| right(arg, 0)).collect()
}

/// Returns a value for each of these options, which do not exclude each other.
fn all(options: &[Arg]) -> Words {
    options.iter().flat_map(|arg| right(arg, 0)).collect()
}

#[test]
fn options_come_in_any_order_and_any_case() {
    for_seeds(200, |seed| {
        let mut random = Random::new(seed);
        for spec in COMMANDS {
            let (_, options) = parts(spec);
            let mut chosen: Vec<Arg> = options.iter().map(|one| *random.pick(one)).collect();
            let in_order = [placed(spec), all(&chosen)].concat();
            for at in (1..chosen.len()).rev() {
                chosen.swap(at, random.below(at as u64 + 1) as usize);
            }
            let mut words = placed(spec);
            for option in &chosen {
                let mut its = right(option, 0);
                for letter in &mut its[0] {
                    if random.below(2) == 0 {
                        letter.make_ascii_lowercase();
                    }
                }
                words.extend(its);
            }
            let expected = read(spec, &in_order, |given| {
                given.map(|given| format!("{given:?}"))
            });
            let got = read(spec, &words, |given| {
                given.map(|given| format!("{given:?}"))
            });
            if got != expected || got.is_err() {
                let text = shown(&words);
                return Err(format!("{} {text}: {got:?}, not {expected:?}", spec.name));
            }
            read(spec, &words, |given| {
                let mut given = given.unwrap_or_default();
                match chosen.iter().find(|option| !option.is_given(&mut given)) {
                    None => Ok(()),
                    Some(option) => Err(format!("{}: no {}", spec.name, option.called())),
                }
            })?;
        }
        Ok(())
    });
}

#[test]
fn an_option_is_given_once_and_without_those_it_excludes() {
    for spec in COMMANDS {
        let (_, options) = parts(spec);
        for (at, exclusive) in options.iter().enumerate() {
            let others: Vec<Arg> = options
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, one)| one[0])
                .collect();
            for first in exclusive {
                for second in exclusive {
                    let words = [
                        placed(spec),
                        right(first, 1),
                        all(&others),
                        right(second, 2),
                    ];
                    let must = Error::Conflict(first.called(), second.called());
                    assert_eq!(refusal(spec, &words.concat()), must, "{}", spec.name);
                }
            }
        }
    }
}

#[test]
fn a_wrong_value_is_called_by_its_name() {
    let policy = Policy::default();
    for spec in COMMANDS {
        let (places, options) = parts(spec);
        let options: Vec<Arg> = options.concat();
        for (at, arg) in places.iter().chain(&options).enumerate() {
            let wrong: Words = match arg.kind {
                Kind::Integer(range, _) => {
                    let (least, most) = range.bounds(&policy);
                    let over = (u128::from(most) + 1).to_string();
                    let under = (i128::from(least) - 1).to_string();
                    let words = [&over, &under, "1x", "-", "+1", "01", "1.0", "1\0"];
                    words.iter().map(|word| word.as_bytes().to_vec()).collect()
                }
                Kind::Text(length, _) => {
                    let short = length.least.checked_sub(1);
                    let long = length.most.checked_add(1);
                    let lengths = short.into_iter().chain(long);
                    lengths.map(|bytes| b"x".repeat(bytes)).collect()
                }
                _ => continue,
            };
            let before: Words = match arg.is_option() {
                true => placed(spec),
                false => places[..at].iter().flat_map(|arg| right(arg, 0)).collect(),
            };
            let after: Words = match arg.is_option() {
                true => Vec::new(),
                false => places[at + 1..]
                    .iter()
                    .flat_map(|arg| right(arg, 0))
                    .collect(),
            };
            let must = Error::Argument(arg.called(), arg.must(&policy).unwrap_or_default());
            for value in wrong {
                let token = arg.token.map(|token| token.as_bytes().to_vec());
                let digits = value.iter().all(u8::is_ascii_digit) && !value.starts_with(b"01");
                let must = match &must {
                    // One that is no integer may have been rounded.
                    Error::Argument(called, must) if arg.name == "token" && !digits => {
                        Error::Argument(called, format!("{must}: send all digits"))
                    }
                    must => must.clone(),
                };
                let own: Words = token.into_iter().chain([value]).collect();
                let words = [before.clone(), own, after.clone()].concat();
                assert_eq!(
                    refusal(spec, &words),
                    must,
                    "{} {}",
                    spec.name,
                    shown(&words)
                );
            }
            if let Some(token) = arg.token {
                let words = [before, vec![token.as_bytes().to_vec()]].concat();
                assert_eq!(
                    refusal(spec, &words),
                    must,
                    "{} {}",
                    spec.name,
                    shown(&words)
                );
            }
        }
    }
}

#[test]
fn a_word_that_no_option_begins_with_is_refused() {
    for spec in COMMANDS {
        let (places, options) = parts(spec);
        if places.iter().any(|arg| matches!(arg.kind, Kind::Words)) {
            continue;
        }
        let must = match options.is_empty() {
            true => Error::Arity(spec.name),
            false => Error::UnknownOption("BLOCKS".into()),
        };
        let words = [placed(spec), vec![b"BLOCKS".to_vec()]].concat();
        assert_eq!(refusal(spec, &words), must);
    }
}

#[test]
fn what_may_not_be_left_out_is_missed() {
    for spec in COMMANDS {
        let (places, _) = parts(spec);
        let needed: Vec<Arg> = places.iter().copied().filter(|arg| !arg.optional).collect();
        for count in 0..needed.len() {
            let words = all(&needed[..count]);
            assert_eq!(refusal(spec, &words), Error::Arity(spec.name));
        }
        // An option as well, where the command needs one.
        let needs = spec.args.iter().any(|arg| arg.is_option() && !arg.optional);
        let refused = read(spec, &all(&needed), |given| given.is_err());
        assert_eq!(refused, needs, "{}", spec.name);
    }
}

/// The fast path reads the words of most requests without the table: the result is equal, and it reads no other words.
#[test]
fn usual_words_are_read_alike() {
    let policy = Policy::default();
    let (longest, over) = (vec![b'x'; 1024], vec![b'x'; 1025]);
    let odd: [&[u8]; 16] = [
        b"",
        b"shop",
        b"*",
        b"0",
        b"1",
        b"01",
        b"-1",
        b"1x",
        b"+5",
        b".5",
        b"2592000000",
        b"2592000001",
        b"99999999999999999999",
        b"block",
        &longest,
        &over,
    ];
    let long_name = [b'x'; 129];
    let token_end = (1u64 << 53).to_string();
    let options: [&[&[u8]]; 20] = [
        &[],
        &[b"IN", b"s"],
        &[b"in", b"s"],
        &[b"IN"],
        &[b"IN", b""],
        &[b"IN", &long_name],
        &[b"IN", &long_name[1..]],
        &[b"IN", b"s", b"BLOCK", b"0"],
        &[b"In", b"s", b"Block", b"3155760000000"],
        &[b"IN", b"s", b"BLOCK", b"3155760000001"],
        &[b"IN", b"s", b"BLOCK"],
        &[b"IN", b"s", b"BLOC", b"1"],
        &[b"IN", b"s", b"SHARED"],
        &[b"TOKEN", b"1"],
        &[b"token", b"9007199254740991"],
        &[b"TOKEN", token_end.as_bytes()],
        &[b"TOKEN", b"0"],
        &[b"TOKEN", b"1e3"],
        &[b"AUTO", b"5"],
        &[b"HOLDS", b"1"],
    ];
    let mut usual_ones = [0; 3];
    for spec in COMMANDS {
        let verbs = [Verb::Acquire, Verb::FairAcquire, Verb::Release];
        let Some(at) = verbs.iter().position(|verb| *verb == spec.verb) else {
            continue;
        };
        let firsts = odd
            .iter()
            .flat_map(|one| odd.iter().map(move |other| (*one, *other)));
        for (first, second) in firsts {
            let thirds = odd.iter().map(|third| vec![first, second, *third]);
            let beginnings = thirds.chain([vec![first], vec![first, second]]);
            for words in beginnings.flat_map(|begin| options.map(|rest| [&*begin, rest].concat())) {
                let plain = args::plain(spec.verb, &words, &policy);
                let read = args::read(spec, &words, &policy).ok();
                let by_table = read.filter(|given| is_usual(given, words.len()));
                let by_table = by_table.map(|given| PlainArgs {
                    key: given.key(),
                    owner: given.owner(),
                    lease: given.lease,
                    session: given.session,
                    block: given.block,
                    token: given.token,
                });
                assert_eq!(plain, by_table, "{} {words:?}", spec.name);
                usual_ones[at] += usize::from(plain.is_some());
            }
        }
    }
    assert!(
        usual_ones.iter().all(|count| *count > 500),
        "{usual_ones:?}"
    );
}

/// Returns true if the fast path should read these arguments, which come in this number of words.
fn is_usual(given: &Args, words: usize) -> bool {
    let options = [
        given.lease.is_some(),
        given.session.is_some(),
        given.block.is_some(),
    ];
    match options {
        [false, ..] => words == 2 + 2 * usize::from(given.token.is_some()),
        [true, false, false] => words == 3,
        [true, true, waits] => words == 5 + 2 * usize::from(waits),
        [true, false, true] => false,
    }
}
