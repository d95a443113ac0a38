//! The holders of one lock: a short list; many are found by owner and by deadline.

use super::Hold;
use crate::types::{ClientId, Limit, Permits, Token, WallMs};
use std::collections::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most holders in a list. Up to here a walk through it is as fast as a map and an ordered set, which would take seven times the
/// memory, and nearly every contended lock has one holder.
const LONGEST_LIST: usize = 8;

/// All holders of a lock.
#[derive(Debug, Clone)]
pub(crate) enum Holders {
    /// Some, in the order of their owners. Those that [`Holders::split_off`] has taken out stand in the order of their deadlines: they
    /// are not searched.
    List(Vec<Holder>),
    /// More than can be kept in a list.
    Indexed(Box<Indexed>),
}

/// One holder. Its owner is shared with `Arc` where it stands in several maps, since a server may free a value on another
/// thread.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    owner: Arc<[u8]>,
    terms: HoldTerms,
}

/// A hold without its owner.
#[derive(Debug, Clone, Copy)]
struct HoldTerms {
    token: Token,
    deadline: WallMs,
    holds: u32,
    limit: Limit,
    permits: Permits,
    client: ClientId,
    fresh: bool,
}

/// Many holders, found by owner and by deadline, with the count of each limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indexed {
    by_owner: HashMap<Arc<[u8]>, HoldTerms>,
    // The token distinguishes leases of one millisecond: a comparison of owners would read the memory of each.
    by_deadline: BTreeSet<(WallMs, Token, Arc<[u8]>)>,
    by_limit: BTreeMap<Limit, usize>,
    permits: u64,
}

impl Default for Holders {
    fn default() -> Self {
        Holders::List(Vec::new())
    }
}

