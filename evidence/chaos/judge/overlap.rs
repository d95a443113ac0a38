//! More owners than each of them allows.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Belief, Micros};

/// Returns how long, over all locks, more owners believed in a lock than one of them allowed, and how often that began.
pub fn overlap(beliefs: &[Belief]) -> (Micros, usize) {
    let mut locks: HashMap<&str, Vec<&Belief>> = HashMap::new();
    for belief in beliefs {
        locks.entry(&belief.lock).or_default().push(belief);
    }
    let each = locks.values().map(|beliefs| of_one_lock(beliefs));
    each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn of_one_lock(beliefs: &[&Belief]) -> (Micros, usize) {
    // At each instant of a change: the ends first, since an owner that takes over does not overlap with the one before.
    let mut changes: BTreeMap<(Micros, bool), Vec<usize>> = BTreeMap::new();
    for (index, belief) in beliefs.iter().enumerate() {
        if belief.from < belief.until {
            changes.entry((belief.from, true)).or_default().push(index);
            changes
                .entry((belief.until, false))
                .or_default()
                .push(index);
        }
    }
    let (mut total, mut times) = (0, 0);
    let mut holders: Vec<usize> = Vec::new();
    let mut broken_since = None;
    for ((at, begins), indexes) in changes {
        if begins {
            holders.extend(indexes);
        } else {
            holders.retain(|index| !indexes.contains(index));
        }
        let broken = too_many(holders.iter().map(|index| beliefs[*index]));
        match (broken, broken_since) {
            (true, None) => {
                broken_since = Some(at);
            }
            (false, Some(since)) => {
                total += at - since;
                times += usize::from(at > since);
                broken_since = None;
            }
            _ => {}
        }
    }
    (total, times)
}

fn too_many<'a>(holders: impl Iterator<Item = &'a Belief>) -> bool {
    let mut owners = std::collections::HashSet::new();
    let mut strictest = u64::MAX;
    for holder in holders {
        owners.insert(&holder.owner);
        if holder.limit > 0 {
            strictest = strictest.min(holder.limit);
        }
    }
    owners.len() as u64 > strictest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SECOND;
    use crate::judge::planted::belief;

    #[test]
    fn two_owners_at_once_are_found_and_measured() {
        let beliefs = [belief("k", "a", 1, 0, 10), belief("k", "b", 2, 7, 12)];
        assert_eq!(overlap(&beliefs), (3 * SECOND, 1));
    }

    #[test]
    fn one_inside_the_other_and_twice() {
        let beliefs = [
            belief("k", "a", 1, 0, 10),
            belief("k", "b", 2, 2, 3),
            belief("k", "c", 3, 5, 6),
        ];
        assert_eq!(overlap(&beliefs), (2 * SECOND, 2));
    }

    #[test]
    fn one_after_the_other_is_right() {
        let beliefs = [belief("k", "a", 1, 0, 10), belief("k", "b", 2, 10, 12)];
        assert_eq!(overlap(&beliefs), (0, 0));
    }

    #[test]
    fn locks_are_looked_at_one_by_one() {
        let beliefs = [belief("k", "a", 1, 0, 10), belief("l", "b", 2, 7, 12)];
        assert_eq!(overlap(&beliefs), (0, 0));
    }

    #[test]
    fn a_semaphore_takes_as_many_as_its_limit() {
        let mut beliefs = vec![
            belief("k", "a", 1, 0, 10),
            belief("k", "b", 2, 0, 10),
            belief("k", "c", 3, 4, 6),
        ];
        for belief in &mut beliefs {
            belief.limit = 3;
        }
        assert_eq!(overlap(&beliefs), (0, 0));
        beliefs[1].limit = 2;
        assert_eq!(overlap(&beliefs), (2 * SECOND, 1));
    }

    #[test]
    fn readers_share_but_not_with_a_writer() {
        let mut beliefs = vec![belief("k", "a", 1, 0, 10), belief("k", "b", 2, 0, 10)];
        for belief in &mut beliefs {
            belief.limit = 0;
        }
        assert_eq!(overlap(&beliefs), (0, 0));
        beliefs.push(belief("k", "writer", 3, 9, 11));
        assert_eq!(overlap(&beliefs), (SECOND, 1));
    }
}
