//! A new primary grants nothing before its quarantine is over.

use crate::history::{Belief, Micros, Round, SECOND};

/// A promotion is noticed so much later than it happens: Sentinels ask once a second and tell each other every two.
const NOTICED: Micros = 5 * SECOND;

/// Grants by new primaries within their quarantine.
pub fn early(beliefs: &[Belief], rounds: &[Round], quarantine_ms: u64) -> usize {
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
        let mut promotion = round(10, 40);
        promotion.new = Some((15 * SECOND, 7));
        let found = |at: u64, server: u16| {
            let grant = Belief {
                server,
                ..belief("k", "a", 1, at, at + 1)
            };
            early(&[grant], &[promotion.clone()], 13_000)
        };
        assert_eq!(found(16, 7), 1);
        assert_eq!(found(16, 8), 0);
        assert_eq!(found(28, 7), 0);
        assert_eq!(found(9, 7), 0);
    }
}