impl Holders {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Holders::List(list) => list.len(),
            Holders::Indexed(many) => many.by_owner.len(),
        }
    }

    /// Returns how many permits they hold.
    pub(crate) fn permits(&self) -> u64 {
        match self {
            Holders::List(list) => list.iter().map(|holder| holder.terms.permits()).sum(),
            Holders::Indexed(many) => many.permits,
        }
    }

    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if they have an index by deadline.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(self, Holders::Indexed(_))
    }

    /// Returns the hold of an owner.
    pub(crate) fn get(&self, owner: &[u8]) -> Option<Hold<'_>> {
        match self {
            Holders::List(list) => list.get(find(list, owner).ok()?).map(Holder::view),
            Holders::Indexed(many) => many.get(owner),
        }
    }

    /// Returns all holds: of a few in the order of their owners, of many in the order in which they end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let (few, many) = match self {
            Holders::List(list) => (Some(list), None),
            Holders::Indexed(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().map(Holder::view);
        few.chain(many.into_iter().flat_map(|many| many.iter()))
    }

    /// Returns the hold whose lease ends first.
    pub(crate) fn first(&self) -> Option<Hold<'_>> {
        match self {
            Holders::List(list) => {
                let first = list.iter().min_by_key(|holder| holder.terms.deadline)?;
                Some(first.view())
            }
            Holders::Indexed(many) => many.get(&many.by_deadline.first()?.2),
        }
    }

    /// Returns the hold whose lease ends last.
    pub(crate) fn last(&self) -> Option<Hold<'_>> {
        match self {
            Holders::List(list) => {
                let last = list.iter().max_by_key(|holder| holder.terms.deadline)?;
                Some(last.view())
            }
            Holders::Indexed(many) => many.get(&many.by_deadline.last()?.2),
        }
    }

    /// Returns how many leases have not run out. Of many holders it counts those that have, which are soon removed.
    pub(crate) fn live(&self, now: WallMs) -> usize {
        let ended = match self {
            Holders::List(list) => list
                .iter()
                .filter(|holder| holder.terms.deadline <= now)
                .count(),
            Holders::Indexed(many) => {
                let ended = many.by_deadline.iter();
                ended.take_while(|(at, ..)| *at <= now).count()
            }
        };
        self.len() - ended
    }

    /// Returns the strictest limit of all.
    pub(crate) fn strictest(&self) -> Option<Limit> {
        match self {
            Holders::List(list) => list.iter().map(|holder| holder.terms.limit).min(),
            Holders::Indexed(many) => many.by_limit.first_key_value().map(|(limit, _)| *limit),
        }
    }

    /// Sets an owner's hold.
    pub(crate) fn put(&mut self, hold: &Hold) {
        let terms = HoldTerms {
            token: hold.token,
            deadline: hold.deadline,
            holds: hold.holds,
            limit: hold.limit,
            permits: hold.permits,
            client: hold.client,
            fresh: hold.fresh,
        };
        match self {
            Holders::List(list) => match find(list, hold.owner) {
                Ok(at) => {
                    if let Some(holder) = list.get_mut(at) {
                        holder.terms = terms;
                    }
                }
                Err(at) => {
                    let owner = Arc::from(hold.owner);
                    list.reserve_exact(1);
                    list.insert(at, Holder { owner, terms });
                    self.spread();
                }
            },
            Holders::Indexed(many) => {
                let owner = many.remove(hold.owner);
                many.put(owner.unwrap_or_else(|| Arc::from(hold.owner)), terms);
            }
        }
    }

    /// Removes the only hold, if it has this token.
    pub(crate) fn remove_only(&mut self, token: Token) {
        if let Holders::List(list) = self {
            if matches!(list.as_slice(), [only] if only.terms.token == token) {
                list.clear();
            }
        }
    }

    /// Removes an owner's hold.
    pub(crate) fn remove(&mut self, owner: &[u8]) {
        match self {
            Holders::List(list) => {
                if let Ok(at) = find(list, owner) {
                    list.remove(at);
                }
            }
            Holders::Indexed(many) => {
                many.remove(owner);
                self.gather();
            }
        }
    }

    /// Returns owner, token and deadline of each hold, in the order of `iter`. Of many holders it reads only the index of their
    /// deadlines.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&[u8], Token, WallMs)> {
        let (few, many) = match self {
            Holders::List(list) => (Some(list), None),
            Holders::Indexed(many) => (None, Some(&many.by_deadline)),
        };
        let few = few.into_iter().flatten();
        let few = few.map(|holder| (&*holder.owner, holder.terms.token, holder.terms.deadline));
        let many = many.into_iter().flatten();
        few.chain(many.map(|(deadline, token, owner)| (&**owner, *token, *deadline)))
    }

    /// Takes out the holders whose leases end by `until`, in the order in which they end. If these are all of many, none is moved.
    pub(crate) fn split_off(&mut self, until: WallMs) -> Holders {
        let ended = match self {
            Holders::Indexed(_) if self.last().is_none_or(|hold| hold.deadline <= until) => {
                return std::mem::take(self)
            }
            Holders::List(list) => {
                let (mut ended, left): (Vec<_>, _) = std::mem::take(list)
                    .into_iter()
                    .partition(|holder| holder.terms.deadline <= until);
                ended.sort_by_key(|holder| holder.terms.deadline);
                *list = left;
                ended
            }
            Holders::Indexed(many) => many.split_off(until),
        };
        self.gather();
        Holders::List(ended)
    }

    /// Frees one holder of a lock that is gone. Returns true if there was one. Permits and limits are no longer right then.
    pub(crate) fn free_one(&mut self) -> bool {
        match self {
            Holders::List(list) => list.pop().is_some(),
            Holders::Indexed(many) => {
                let first = many.by_deadline.pop_first();
                first.is_some_and(|(.., owner)| many.by_owner.remove_entry(&owner).is_some())
            }
        }
    }

    /// Returns roughly the memory that they take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let each = match self {
            Holders::List(_) => std::mem::size_of::<Holder>() + 16,
            // In a map and a set, which are half empty.
            Holders::Indexed(_) => 200,
        };
        self.iter().map(|hold| each + hold.owner.len()).sum()
    }

    /// Moves the holders from a list to indexes once there are too many for it.
    fn spread(&mut self) {
        let Holders::List(list) = self else { return };
        if list.len() <= LONGEST_LIST {
            return;
        }
        let mut many = Box::<Indexed>::default();
        for holder in std::mem::take(list) {
            many.put(holder.owner, holder.terms);
        }
        *self = Holders::Indexed(many);
    }

    /// Moves the holders back to a list once they are few: half as many, so that one that comes and goes does not cost a move each
    /// time.
    fn gather(&mut self) {
        let Holders::Indexed(many) = self else { return };
        if many.by_owner.len() > LONGEST_LIST / 2 {
            return;
        }
        let holders = std::mem::take(&mut many.by_owner).into_iter();
        let mut list: Vec<Holder> = holders
            .map(|(owner, terms)| Holder { owner, terms })
            .collect();
        list.sort_unstable_by(|one, other| one.owner.cmp(&other.owner));
        *self = Holders::List(list);
    }
}

