//! The rows of a session: what its program does not know yet.

use crate::holds::{HoldKey, Loss, Tie, TieId, Ties};
use crate::types::{HoldRef, Token, WallMs};
use std::collections::{BTreeMap, BTreeSet};

/// The most rows that are kept, without those by which a session learns of a hold that is still in it.
const MOST_LOOSE: usize = 10_000;

/// What has happened to a hold or a wait of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The hold has come into the session.
    Granted,
    /// The time of the wait is up.
    Timeout,
    /// The place was cancelled.
    Cancelled,
    /// A request of the same owner from elsewhere has taken the place.
    Replaced,
    /// The key holds something that is not a lock.
    WrongType,
    /// The wait has ended without an outcome: its program asks again.
    Again,
    /// The hold has left the session.
    Lost(Loss),
}

impl Word {
    /// Returns the word in replies.
    pub fn text(self) -> &'static str {
        match self {
            Word::Granted => "granted",
            Word::Timeout => "timeout",
            Word::Cancelled => "cancelled",
            Word::Replaced => "replaced",
            Word::WrongType => "wrongtype",
            Word::Again => "again",
            Word::Lost(loss) => loss.word(),
        }
    }
}

/// One row.
#[derive(Debug, Clone)]
struct Row {
    word: Word,
    token: Token,
    whose: Whose,
    // The end of the lease, of a hold that goes on.
    end: Option<WallMs>,
}

/// The lock and the owner that a row names.
#[derive(Debug, Clone)]
enum Whose {
    /// Those of a hold that is in the session.
    Held(TieId),
    /// Others.
    Named(Box<HoldKey>),
}

/// A row, as a reply has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewsRow {
    /// Its number.
    pub number: u64,
    /// What has happened.
    pub word: Word,
    /// The lock's key.
    pub key: Vec<u8>,
    /// The owner.
    pub owner: Vec<u8>,
    /// The token of the hold; 0 of a wait.
    pub token: Token,
    /// When the lease ends, of a hold that goes on.
    pub end: Option<WallMs>,
}

/// The rows that nobody has seen yet, by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    by_number: BTreeMap<u64, Row>,
    // How many of them name no hold of the session.
    loose: usize,
    last: u64,
    // Those that repeat no reply.
    news: BTreeSet<u64>,
}

impl Rows {
    /// Returns the last number.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns true if there is a row above this number that repeats no reply.
    pub(crate) fn has_news(&self, seen: u64) -> bool {
        self.news.last().is_some_and(|last| *last > seen)
    }

    /// Returns true if there are more than are kept.
    pub(crate) fn overflow(&self) -> bool {
        self.loose > MOST_LOOSE
    }

    fn add(&mut self, row: Row, repeats: bool) -> u64 {
        self.last += 1;
        if !repeats {
            self.news.insert(self.last);
        }
        self.loose += usize::from(matches!(row.whose, Whose::Named(_)));
        self.by_number.insert(self.last, row);
        self.last
    }

    fn remove(&mut self, number: u64) -> Option<Row> {
        let row = self.by_number.remove(&number)?;
        self.news.remove(&number);
        self.loose -= usize::from(matches!(row.whose, Whose::Named(_)));
        Some(row)
    }

    /// Adds the row of a hold that has come into the session; `repeats`: the reply to a command says the same. Returns its number.
    pub(crate) fn add_granted(&mut self, id: TieId, repeats: bool) -> u64 {
        let row = Row {
            word: Word::Granted,
            token: id.token,
            whose: Whose::Held(id),
            end: None,
        };
        self.add(row, repeats)
    }

    /// Adds the row of a wait that has ended without a grant.
    pub(crate) fn add_outcome(&mut self, word: Word, whose: HoldRef) {
        let row = Row {
            word,
            token: Token(0),
            whose: Whose::Named(Box::new(HoldKey::new(whose))),
            end: None,
        };
        self.add(row, false);
    }

    /// Adds the row of a hold that has left the session. The row that told of it goes on without the hold.
    pub(crate) fn add_lost(&mut self, token: Token, tie: &Tie, loss: Loss, confirms: bool) {
        if let Some(granted) = self.by_number.get_mut(&tie.row) {
            granted.whose = Whose::Named(Box::new(tie.whose.clone()));
            self.loose += 1;
        }
        let goes_on = matches!(loss, Loss::Taken | Loss::Renamed | Loss::Moved);
        let row = Row {
            word: Word::Lost(loss),
            token,
            whose: Whose::Named(Box::new(tie.whose.clone())),
            end: tie.believed(confirms).filter(|_| goes_on),
        };
        self.add(row, false);
    }

    /// Drops the row of a hold, which its program has given back itself.
    pub(crate) fn drop_granted(&mut self, row: u64) {
        self.remove(row);
    }

    /// Has a row name the hold by its new number.
    pub(crate) fn renumber(&mut self, row: u64, id: TieId) {
        if let Some(row) = self.by_number.get_mut(&row) {
            row.whose = Whose::Held(id);
        }
    }

    /// Drops the rows up to this number: the program has seen them.
    pub(crate) fn seen(&mut self, number: u64, ties: &mut Ties) {
        while let Some((first, _)) = self.by_number.first_key_value() {
            if *first > number {
                break;
            }
            let first = *first;
            if let Some(Whose::Held(id)) = self.remove(first).map(|row| row.whose) {
                ties.forget_row(id);
            }
        }
    }

    /// Returns all rows above this number, in order; `confirms`: only what replicas have confirmed counts.
    pub(crate) fn above(&self, seen: u64, ties: &Ties, confirms: bool) -> Vec<NewsRow> {
        let rows = self.by_number.range(seen.saturating_add(1)..);
        let rows = rows.filter_map(|(number, row)| {
            let (whose, end) = match &row.whose {
                Whose::Named(whose) => (whose.as_ref().as_ref(), row.end),
                Whose::Held(id) => {
                    let tie = ties.get(*id)?;
                    (tie.whose(), tie.believed(confirms))
                }
            };
            Some(NewsRow {
                number: *number,
                word: row.word,
                key: whose.name.key.to_vec(),
                owner: whose.owner.to_vec(),
                token: row.token,
                end,
            })
        });
        rows.collect()
    }
}
