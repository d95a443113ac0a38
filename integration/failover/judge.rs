//! What the workers saw.

use std::time::{Duration, Instant};

use crate::workers::{Belief, LOCKS};

/// What was seen of a failover.
pub struct Seen {
    /// Owners that were let in while another one believed in the same lock.
    pub twice: usize,
    /// For how long they were together.
    pub together: Duration,
    /// From the primary's death to the first grant after it.
    pub gap: Duration,
}

/// Reads it from what they believed.
pub fn judge(beliefs: Vec<Belief>, died: Instant) -> Seen {
    let (mut twice, mut together) = (0, Duration::ZERO);
    for lock in 0..LOCKS {
        let mut of_it: Vec<&Belief> = beliefs
            .iter()
            .filter(|belief| belief.lock == lock)
            .collect();
        of_it.sort_by_key(|belief| belief.from);
        let mut busy: Option<&Belief> = None;
        for belief in of_it {
            if let Some(before) =
                busy.filter(|before| before.until > belief.from && before.worker != belief.worker)
            {
                twice += 1;
                together += before.until.min(belief.until) - belief.from;
            }
            if busy.is_none_or(|before| before.until < belief.until) {
                busy = Some(belief);
            }
        }
    }
    let after = beliefs
        .iter()
        .map(|belief| belief.from)
        .filter(|from| *from > died);
    Seen {
        twice,
        together,
        gap: after.min().map_or(Duration::MAX, |first| first - died),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(worker: usize, began: Instant, from: u64, until: u64) -> Belief {
        let at = |ms| began + Duration::from_millis(ms);
        Belief {
            lock: 0,
            worker,
            from: at(from),
            until: at(until),
        }
    }

    #[test]
    fn two_owners_are_seen_and_one_after_the_other_is_not() {
        let began = Instant::now();
        let died = began + Duration::from_millis(5);
        let in_turn = vec![
            belief(1, began, 0, 10),
            belief(2, began, 10, 20),
            belief(1, began, 20, 30),
        ];
        let seen = judge(in_turn.clone(), died);
        assert_eq!((seen.twice, seen.gap), (0, Duration::from_millis(5)));
        let beside = [in_turn, vec![belief(3, began, 15, 25)]].concat();
        let seen = judge(beside, died);
        assert_eq!((seen.twice, seen.together), (2, Duration::from_millis(10)));
    }
}
