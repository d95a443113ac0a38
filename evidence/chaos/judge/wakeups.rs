//! No client waits for a free lock, and none for one that nobody has beyond the bound after its program has hung or died.

use std::collections::HashMap;

use super::calm::{calm, without};
use crate::history::{History, Micros, SECOND};

/// How long a client may wait for a lock in which no owner believes. The hand-over takes microseconds, but on a busy machine the
/// new owner's answer, its confirmation and its process take longer.
const ALLOWED: Micros = 3 * SECOND;

/// Counts the waits in a calm time during which no owner believed in the lock for longer than allowed.
pub fn lost(history: &History) -> usize {
    let mut held: HashMap<&str, Vec<(Micros, Micros)>> = HashMap::new();
    for belief in &history.beliefs {
        // From the request on: between the grant and the belief the lock is also taken.
        let from = belief.from.saturating_sub(SECOND / 2);
        held.entry(&belief.lock)
            .or_default()
            .push((from, belief.until));
    }
    for absence in &history.absences {
        held.entry(&absence.lock)
            .or_default()
            .push((absence.from, absence.until));
    }
    let is_lost = |wait: &&crate::history::Wait| {
        let taken = held.get(wait.lock.as_str()).cloned().unwrap_or_default();
        let calm = calm(wait.from, wait.until, &history.rounds);
        calm.into_iter()
            .flat_map(|(from, until)| without(from, until, taken.clone()))
            .any(|(from, until)| until - from > ALLOWED)
    };
    history.waits.iter().filter(is_lost).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Wait;
    use crate::judge::planted::{belief, round};

    fn waits(from: u64, until: u64) -> History {
        History {
            waits: vec![Wait {
                lock: "k".into(),
                owner: "w".into(),
                from: from * SECOND,
                until: until * SECOND,
            }],
            ..History::default()
        }
    }

    #[test]
    fn a_wait_for_a_free_lock_is_found() {
        let mut history = waits(0, 10);
        history.beliefs = vec![belief("k", "a", 1, 0, 3), belief("l", "b", 2, 3, 10)];
        assert_eq!(lost(&history), 1);
    }

    #[test]
    fn a_wait_behind_others_is_right() {
        let mut history = waits(0, 10);
        history.beliefs = vec![belief("k", "a", 1, 0, 5), belief("k", "b", 2, 6, 10)];
        assert_eq!(lost(&history), 0);
    }

    #[test]
    fn a_program_that_is_not_there_excuses_up_to_its_bound() {
        let mut history = waits(0, 10);
        let absence = |until: u64| crate::history::Absence {
            lock: "k".into(),
            from: 0,
            until: until * SECOND,
        };
        history.absences = vec![absence(9)];
        assert_eq!(lost(&history), 0);
        history.absences = vec![absence(5)];
        assert_eq!(lost(&history), 1);
    }

    #[test]
    fn what_happens_under_a_fault_is_not_counted() {
        let mut history = waits(0, 10);
        history.rounds = vec![round(1, 9)];
        assert_eq!(lost(&history), 0);
        history.rounds = vec![round(1, 5)];
        assert_eq!(lost(&history), 1);
    }
}
