//! The command table, and everything that derives from it.

use dlock_commands::error::Error;
use dlock_commands::table::{Arg, Kind, Spec, COMMANDS};
use dlock_engine::Refusal;
use dlock_engine::{Limit, NoAck, Permits, Policy, ONE};
use std::collections::BTreeSet;

#[test]
fn every_command_is_described() {
    let mut names = BTreeSet::new();
    for spec in COMMANDS {
        let Spec {
            name,
            summary,
            complexity,
            ..
        } = spec;
        assert!(names.insert(name), "{name} stands twice in the table");
        assert!(
            name.starts_with("dlock.") && name.to_lowercase() == *name,
            "{name}"
        );
        assert!(
            !summary.is_empty() && !summary.ends_with('.') && summary.len() <= 120,
            "{name}: {summary}"
        );
        assert!(complexity.starts_with("O("), "{name}: {complexity}");
        assert!(!spec.categories().is_empty(), "{name}");
    }
}

#[test]
fn the_key_stands_first() {
    for spec in COMMANDS {
        let keys: Vec<usize> = (0..spec.args.len())
            .filter(|at| matches!(spec.args[*at].kind, Kind::Key | Kind::Keys))
            .collect();
        let must: &[usize] = match spec.access {
            _ if spec.keyless() => &[],
            // Their number precedes them.
            _ if spec.many_keys() => &[1],
            _ => &[0],
        };
        assert_eq!(keys, must, "{}", spec.name);
        let many = spec.args.iter().any(|arg| matches!(arg.kind, Kind::Keys));
        assert_eq!(spec.many_keys(), many, "{}", spec.name);
    }
}

#[test]
fn what_may_be_left_out_comes_last() {
    for spec in COMMANDS {
        let optional: Vec<bool> = spec.args.iter().map(|arg| arg.optional).collect();
        assert!(
            optional.windows(2).all(|pair| pair[0] <= pair[1]),
            "{}",
            spec.name
        );
        let needed = optional.iter().filter(|optional| !**optional).count() as i32 + 1;
        // `A | B n` is one word or two.
        let varies = optional.contains(&true) || spec.syntax().contains('|') || spec.many_keys();
        assert_eq!(
            spec.arity(),
            if varies { -needed } else { needed },
            "{}",
            spec.name
        );
    }
}

fn document(name: &str) -> String {
    let file = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&file).expect(&file)
}

#[test]
fn the_reference_has_every_command() {
    let reference = document("commands.md");
    let missing: Vec<String> = COMMANDS
        .iter()
        .filter(|spec| !spec.internal())
        .map(Spec::syntax)
        .filter(|syntax| !reference.lines().any(|line| says(line, syntax)))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/commands.md does not have:\n{}",
        missing.join("\n")
    );
}

/// Returns the arguments of a command, those within others included.
fn args(spec: &Spec) -> impl Iterator<Item = &'static Arg> {
    let parts = |arg: &'static Arg| match arg.kind {
        Kind::OneOf(parts) | Kind::With(parts) => parts,
        _ => std::slice::from_ref(arg),
    };
    spec.args.iter().flat_map(parts).flat_map(parts)
}

/// Returns the words of all options of the commands that clients send, each with the command's name in upper case.
fn options() -> impl Iterator<Item = (String, &'static str)> {
    let public = COMMANDS.iter().filter(|spec| !spec.internal());
    public.flat_map(|spec| {
        let command = spec.name.trim_start_matches("dlock.").to_uppercase();
        let tokens = args(spec).filter_map(|arg| arg.token);
        tokens.map(move |token| (command.clone(), token))
    })
}

#[test]
fn the_reference_explains_every_option() {
    let reference = document("commands.md");
    let section = |command: &str| {
        let heading = format!("### DLOCK.{command}\n");
        let section = reference.split_once(&heading).expect(&heading).1;
        section.split("\n### ").next().unwrap_or_default()
    };
    let has = |command: &str, token: &str| {
        let words = section(command).split(|c: char| !c.is_ascii_alphanumeric());
        // Once in the syntax.
        words.filter(|word| *word == token).count() > 1
    };
    let explains = |command: &str, token: &str| {
        let as_acquire = section(command).contains("`DLOCK.ACQUIRE`");
        has(command, token) || (as_acquire && has("ACQUIRE", token))
    };
    let missing: Vec<String> = options()
        .filter(|(command, token)| !explains(command, token))
        .map(|(command, token)| format!("{command} {token}"))
        .collect();
    assert_eq!(
        missing, [""; 0],
        "their sections of docs/commands.md only have the syntax"
    );
    assert!(!explains("RELEASE", "QUIETLY"));
}

