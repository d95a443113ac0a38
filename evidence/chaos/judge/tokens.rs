//! Tokens rise with every grant, and none is given twice.

use std::collections::{HashMap, HashSet};

use crate::history::Belief;

/// Counts the grants of a lock with a lower token than one that had arrived before their request, and the tokens of two grants.
pub fn disorder(beliefs: &[Belief]) -> (usize, usize) {
    let mut locks: HashMap<&str, Vec<&Belief>> = HashMap::new();
    for belief in beliefs {
        locks.entry(&belief.lock).or_default().push(belief);
    }
    let mut fallen = 0;
    let mut twice = 0;
    for beliefs in locks.values_mut() {
        let mut seen = HashSet::new();
        twice += beliefs
            .iter()
            .filter(|belief| !seen.insert(belief.token))
            .count();
        fallen += fallen_of(beliefs);
    }
    (fallen, twice)
}

fn fallen_of(beliefs: &mut [&Belief]) -> usize {
    let mut arrivals: Vec<&Belief> = beliefs.to_vec();
    arrivals.sort_by_key(|belief| belief.from);
    beliefs.sort_by_key(|belief| belief.asked);
    let mut arrivals = arrivals.into_iter().peekable();
    let mut highest = 0;
    let mut fallen = 0;
    for belief in beliefs {
        while let Some(before) = arrivals.next_if(|before| before.from < belief.asked) {
            highest = highest.max(before.token);
        }
        fallen += usize::from(belief.token < highest);
    }
    fallen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SECOND;
    use crate::judge::planted::belief;

    #[test]
    fn rising_tokens_are_right() {
        let beliefs = [belief("k", "a", 1, 0, 1), belief("k", "b", 2, 2, 3)];
        assert_eq!(disorder(&beliefs), (0, 0));
    }

    #[test]
    fn a_token_that_fell_is_found() {
        let beliefs = [
            belief("k", "a", 5, 0, 1),
            belief("k", "b", 4, 2, 3),
            belief("k", "c", 6, 4, 5),
        ];
        assert_eq!(disorder(&beliefs), (1, 0));
    }

    #[test]
    fn requests_that_were_under_way_together_may_be_answered_in_any_order() {
        let mut later = belief("k", "b", 4, 2, 3);
        later.asked = 0;
        let mut first = belief("k", "a", 5, 1, 2);
        first.asked = SECOND / 2;
        assert_eq!(disorder(&[first, later]), (0, 0));
    }

    #[test]
    fn a_token_that_came_twice_is_found() {
        let beliefs = [belief("k", "a", 1, 0, 1), belief("k", "b", 1, 2, 3)];
        assert_eq!(disorder(&beliefs), (0, 1));
    }

    #[test]
    fn other_locks_have_their_own_order() {
        let beliefs = [belief("k", "a", 5, 0, 1), belief("l", "b", 4, 2, 3)];
        assert_eq!(disorder(&beliefs), (0, 0));
    }
}
