//! Every call is answered: a bad case gets an error, not a hang.

use crate::history::{Round, Unanswered};

/// Counts the calls without an answer within their bound, while every server could answer.
pub fn hung(unanswered: &[Unanswered], rounds: &[Round]) -> usize {
    let excused = |call: &&Unanswered| {
        let mut silent = rounds.iter().filter(|round| round.silent);
        silent.any(|round| call.from < round.calm && call.until > round.from)
    };
    unanswered.iter().filter(|call| !excused(call)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SECOND;
    use crate::judge::planted::round;

    fn call(from: u64, until: u64) -> Unanswered {
        Unanswered {
            command: "DLOCK.ACQUIRE".into(),
            from: from * SECOND,
            until: until * SECOND,
        }
    }

    #[test]
    fn a_call_without_an_answer_is_found() {
        assert_eq!(hung(&[call(0, 12), call(3, 5)], &[]), 2);
    }

    #[test]
    fn only_a_server_that_is_there_and_silent_excuses() {
        let mut round = round(5, 10);
        assert_eq!(hung(&[call(4, 6)], &[round.clone()]), 1);
        round.silent = true;
        assert_eq!(hung(&[call(4, 6), call(9, 12)], &[round.clone()]), 0);
        assert_eq!(hung(&[call(11, 13)], &[round]), 1);
    }
}
