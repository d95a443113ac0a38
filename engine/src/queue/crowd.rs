//! Locks whose values have come or gone one by one, but so many that they are not looked at together.

use crate::types::Name;
use std::collections::HashMap;
use std::collections::VecDeque;

/// Names to which values have come, or from which they have gone, in the order in which they are to be looked at.
#[derive(Debug, Clone, Default)]
pub struct Crowd {
    names: HashMap<Name, Member>,
    order: VecDeque<Name>,
    // Databases that were exchanged since.
    swaps: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, Default)]
struct Member {
    /// Whether a value has come to it.
    brought: bool,
    /// Whether it was used before its turn, and looked at then.
    seen: bool,
}

impl Crowd {
    /// Returns true if none is left.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// A value has come to this name (`brought`), or has gone from it.
    pub fn add(&mut self, name: Name, brought: bool) {
        match self.names.get_mut(&name) {
            Some(member) => {
                member.brought |= brought;
                member.seen = false;
            }
            None => {
                self.order.push_back(name.clone());
                let seen = false;
                self.names.insert(name, Member { brought, seen });
            }
        }
    }

    /// Two databases were exchanged: what has come to the one is in the other now. No name is added any more.
    pub fn swap(&mut self, one: u32, other: u32) {
        self.swaps.push((one, other));
    }

    /// These are as if they had been added to it. Returns them back if that cannot be.
    pub fn join(&mut self, mut crowd: Crowd) -> Option<Crowd> {
        if !self.swaps.is_empty() {
            return Some(crowd);
        }
        while let Some(name) = crowd.order.pop_front() {
            if let Some((name, member)) = crowd.names.remove_entry(&name) {
                self.add(name, member.brought);
            }
        }
        None
    }

    /// Returns true if this name is still to be looked at.
    pub fn has(&self, name: &Name) -> bool {
        self.names.get(name).is_some_and(|member| !member.seen)
    }

    /// This name is looked at before its turn.
    pub fn see(&mut self, name: &Name) {
        if let Some(member) = self.names.get_mut(name) {
            member.seen = true;
        }
    }

    /// Takes the next one out. Returns the names under which a value may have come; else, the one from which it has gone.
    pub fn pop(&mut self) -> Option<Turn> {
        let name = self.order.pop_front()?;
        let (name, member) = self.names.remove_entry(&name)?;
        let brought_to = member.brought.then(|| Name {
            db: exchanged(name.db, self.swaps.iter().copied()),
            key: name.key.clone(),
        });
        Some(Turn { name, brought_to })
    }
}

/// A lock of a crowd that has its turn.
#[derive(Debug)]
pub struct Turn {
    /// The name to which a value has come, or from which one has gone.
    pub name: Name,
    /// Where that is now which has come, if one has.
    pub brought_to: Option<Name>,
}

/// The database in which that is now which was in this one.
pub(crate) fn exchanged(db: u32, swaps: impl Iterator<Item = (u32, u32)>) -> u32 {
    swaps.fold(db, |db, (one, other)| match db {
        db if db == one => other,
        db if db == other => one,
        db => db,
    })
}
