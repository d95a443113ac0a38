//! The times without faults.

use crate::history::{Micros, Round};

/// Returns the parts of `from..until` outside all rounds.
pub fn calm(from: Micros, until: Micros, rounds: &[Round]) -> Vec<(Micros, Micros)> {
    let rounds = rounds.iter().map(|round| (round.from, round.calm));
    without(from, until, rounds.collect())
}

/// Returns the parts of `from..until` outside all `taken`.
pub fn without(
    from: Micros,
    until: Micros,
    mut taken: Vec<(Micros, Micros)>,
) -> Vec<(Micros, Micros)> {
    taken.sort_unstable();
    let mut left = Vec::new();
    let mut begin = from;
    for (taken_from, taken_until) in taken {
        if taken_from > begin {
            left.push((begin, taken_from.min(until)));
        }
        begin = begin.max(taken_until);
        if begin >= until {
            return left;
        }
    }
    left.push((begin, until));
    left
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn what_is_taken_out_is_gone() {
        assert_eq!(without(0, 10, vec![]), [(0, 10)]);
        assert_eq!(without(0, 10, vec![(2, 3), (5, 20)]), [(0, 2), (3, 5)]);
        assert_eq!(without(4, 10, vec![(2, 5), (3, 6)]), [(6, 10)]);
        assert_eq!(without(4, 10, vec![(0, 20)]), []);
        assert_eq!(without(4, 10, vec![(20, 30)]), [(4, 10)]);
    }
}
