//! The steps, and their text: a schedule is a list of these lines, found or given.

use std::fmt;

/// A server: 0 is `P`, the primary at the beginning; 1 … are `R1` ….
pub type Node = u8;
/// A client: 0 is `A`, 1 is `B`.
pub type Client = u8;

/// The outcome for a joiner that asks for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// It has emptied itself and is loading.
    Begins,
    /// The server has seen the request; the joiner receives nothing.
    Unheard,
    /// The joiner has given up its old history, and the transfer fails before it empties itself.
    Fails,
}

/// The data that a restarted process still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All, and its replication id (an RDB at shutdown).
    All,
    /// All, under a new history (AOF).
    AllAnew,
    /// Without the last `n` entries, with its replication id (an older RDB).
    Less(u8),
    /// Without the last `n` entries, under a new history (AOF everysec).
    LessAnew(u8),
    /// Nothing.
    Nothing,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// This server's clock is ahead of the others' (before anything else).
    Ahead(Node),
    Acquire(Client, Node),
    /// With the hold's token or without, for the whole lease or a short one.
    Renew {
        client: Client,
        at: Node,
        token: bool,
        short: bool,
    },
    Keep(Client, Node),
    /// The client learns a token by HELD.
    Held(Client, Node),
    Release(Client, Node),
    /// The server renews the held lock by AUTO, and sends no client an answer.
    Auto(Node),
    /// An operator ends the hold.
    Force(Node),
    /// The answer has its confirmations and is sent.
    Answer(Client),
    /// The time for the confirmations is up.
    TimeOut(Client),
    /// A replica receives, keeps and acknowledges the next entry.
    Stream(Node),
    /// A replica acknowledges that it lives.
    Live(Node),
    Promote(Node),
    /// A server gets the order to follow another.
    Follow(Node, Node),
    /// It joins by a partial resynchronisation; `heard`: whether it knows.
    Partial {
        node: Node,
        heard: bool,
    },
    Full(Node, Full),
    Loaded(Node),
    /// A replica's link ends.
    Break(Node),
    /// A server notices that a replica has left.
    Drop(Node, Node),
    Restart(Node, Kept),
    /// These servers, a bit each, are cut off from the others. Clients reach all.
    Cut(u8),
    Heal,
}

struct Name(Node);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            0 => f.write_str("P"),
            n => write!(f, "R{n}"),
        }
    }
}

fn client(client: Client) -> char {
    char::from(b'A' + client)
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::Tick => f.write_str("tick"),
            Self::Ahead(x) => write!(f, "{} clock ahead", Name(x)),
            Self::Acquire(c, s) => write!(f, "{} acquires at {}", client(c), Name(s)),
            Self::Renew {
                client: c,
                at,
                token,
                short,
            } => {
                let token = if token { " by token" } else { "" };
                let short = if short { " shorter" } else { "" };
                write!(f, "{} renews at {}{token}{short}", client(c), Name(at))
            }
            Self::Keep(c, s) => write!(f, "{} keeps at {}", client(c), Name(s)),
            Self::Held(c, s) => write!(f, "{} asks held at {}", client(c), Name(s)),
            Self::Release(c, s) => write!(f, "{} releases at {}", client(c), Name(s)),
            Self::Auto(s) => write!(f, "{} renews by auto", Name(s)),
            Self::Force(s) => write!(f, "{} is forced to release", Name(s)),
            Self::Answer(c) => write!(f, "{} is answered", client(c)),
            Self::TimeOut(c) => write!(f, "{} gets NOACK", client(c)),
            Self::Stream(x) => write!(f, "{} receives", Name(x)),
            Self::Live(x) => write!(f, "{} lives", Name(x)),
            Self::Promote(x) => write!(f, "{} is promoted", Name(x)),
            Self::Follow(x, s) => write!(f, "{} follows {}", Name(x), Name(s)),
            Self::Partial { node, heard } => {
                write!(
                    f,
                    "{} joins partially{}",
                    Name(node),
                    if heard { "" } else { " unheard" }
                )
            }
            Self::Full(x, how) => {
                let how = match how {
                    Full::Begins => "",
                    Full::Unheard => " unheard",
                    Full::Fails => " and fails",
                };
                write!(f, "{} joins fully{how}", Name(x))
            }
            Self::Loaded(x) => write!(f, "{} has loaded", Name(x)),
            Self::Break(x) => write!(f, "{} loses its link", Name(x)),
            Self::Drop(s, x) => write!(f, "{} drops {}", Name(s), Name(x)),
            Self::Restart(x, kept) => {
                let x = Name(x);
                match kept {
                    Kept::All => write!(f, "{x} restarts with all"),
                    Kept::AllAnew => write!(f, "{x} restarts with all anew"),
                    Kept::Less(n) => write!(f, "{x} restarts less {n}"),
                    Kept::LessAnew(n) => write!(f, "{x} restarts less {n} anew"),
                    Kept::Nothing => write!(f, "{x} restarts empty"),
                }
            }
            Self::Cut(nodes) => {
                f.write_str("cut off:")?;
                (0..8)
                    .filter(|n| nodes >> n & 1 == 1)
                    .try_for_each(|n| write!(f, " {}", Name(n)))
            }
            Self::Heal => f.write_str("heal"),
        }
    }
}

