//! What is asked of a server, and what it says, in the model's terms: tokens and ids are numbered by the model.

use dlock_engine::Millis;

/// A token, or a session's id, in the order in which they were made.
pub type Serial = u64;

/// A limit without bound.
pub const SHARED: u64 = u32::MAX as u64;

/// The limit, and the permits that are taken of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub limit: u64,
    pub permits: u64,
}

/// The command of the ACQUIRE family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    One,
    Fair,
    Many,
}

/// A request for locks.
#[derive(Debug, Clone)]
pub struct Take {
    pub verb: Verb,
    pub keys: Vec<&'static str>,
    pub owner: &'static str,
    pub lease: Millis,
    /// How long it waits; 0 without bound.
    pub block: Option<Millis>,
    pub holds: Option<u32>,
    pub share: Share,
    pub ephemeral: bool,
    pub claim: Option<Millis>,
    pub session: Option<&'static str>,
}

/// A command.
#[derive(Debug, Clone)]
pub enum Command {
    Take(Take),
    /// RENEW, or MRENEW of several keys, which names no token.
    Renew {
        many: bool,
        keys: Vec<&'static str>,
        owner: &'static str,
        lease: Millis,
        token: Option<Serial>,
        ephemeral: bool,
        session: Option<&'static str>,
    },
    Release {
        key: &'static str,
        owner: &'static str,
        leave: Option<u32>,
        token: Option<Serial>,
    },
    ReleaseMany {
        keys: Vec<&'static str>,
        owner: &'static str,
    },
    Downgrade {
        key: &'static str,
        owner: &'static str,
        limit: u64,
        token: Option<Serial>,
    },
    Cancel {
        key: &'static str,
        owner: &'static str,
    },
    Force {
        key: &'static str,
        owner: Option<&'static str>,
    },
    Session {
        session: &'static str,
        ms: Millis,
        seen: Option<(Serial, u64)>,
        block: Option<Millis>,
    },
}

/// A reply, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Null,
    /// Nothing yet: the connection is blocked.
    Waits,
    Number(u64),
    Token(Serial),
    Id(Serial),
    Text(String),
    List(Vec<Said>),
    /// The error with this code.
    Error(&'static str),
}

impl Command {
    /// Returns the words that the server is sent. `token` and `id` say what the server calls a token and a session's id.
    pub fn words(&self, token: impl Fn(Serial) -> u64, id: impl Fn(Serial) -> u64) -> String {
        let option = |word: &str, value: Option<u64>| value.map(|value| format!("{word} {value}"));
        let flag = |word: &str, given: bool| given.then(|| word.to_string());
        let within = |session: &Option<&str>| session.map(|session| format!("IN {session}"));
        let all = |keys: &[&str]| format!("{} {}", keys.len(), keys.join(" "));
        let (begin, options) = match self {
            Command::Take(take) => {
                let begin = match take.verb {
                    Verb::One => format!("ACQUIRE {}", take.keys[0]),
                    Verb::Fair => format!("FAIRACQUIRE {}", take.keys[0]),
                    Verb::Many => format!("MACQUIRE {}", all(&take.keys)),
                };
                let options = vec![
                    option("BLOCK", take.block),
                    option("HOLDS", take.holds.map(u64::from)),
                    Some(take.share.words()),
                    flag("EPHEMERAL", take.ephemeral),
                    option("CLAIM", take.claim),
                    within(&take.session),
                ];
                (format!("{begin} {} {}", take.owner, take.lease), options)
            }
            Command::Renew {
                many,
                keys,
                owner,
                lease,
                token: its,
                ephemeral,
                session,
            } => {
                let begin = match many {
                    true => format!("MRENEW {}", all(keys)),
                    false => format!("RENEW {}", keys[0]),
                };
                let options = vec![
                    option("TOKEN", its.map(token)),
                    flag("EPHEMERAL", *ephemeral),
                    within(session),
                ];
                (format!("{begin} {owner} {lease}"), options)
            }
            Command::Release {
                key,
                owner,
                leave,
                token: its,
            } => {
                let options = vec![
                    option("HOLDS", leave.map(u64::from)),
                    option("TOKEN", its.map(token)),
                ];
                (format!("RELEASE {key} {owner}"), options)
            }
            Command::ReleaseMany { keys, owner } => {
                (format!("MRELEASE {} {owner}", all(keys)), Vec::new())
            }
            Command::Downgrade {
                key,
                owner,
                limit,
                token: its,
            } => {
                let permits = 1;
                let share = Share {
                    limit: *limit,
                    permits,
                };
                let options = vec![Some(share.words()), option("TOKEN", its.map(token))];
                (format!("DOWNGRADE {key} {owner}"), options)
            }
            Command::Cancel { key, owner } => (format!("CANCEL {key} {owner}"), Vec::new()),
            Command::Force { key, owner } => (
                format!("FORCERELEASE {key}"),
                vec![owner.map(str::to_string)],
            ),
            Command::Session {
                session,
                ms,
                seen,
                block,
            } => {
                let seen = seen.map(|(its, n)| format!("SEEN {} {n}", id(its)));
                let options = vec![seen, option("BLOCK", *block)];
                (format!("SESSION k {session} {ms}"), options)
            }
        };
        let options: Vec<String> = options.into_iter().flatten().collect();
        format!("{begin} {}", options.join(" "))
    }
}

impl Share {
    fn words(&self) -> String {
        match *self {
            Share { limit: SHARED, .. } => "SHARED".to_string(),
            Share { limit, permits: 1 } => format!("LIMIT {limit}"),
            Share { limit, permits } => format!("LIMIT {limit} PERMITS {permits}"),
        }
    }
}
