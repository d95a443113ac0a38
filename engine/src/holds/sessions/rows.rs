//! The rows of a session: what its program does not know yet.

use crate::holds::{HoldKey, Loss, Tie, TieId, Ties};
use crate::types::{HoldRef, Token, WallMs};
use std::collections::{BTreeSet, VecDeque};

/// The most rows that are kept, without those by which a session learns of a hold that is still in it.
const MOST_LOOSE: usize = 10_000;

/// How many rows have room once all have been seen: a burst leaves no memory behind.
const USUAL_ROWS: usize = 16;

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
    number: u64,
    word: Word,
    token: Token,
    whose: Whose,
    // The end of the lease, of a hold that continues.
    end: Option<WallMs>,
}

impl Row {
    fn is_gone(&self) -> bool {
        matches!(self.whose, Whose::Nobody)
    }
}

/// The lock and the owner that a row names.
#[derive(Debug, Clone)]
enum Whose {
    /// Those of a hold that is in the session.
    Held(TieId),
    /// Others.
    Named(Box<HoldKey>),
    /// The row is gone, and only its place is left.
    Nobody,
}

/// A row, as a reply contains it.
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
    /// When the lease ends, of a hold that continues.
    pub end: Option<WallMs>,
}

/// The rows that nobody has seen yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    // In the order of their numbers. Most rows go in that order, or soon after they have come, so that few places are left behind.
    rows: VecDeque<Row>,
    // How many places have lost their rows. The first one never has.
    gone: usize,
    // How many rows name no hold of the session.
    loose: usize,
    last: u64,
    // The numbers of the rows that answer a blocked SESSION command: those that repeat no reply.
    news: BTreeSet<u64>,
}

impl Rows {
    /// Returns the last number.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() - self.gone
    }

    /// Returns true if there is a row above this number that repeats no reply.
    pub(crate) fn has_news(&self, seen: u64) -> bool {
        self.news.last().is_some_and(|last| *last > seen)
    }

    /// Returns true if there are more than are kept.
    pub(crate) fn overflow(&self) -> bool {
        self.loose > MOST_LOOSE
    }

    /// Forgets all rows. The next one has the number 1.
    pub(crate) fn clear(&mut self) {
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        rows.shrink_to(USUAL_ROWS);
        *self = Rows {
            rows,
            ..Rows::default()
        };
    }

    fn add(
        &mut self,
        word: Word,
        token: Token,
        whose: Whose,
        end: Option<WallMs>,
        repeats: bool,
    ) -> u64 {
        self.last += 1;
        let number = self.last;
        if !repeats {
            self.news.insert(number);
        }
        self.loose += usize::from(matches!(whose, Whose::Named(_)));
        self.rows.push_back(Row {
            number,
            word,
            token,
            whose,
            end,
        });
        number
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Row> {
        let at = self
            .rows
            .binary_search_by_key(&number, |row| row.number)
            .ok()?;
        self.rows.get_mut(at)
    }

    fn remove(&mut self, number: u64) -> Option<Whose> {
        let row = self.get_mut(number)?;
        let whose = std::mem::replace(&mut row.whose, Whose::Nobody);
        self.news.remove(&number);
        self.gone += usize::from(!matches!(whose, Whose::Nobody));
        self.loose -= usize::from(matches!(whose, Whose::Named(_)));
        while self.rows.front().is_some_and(Row::is_gone) {
            self.rows.pop_front();
            self.gone -= 1;
        }
        if self.gone > self.rows.len() / 2 {
            self.rows.retain(|row| !row.is_gone());
            self.gone = 0;
        }
        Some(whose)
    }

    /// Adds the row of a hold that has come into the session; `repeats`: the reply to a command says the same. Returns its number.
    pub(crate) fn add_granted(&mut self, id: TieId, repeats: bool) -> u64 {
        self.add(Word::Granted, id.token, Whose::Held(id), None, repeats)
    }

    /// Adds the row of a wait that has ended without a grant.
    pub(crate) fn add_outcome(&mut self, word: Word, whose: HoldRef) {
        let whose = Whose::Named(Box::new(HoldKey::new(whose)));
        self.add(word, Token(0), whose, None, false);
    }

    /// Adds the row of a hold that has left the session. The row that reported the hold stays, and names lock and owner itself.
    pub(crate) fn add_lost(&mut self, token: Token, tie: &Tie, loss: Loss, confirms: bool) {
        let whose = || Whose::Named(Box::new(tie.whose.clone()));
        if let Some(granted) = self.get_mut(tie.row) {
            granted.whose = whose();
            self.loose += 1;
        }
        let goes_on = matches!(loss, Loss::Taken | Loss::Renamed | Loss::Moved);
        let end = tie.believed(confirms).filter(|_| goes_on);
        self.add(Word::Lost(loss), token, whose(), end, false);
    }

    /// Drops the row that reported a hold, and reports no loss.
    pub(crate) fn drop_granted(&mut self, row: u64) {
        self.remove(row);
    }

    /// Has a row refer to the tie that now has this id.
    pub(crate) fn renumber(&mut self, row: u64, id: TieId) {
        if let Some(row) = self.get_mut(row) {
            row.whose = Whose::Held(id);
        }
    }

    /// Drops the rows up to this number: the program has seen them.
    pub(crate) fn seen(&mut self, number: u64, ties: &mut Ties) {
        while let Some(first) = self.rows.front().map(|row| row.number) {
            if first > number {
                break;
            }
            if let Some(Whose::Held(id)) = self.remove(first) {
                ties.forget_row(id);
            }
        }
        if self.rows.is_empty() {
            self.rows.shrink_to(USUAL_ROWS);
        }
    }

    /// Returns all rows above this number, in order; `confirms`: only what replicas have confirmed counts.
    pub(crate) fn above(&self, seen: u64, ties: &Ties, confirms: bool) -> Vec<NewsRow> {
        let first = self.rows.partition_point(|row| row.number <= seen);
        let rows = self.rows.range(first..).filter_map(|row| {
            let (whose, end) = match &row.whose {
                Whose::Named(whose) => (whose.hold_ref(), row.end),
                Whose::Held(id) => {
                    let tie = ties.get(*id)?;
                    (tie.whose(), tie.believed(confirms))
                }
                Whose::Nobody => return None,
            };
            Some(NewsRow {
                number: row.number,
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