#[test]
fn the_fuzzer_knows_every_word() {
    let file = format!("{}/../fuzz/words.dict", env!("CARGO_MANIFEST_DIR"));
    let dictionary = std::fs::read_to_string(&file).expect(&file);
    let known: BTreeSet<&str> = dictionary.split([' ', '"', '\n']).collect();
    let commands = COMMANDS.iter().filter(|spec| !spec.internal());
    let mut words: BTreeSet<String> = commands
        .map(|spec| spec.name.trim_start_matches("dlock.").to_uppercase())
        .collect();
    words.extend(options().map(|(_, token)| token.to_owned()));
    words.retain(|word| !known.contains(&**word));
    assert_eq!(words, BTreeSet::new(), "fuzz/words.dict does not have them");
}

#[test]
fn the_reference_says_what_every_argument_may_be() {
    let (errors, policy) = (document("trouble.md"), Policy::default());
    let mut missing = BTreeSet::new();
    for spec in COMMANDS.iter().filter(|spec| !spec.internal()) {
        for arg in args(spec) {
            let error = arg
                .must(&policy)
                .map(|must| Error::Argument(arg.called(), must));
            missing.extend(error.map(|error| format!("`{error}`")));
        }
    }
    missing.retain(|text| !errors.contains(text));
    assert!(
        missing.is_empty(),
        "docs/trouble.md does not have {missing:#?}"
    );
}

/// A new option without a conversation fails here.
#[test]
fn a_conversation_has_every_option_of_every_command() {
    let all = dlock_conversations::all().into_iter();
    let all = all.chain(dlock_conversations::of_servers());
    let texts: Vec<String> = all.map(|one| one.text).collect();
    let lines = || texts.iter().flat_map(|text| text.lines());
    let has = |command: &str, option: &str| {
        lines().any(|line| {
            let words = line.split([' ', '.']);
            let mut after = words.skip_while(|word| *word != command);
            after.any(|word| word == option)
        })
    };
    let missing: Vec<String> = options()
        .filter(|(command, token)| !has(command, token))
        .map(|(command, token)| format!("{command} {token}"))
        .collect();
    assert_eq!(missing, [""; 0], "no conversation in tests/ has them");
    assert!(!has("ACQUIRE", "QUIETLY"));
}

const TWO: Permits = ONE.saturating_add(1);

/// Lists examples of every kind of error; it does not compile if a kind is missing.
macro_rules! examples {
    ($($kind:pat => [$($example:expr),*];)*) => {{
        let _ = |error: &Error| match error { $($kind => {})* };
        vec![$($($example,)*)*]
    }};
}

