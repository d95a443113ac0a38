//! The holders of one lock: a short list, or, of many, found by owner at once and by deadline and limit in logarithmic time.

use super::index::Index;
use super::lock::Hold;
use super::{Limit, Millis, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Holders that are kept in a list. Up to here a walk through them is as fast as three ordered maps, which would take
/// seven times the room, and nearly every contended lock has one holder.
const FEW: usize = 8;

/// All holders of a lock.
#[derive(Debug)]
pub enum Holders {
    /// Some, in the order of their owners.
    Few(Vec<Held>),
    /// More than can be kept in a list.
    Many(Box<Many>),
}

/// One holder. Its owner is shared with `Arc` where it stands in several maps, since a server may free a value on another
/// thread.
#[derive(Debug)]
pub struct Held {
    owner: Arc<[u8]>,
    kept: Kept,
}

/// What is kept of one holder beside its owner.
#[derive(Debug, Clone, Copy)]
struct Kept {
    token: Token,
    deadline: Millis,
    holds: u32,
    limit: Limit,
    client: u64,
}

/// Many holders.
#[derive(Debug, Default)]
pub struct Many {
    by_owner: Index<Arc<[u8]>, Kept>,
    // The token keeps leases of one millisecond apart: to compare owners would be to read the memory of each.
    by_deadline: BTreeSet<(Millis, Token, Arc<[u8]>)>,
    by_limit: BTreeMap<Limit, usize>,
}

impl Default for Holders {
    fn default() -> Self {
        Holders::Few(Vec::new())
    }
}

impl Holders {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Holders::Few(list) => list.len(),
            Holders::Many(many) => many.by_owner.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hold of an owner.
    pub fn get(&self, owner: &[u8]) -> Option<Hold<'_>> {
        match self {
            Holders::Few(list) => list.get(find(list, owner).ok()?).map(Held::view),
            Holders::Many(many) => many.get(owner),
        }
    }

    /// All holds: of a few in the order of their owners, of many in the order in which they end.
    pub fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let (few, many) = match self {
            Holders::Few(list) => (Some(list), None),
            Holders::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().map(Held::view);
        few.chain(many.into_iter().flat_map(|many| many.iter()))
    }

    /// The first deadline and whose it is.
    pub fn earliest(&self) -> Option<(Millis, &[u8])> {
        match self {
            Holders::Few(list) => {
                let first = list.iter().min_by_key(|held| held.kept.deadline)?;
                Some((first.kept.deadline, &first.owner))
            }
            Holders::Many(many) => {
                let (at, _, owner) = many.by_deadline.first()?;
                Some((*at, owner))
            }
        }
    }

    /// The hold whose lease ends last.
    pub fn last(&self) -> Option<Hold<'_>> {
        match self {
            Holders::Few(list) => {
                let last = list.iter().max_by_key(|held| held.kept.deadline)?;
                Some(last.view())
            }
            Holders::Many(many) => many.get(&many.by_deadline.last()?.2),
        }
    }

    /// The last deadline.
    pub fn latest(&self) -> Option<Millis> {
        match self {
            Holders::Few(list) => list.iter().map(|held| held.kept.deadline).max(),
            Holders::Many(many) => many.by_deadline.last().map(|(at, ..)| *at),
        }
    }

    /// How many leases have not run out. Takes time by the number of those that have, which are soon taken out.
    pub fn live(&self, now: Millis) -> usize {
        let ended = match self {
            Holders::Few(list) => list.iter().filter(|held| held.kept.deadline <= now).count(),
            Holders::Many(many) => {
                let ended = many.by_deadline.iter();
                ended.take_while(|(at, ..)| *at <= now).count()
            }
        };
        self.len() - ended
    }

    /// The strictest limit of all.
    pub fn strictest(&self) -> Option<Limit> {
        match self {
            Holders::Few(list) => list.iter().map(|held| held.kept.limit).min(),
            Holders::Many(many) => many.by_limit.first_key_value().map(|(limit, _)| *limit),
        }
    }

    /// The strictest limit when one holder with `mine` is left out.
    pub fn strictest_beside(&self, mine: Limit) -> Option<Limit> {
        match self {
            Holders::Few(list) => {
                let left_out = list.iter().position(|held| held.kept.limit == mine);
                let others = list
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| Some(*at) != left_out);
                others.map(|(_, held)| held.kept.limit).min()
            }
            Holders::Many(many) => {
                let counted =
                    |(limit, count): &(&Limit, &usize)| **count > usize::from(**limit == mine);
                many.by_limit.iter().find(counted).map(|(limit, _)| *limit)
            }
        }
    }

    /// Makes this owner's hold exactly this one.
    pub fn put(&mut self, hold: &Hold) {
        let kept = Kept {
            token: hold.token,
            deadline: hold.deadline,
            holds: hold.holds,
            limit: hold.limit,
            client: hold.client,
        };
        match self {
            Holders::Few(list) => match find(list, hold.owner) {
                Ok(at) => {
                    if let Some(held) = list.get_mut(at) {
                        held.kept = kept;
                    }
                }
                Err(at) => {
                    let owner = Arc::from(hold.owner);
                    list.reserve_exact(1);
                    list.insert(at, Held { owner, kept });
                    self.spread();
                }
            },
            Holders::Many(many) => {
                let owner = many.remove(hold.owner);
                many.put(owner.unwrap_or_else(|| Arc::from(hold.owner)), kept);
            }
        }
    }

    /// Takes the only hold out, if it is held under this token.
    pub fn remove_only(&mut self, token: Token) {
        if let Holders::Few(list) = self {
            if matches!(list.as_slice(), [only] if only.kept.token == token) {
                list.clear();
            }
        }
    }

    /// Takes an owner's hold out.
    pub fn remove(&mut self, owner: &[u8]) {
        match self {
            Holders::Few(list) => {
                if let Ok(at) = find(list, owner) {
                    list.remove(at);
                }
            }
            Holders::Many(many) => {
                many.remove(owner);
                self.gather();
            }
        }
    }

    /// Roughly the memory that they take, in bytes.
    pub fn bytes(&self) -> usize {
        let each = match self {
            Holders::Few(_) => std::mem::size_of::<Held>() + 16,
            // In three maps, of whose nodes half is air.
            Holders::Many(_) => 200,
        };
        self.iter().map(|hold| each + hold.owner.len()).sum()
    }

    /// From a list to maps once there are too many for it.
    fn spread(&mut self) {
        let Holders::Few(list) = self else { return };
        if list.len() <= FEW {
            return;
        }
        let mut many = Box::<Many>::default();
        for held in std::mem::take(list) {
            many.put(held.owner, held.kept);
        }
        *self = Holders::Many(many);
    }

    /// Back to a list once they are few again: half as many, so that one that comes and goes does not cost a move each time.
    fn gather(&mut self) {
        let Holders::Many(many) = self else { return };
        if many.by_owner.len() > FEW / 2 {
            return;
        }
        let mut list: Vec<Held> = many.drain().collect();
        list.sort_unstable_by(|one, other| one.owner.cmp(&other.owner));
        *self = Holders::Few(list);
    }
}