impl HoldTerms {
    fn permits(&self) -> u64 {
        u64::from(self.permits.get())
    }
}

impl Holder {
    fn view(&self) -> Hold<'_> {
        view(&self.owner, &self.terms)
    }
}

impl Indexed {
    fn get(&self, owner: &[u8]) -> Option<Hold<'_>> {
        let (owner, terms) = self.by_owner.get_key_value(owner)?;
        Some(view(owner, terms))
    }

    fn iter(&self) -> impl Iterator<Item = Hold<'_>> {
        let owners = self.by_deadline.iter().map(|(.., owner)| owner);
        owners.filter_map(|owner| self.get(owner))
    }

    /// Takes out the holders whose leases end by `until`, in the order in which they end.
    fn split_off(&mut self, until: WallMs) -> Vec<Holder> {
        let next = (until.after(1), Token(0), Arc::from([].as_slice()));
        let left = self.by_deadline.split_off(&next);
        let mut ended = std::mem::replace(&mut self.by_deadline, left);
        let mut holders = Vec::with_capacity(ended.len());
        while let Some((.., owner)) = ended.pop_first() {
            if let Some((owner, terms)) = self.by_owner.remove_entry(&owner) {
                self.uncount(&terms);
                holders.push(Holder { owner, terms });
            }
        }
        holders
    }

    fn uncount(&mut self, terms: &HoldTerms) {
        self.permits -= terms.permits();
        if let Some(count) = self.by_limit.get_mut(&terms.limit) {
            *count -= 1;
            if *count == 0 {
                self.by_limit.remove(&terms.limit);
            }
        }
    }

    fn put(&mut self, owner: Arc<[u8]>, terms: HoldTerms) {
        self.by_deadline
            .insert((terms.deadline, terms.token, owner.clone()));
        *self.by_limit.entry(terms.limit).or_default() += 1;
        self.permits += terms.permits();
        self.by_owner.insert(owner, terms);
    }

    /// Removes an owner's hold; returns the owner's name for further use.
    fn remove(&mut self, owner: &[u8]) -> Option<Arc<[u8]>> {
        let (owner, terms) = self.by_owner.remove_entry(owner)?;
        let dated = (terms.deadline, terms.token, owner);
        self.by_deadline.remove(&dated);
        self.uncount(&terms);
        Some(dated.2)
    }
}

/// Returns the position of an owner in a list, or where it would be.
fn find(list: &[Holder], owner: &[u8]) -> Result<usize, usize> {
    list.binary_search_by(|holder| (*holder.owner).cmp(owner))
}

fn view<'a>(owner: &'a [u8], terms: &'a HoldTerms) -> Hold<'a> {
    Hold {
        owner,
        token: terms.token,
        deadline: terms.deadline,
        holds: terms.holds,
        limit: terms.limit,
        permits: terms.permits,
        client: terms.client,
        fresh: terms.fresh,
    }
}
