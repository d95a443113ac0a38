//! The holders of one lock, found by owner, by deadline and by limit in logarithmic time.

use super::lock::Hold;
use super::{Limit, Millis, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is kept of one holder; its owner is the key it is kept under.
#[derive(Debug, Clone, Copy)]
struct Kept {
    token: Token,
    deadline: Millis,
    holds: u32,
    limit: Limit,
    client: u64,
}

/// All holders of a lock. Their order is the owners', so that a primary and a replica agree byte for byte however
/// they came by the same state. An owner is shared with `Arc`, since a server may free a value on another thread.
#[derive(Debug, Default)]
pub struct Holders {
    by_owner: BTreeMap<Arc<[u8]>, Kept>,
    by_deadline: BTreeSet<(Millis, Arc<[u8]>)>,
    by_limit: BTreeMap<Limit, usize>,
}

impl Holders {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// The hold of an owner.
    pub fn get(&self, owner: &[u8]) -> Option<Hold<'_>> {
        self.by_owner.get_key_value(owner).map(view)
    }

    /// All holds, in the order of their owners.
    pub fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        self.by_owner.iter().map(view)
    }

    /// The first deadline and whose it is.
    pub fn earliest(&self) -> Option<(Millis, &[u8])> {
        self.by_deadline.first().map(|(at, owner)| (*at, &**owner))
    }

    /// The last deadline.
    pub fn latest(&self) -> Option<Millis> {
        self.by_deadline.last().map(|(at, _)| *at)
    }

    /// The hold whose lease ends last.
    pub fn last(&self) -> Option<Hold<'_>> {
        self.get(&self.by_deadline.last()?.1)
    }

    /// How many leases have not run out. Takes time by the number of those that have, which are soon taken out.
    pub fn live(&self, now: Millis) -> usize {
        let ended = |dated: &&(Millis, Arc<[u8]>)| dated.0 <= now;
        self.len() - self.by_deadline.iter().take_while(ended).count()
    }

    /// The strictest limit of all.
    pub fn strictest(&self) -> Option<Limit> {
        self.by_limit.first_key_value().map(|(limit, _)| *limit)
    }

    /// The strictest limit when one holder with `mine` is left out.
    pub fn strictest_beside(&self, mine: Limit) -> Option<Limit> {
        let counted = |(limit, count): (&Limit, &usize)| *count > usize::from(*limit == mine);
        self.by_limit
            .iter()
            .find(|entry| counted(*entry))
            .map(|(limit, _)| *limit)
    }

    /// Makes this owner's hold exactly this one.
    pub fn put(&mut self, hold: &Hold) {
        let owner = self
            .remove(hold.owner)
            .unwrap_or_else(|| Arc::from(hold.owner));
        let kept = Kept {
            token: hold.token,
            deadline: hold.deadline,
            holds: hold.holds,
            limit: hold.limit,
            client: hold.client,
        };
        self.by_deadline.insert((hold.deadline, owner.clone()));
        *self.by_limit.entry(hold.limit).or_default() += 1;
        self.by_owner.insert(owner, kept);
    }

    /// Takes the only hold out, if it is held under this token.
    pub fn remove_only(&mut self, token: Token) {
        let only = self.by_owner.first_key_value().filter(|_| self.len() == 1);
        let Some((owner, kept)) = only else { return };
        if kept.token == token {
            let owner = owner.clone();
            self.remove(&owner);
        }
    }

    /// Takes an owner's hold out; gives the owner back for further use.
    pub fn remove(&mut self, owner: &[u8]) -> Option<Arc<[u8]>> {
        let (owner, kept) = self.by_owner.remove_entry(owner)?;
        let dated = (kept.deadline, owner);
        self.by_deadline.remove(&dated);
        if let Some(count) = self.by_limit.get_mut(&kept.limit) {
            *count -= 1;
            if *count == 0 {
                self.by_limit.remove(&kept.limit);
            }
        }
        Some(dated.1)
    }
}

fn view<'a>((owner, kept): (&'a Arc<[u8]>, &'a Kept)) -> Hold<'a> {
    Hold {
        owner,
        token: kept.token,
        deadline: kept.deadline,
        holds: kept.holds,
        limit: kept.limit,
        client: kept.client,
    }
}