#[test]
fn the_reference_has_every_error() {
    let documented = document("trouble.md");
    let errors: Vec<Error> = examples! {
        Error::Refused(Refusal::NotHeld) => [Error::Refused(Refusal::NotHeld)];
        Error::Refused(Refusal::Holding) => [Error::Refused(Refusal::Holding)];
        Error::Refused(Refusal::TryAgain) => [Error::Refused(Refusal::TryAgain)];
        Error::Refused(Refusal::NoAck(_)) => [
            Error::Refused(Refusal::NoAck(NoAck::TooFew { counting: 0, needed: 1 })),
            Error::Refused(Refusal::NoAck(NoAck::Quarantine(4711))),
            Error::Refused(Refusal::NoAck(NoAck::Barred)),
            Error::Refused(Refusal::NoAck(NoAck::Full)),
            Error::Refused(Refusal::NoAck(NoAck::Late { confirmed: 0, needed: 1 })),
            Error::Refused(Refusal::NoAck(NoAck::Ended))
        ];
        Error::Refused(Refusal::Fenced) => [Error::Refused(Refusal::Fenced)];
        // The error names a circle.
        Error::Refused(Refusal::Deadlock(_)) => [];
        Error::Refused(Refusal::Full(_)) => [
            Error::Refused(Refusal::Full("dlock.max-holders")),
            Error::Refused(Refusal::Full("dlock.max-queue")),
            Error::Refused(Refusal::Full("dlock.max-places")),
            Error::Refused(Refusal::Full("dlock.max-waiters")),
            Error::Refused(Refusal::Full("dlock.max-sessions"))
        ];
        Error::Refused(Refusal::Quarantine(_)) => [Error::Refused(Refusal::Quarantine(4711))];
        Error::Refused(Refusal::Draining) => [Error::Refused(Refusal::Draining)];
        Error::Replaced => [Error::Replaced];
        Error::Refused(Refusal::WrongType) => [Error::Refused(Refusal::WrongType)];
        Error::Refused(Refusal::At(..)) => [
            Error::Refused(Refusal::At(Box::new(Refusal::WrongType), Box::from(*b"stock")))
        ];
        Error::ReadOnly => [Error::ReadOnly];
        Error::Internal(_) => [Error::Internal("DLOCK.APPLY"), Error::Internal("DLOCK.HEED")];
        Error::ServesNone => [Error::ServesNone];
        // Replicas and the AOF see it, but no client.
        Error::Refused(Refusal::Malformed) => [];
        // The error names this version, and is in the log.
        Error::Refused(Refusal::NewerFormat { .. }) => [];
        // Another test covers the bounds of each argument.
        Error::Refused(Refusal::Overflow | Refusal::LeavesMore(_) | Refusal::NotWeaker(_)) => [];
        Error::Refused(Refusal::MorePermits(_) | Refusal::NotUpgraded(_)) => [
            Error::Refused(Refusal::MorePermits(TWO)),
            Error::Refused(Refusal::NotUpgraded(TWO))
        ];
        Error::Refused(Refusal::OtherShare) => [Error::Refused(Refusal::OtherShare)];
        Error::Refused(Refusal::Stricter(_)) => [Error::Refused(Refusal::Stricter(Limit::SHARED))];
        Error::Refused(Refusal::TokenNeeded) => [Error::Refused(Refusal::TokenNeeded)];
        Error::Refused(Refusal::OtherUser) => [Error::Refused(Refusal::OtherUser)];
        Error::Refused(Refusal::NotThatMany(_)) => [Error::Refused(Refusal::NotThatMany(4711))];
        Error::Busy => [Error::Busy];
        Error::Poisoned => [Error::Poisoned];
        Error::Unguarded(_) => [Error::Unguarded("…".into())];
        Error::NoPermission(_) => [Error::NoPermission("…".into()), Error::NoPermission("psync".into())];
        Error::NoUser => [Error::NoUser];
        // The server's own errors.
        Error::InnerWrongType => [];
        Error::Unanswered(_) => [Error::Unanswered("…".into())];
        Error::NoScan(_) => [Error::NoScan("…".into())];
        Error::Arity(_) => [Error::Arity("dlock.acquire")];
        // Another test covers the bounds of each argument.
        Error::Argument(..) => [];
        Error::UnknownOption(_) => [Error::UnknownOption("x".into())];
        Error::Renamed(..) => [
            Error::Renamed("SESSION", "EPHEMERAL", "0.5.0"),
            Error::Renamed("NOTIFY", "IN", "0.5.0")
        ];
        Error::Misplaced(..) => [Error::Misplaced("30000".into(), "lease-ms", "owner")];
        Error::Conflict(..) => [
            Error::Conflict("BLOCK", "BLOCK"),
            Error::Conflict("HOLDS", "owner *"),
            Error::Conflict("SHARED", "LIMIT")
        ];
        Error::NoConnection(_) => [Error::NoConnection("EPHEMERAL")];
        Error::MayNotWait => [Error::MayNotWait];
    };
    let texts = errors.iter().map(|error| format!("`{error}`"));
    let missing: Vec<String> = texts.filter(|text| !documented.contains(text)).collect();
    assert!(
        missing.is_empty(),
        "docs/trouble.md does not have {missing:#?}"
    );
}

/// Returns true if the line has this syntax, and not a longer one that begins with it.
fn says(line: &str, syntax: &str) -> bool {
    line.match_indices(syntax)
        .any(|(at, _)| !line[at + syntax.len()..].starts_with(" ["))
}

#[test]
fn a_longer_syntax_is_another() {
    for (line, says_it) in [
        ("### `DLOCK.CANCEL key owner`", true),
        ("DLOCK.CANCEL key owner", true),
        ("DLOCK.CANCEL key owner takes a place away", true),
        ("DLOCK.CANCEL key owner [lease-ms]", false),
        ("DLOCK.CANCEL key", false),
        ("dlock.cancel key owner", false),
    ] {
        assert_eq!(says(line, "DLOCK.CANCEL key owner"), says_it, "{line}");
    }
}