fn node(word: &str) -> Option<Node> {
    match word.strip_prefix('R') {
        Some(n) => n.parse().ok().filter(|n| (1..=5).contains(n)),
        None => (word == "P").then_some(0),
    }
}

fn client_of(word: &str) -> Option<Client> {
    match word {
        "A" => Some(0),
        "B" => Some(1),
        _ => None,
    }
}

impl Action {
    /// Reads the text that `Display` writes. None for any other text.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match *words.as_slice() {
            ["tick"] => Self::Tick,
            [x, "clock", "ahead"] => Self::Ahead(node(x)?),
            [c, "acquires", "at", s] => Self::Acquire(client_of(c)?, node(s)?),
            [c, "renews", "at", s, ref how @ ..] => {
                let (token, short) = match *how {
                    [] => (false, false),
                    ["by", "token"] => (true, false),
                    ["shorter"] => (false, true),
                    ["by", "token", "shorter"] => (true, true),
                    _ => return None,
                };
                Self::Renew {
                    client: client_of(c)?,
                    at: node(s)?,
                    token,
                    short,
                }
            }
            [c, "keeps", "at", s] => Self::Keep(client_of(c)?, node(s)?),
            [c, "asks", "held", "at", s] => Self::Held(client_of(c)?, node(s)?),
            [c, "releases", "at", s] => Self::Release(client_of(c)?, node(s)?),
            [s, "renews", "by", "auto"] => Self::Auto(node(s)?),
            [s, "is", "forced", "to", "release"] => Self::Force(node(s)?),
            [c, "is", "answered"] => Self::Answer(client_of(c)?),
            [c, "gets", "NOACK"] => Self::TimeOut(client_of(c)?),
            [x, "receives"] => Self::Stream(node(x)?),
            [x, "lives"] => Self::Live(node(x)?),
            [x, "is", "promoted"] => Self::Promote(node(x)?),
            [x, "follows", s] => Self::Follow(node(x)?, node(s)?),
            [x, "joins", "partially"] => Self::Partial {
                node: node(x)?,
                heard: true,
            },
            [x, "joins", "partially", "unheard"] => Self::Partial {
                node: node(x)?,
                heard: false,
            },
            [x, "joins", "fully"] => Self::Full(node(x)?, Full::Begins),
            [x, "joins", "fully", "unheard"] => Self::Full(node(x)?, Full::Unheard),
            [x, "joins", "fully", "and", "fails"] => Self::Full(node(x)?, Full::Fails),
            [x, "has", "loaded"] => Self::Loaded(node(x)?),
            [x, "loses", "its", "link"] => Self::Break(node(x)?),
            [s, "drops", x] => Self::Drop(node(s)?, node(x)?),
            [x, "restarts", "with", "all"] => Self::Restart(node(x)?, Kept::All),
            [x, "restarts", "with", "all", "anew"] => Self::Restart(node(x)?, Kept::AllAnew),
            [x, "restarts", "less", n] => Self::Restart(node(x)?, Kept::Less(n.parse().ok()?)),
            [x, "restarts", "less", n, "anew"] => {
                Self::Restart(node(x)?, Kept::LessAnew(n.parse().ok()?))
            }
            [x, "restarts", "empty"] => Self::Restart(node(x)?, Kept::Nothing),
            ["cut", "off:", ref nodes @ ..] => {
                let mut mask = 0;
                for n in nodes {
                    mask |= 1 << node(n)?;
                }
                Self::Cut(mask)
            }
            ["heal"] => Self::Heal,
            _ => return None,
        })
    }
}