impl Held {
    fn view(&self) -> Hold<'_> {
        view((&self.owner, &self.kept))
    }
}

impl Many {
    fn get(&self, owner: &[u8]) -> Option<Hold<'_>> {
        self.by_owner.get_key_value(owner).map(view)
    }

    fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let owners = self.by_deadline.iter().map(|(.., owner)| owner);
        owners.filter_map(|owner| self.get(owner))
    }

    fn drain(&mut self) -> impl Iterator<Item = Held> + '_ {
        let owners = std::mem::take(&mut self.by_deadline).into_iter();
        owners.filter_map(|(.., owner)| {
            let (owner, kept) = self.by_owner.remove(&owner)?;
            Some(Held { owner, kept })
        })
    }

    fn put(&mut self, owner: Arc<[u8]>, kept: Kept) {
        self.by_deadline
            .insert((kept.deadline, kept.token, owner.clone()));
        *self.by_limit.entry(kept.limit).or_default() += 1;
        self.by_owner.insert(owner, kept);
    }

    /// Takes an owner's hold out; gives the owner back for further use.
    fn remove(&mut self, owner: &[u8]) -> Option<Arc<[u8]>> {
        let (owner, kept) = self.by_owner.remove(owner)?;
        let dated = (kept.deadline, kept.token, owner);
        self.by_deadline.remove(&dated);
        if let Some(count) = self.by_limit.get_mut(&kept.limit) {
            *count -= 1;
            if *count == 0 {
                self.by_limit.remove(&kept.limit);
            }
        }
        Some(dated.2)
    }
}

/// Where an owner stands in a list, or would.
fn find(list: &[Held], owner: &[u8]) -> Result<usize, usize> {
    list.binary_search_by(|held| (*held.owner).cmp(owner))
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
