//! A new primary grants nothing before its quarantine is over.

use crate::history::{Belief, Micros, Round, SECOND};

/// How much later a promotion is noticed than it happens: Sentinels ask once a second and inform each other every two.
const NOTICED: Micros = 5 * SECOND;

/// Counts grants by new primaries within their quarantine. The allowance excuses a promotion that is noticed late.
pub fn early(beliefs: &[Belief], rounds: &[Round], quarantine_ms: u64) -> usize {
    if quarantine_ms == 0 {
        return 0;
    }
    let of_round = |round: &Round| {
        let Some((noticed, new)) = round.new else {
            return 0;
        };
        let over = (noticed + quarantine_ms * 1_000).saturating_sub(NOTICED);
        let of_new = beliefs.iter().filter(|belief| belief.server == new);
        of_new
            .filter(|belief| belief.asked > round.from && belief.from < over)
            .count()
    };
    rounds.iter().map(of_round).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::planted::{belief, round};

    #[test]
    fn only_a_grant_by_the_new_primary_in_its_quarantine_is_found() {
        let found = |noticed: u64, at: u64, server: u16, quarantine_ms: u64| {
            let mut promotion = round(10, 40);
            promotion.new = Some((noticed * SECOND, 7));
            let grant = Belief {
                server,
                ..belief("k", "a", 1, at, at + 1)
            };
            early(&[grant], &[promotion], quarantine_ms)
        };
        assert_eq!(found(15, 16, 7, 13_000), 1);
        assert_eq!(found(15, 16, 8, 13_000), 0);
        assert_eq!(found(15, 28, 7, 13_000), 0);
        assert_eq!(found(15, 9, 7, 13_000), 0);
        assert_eq!(found(22, 16, 7, 13_000), 1);
        assert_eq!(found(22, 16, 7, 0), 0);
    }
}
