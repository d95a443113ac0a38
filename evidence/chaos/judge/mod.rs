//! The faults in a history. Each rule is a file; each has tests in which it catches a planted fault.

mod calm;
mod fifo;
mod hung;
mod late;
mod quarantine;
mod silence;
mod tokens;
mod wakeups;

use dlock_harness::belief::overlap;
use serde::{Deserialize, Serialize};

use crate::history::{End, History};

/// The judge's findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Faults or moves.
    pub rounds: usize,
    /// Rounds after which the servers did not agree again within a minute.
    pub apart: usize,
    /// Rounds after which another server was primary.
    pub promotions: usize,
    pub grants: usize,
    /// Seconds in which more owners believed that they held a lock than each of them allows, over all locks.
    pub overlap_s: f64,
    /// The number of these times.
    pub overlaps: usize,
    /// Later grants of one lock with a lower token.
    pub tokens_fallen: usize,
    /// Tokens of two grants.
    pub tokens_twice: usize,
    /// Grants whose owner learned, before its lease was over, that it held nothing.
    pub grants_lost: usize,
    /// Writes by GUARD.
    pub writes: usize,
    /// Writes that landed after their hold, or after one with a later token.
    pub writes_late: usize,
    /// Locks whose written lists could not be read at the end.
    pub logs_unread: usize,
    /// Waits during which the lock was free.
    pub wakeups_lost: usize,
    /// Tickets that were granted the lock.
    pub tickets: usize,
    /// Tickets that were served after one that had come later.
    pub overtaken: usize,
    /// Counts that a server still had at the end: `name of the server: gauge = value`.
    pub left: Vec<String>,
    /// Servers that died by themselves.
    pub died: Vec<String>,
    /// The longest time without a grant in each round, in seconds, shortest first.
    pub silences_s: Vec<f64>,
    /// Calls that got no answer within their bound.
    pub unanswered: usize,
    /// Unanswered calls that no silent server excuses.
    pub hung: usize,
    /// Grants by a new primary within its quarantine.
    #[serde(default, skip_serializing_if = "is_none")]
    pub early: usize,
}

/// Returns true for zero: figures from before this was counted stay unchanged.
fn is_none(count: &usize) -> bool {
    *count == 0
}

impl Verdict {
    /// Adds the findings of another run.
    pub fn add(&mut self, other: Verdict) {
        let Verdict {
            rounds,
            apart,
            promotions,
            grants,
            overlap_s,
            overlaps,
            tokens_fallen,
            tokens_twice,
            grants_lost,
            writes,
            writes_late,
            logs_unread,
            wakeups_lost,
            tickets,
            overtaken,
            left,
            died,
            silences_s,
            unanswered,
            hung,
            early,
        } = other;
        for (sum, one) in [
            (&mut self.rounds, rounds),
            (&mut self.apart, apart),
            (&mut self.promotions, promotions),
            (&mut self.grants, grants),
            (&mut self.overlaps, overlaps),
            (&mut self.tokens_fallen, tokens_fallen),
            (&mut self.tokens_twice, tokens_twice),
            (&mut self.grants_lost, grants_lost),
            (&mut self.writes, writes),
            (&mut self.writes_late, writes_late),
            (&mut self.logs_unread, logs_unread),
            (&mut self.wakeups_lost, wakeups_lost),
            (&mut self.tickets, tickets),
            (&mut self.overtaken, overtaken),
            (&mut self.unanswered, unanswered),
            (&mut self.hung, hung),
            (&mut self.early, early),
        ] {
            *sum += one;
        }
        self.overlap_s += overlap_s;
        self.left.extend(left);
        self.died.extend(died);
        self.silences_s.extend(silences_s);
        self.silences_s.sort_by(f64::total_cmp);
    }

    /// Returns the faults that must never happen, under any fault and setting; preventing overlaps and lost grants is the
    /// setting's task.
    pub fn never(&self) -> Vec<String> {
        let counts = [
            ("tokens fell", self.tokens_fallen),
            ("tokens came twice", self.tokens_twice),
            ("guarded writes landed late", self.writes_late),
            ("locks' writes could not be read", self.logs_unread),
            ("wake-ups were lost", self.wakeups_lost),
            ("tickets were overtaken", self.overtaken),
            ("calls hung", self.hung),
            ("times the servers did not find together", self.apart),
        ];
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let mut found: Vec<String> = counts.map(|(what, n)| format!("{n} {what}")).collect();
        found.extend(
            self.left
                .iter()
                .map(|left| format!("left at the end: {left}")),
        );
        found.extend(
            self.died
                .iter()
                .map(|name| format!("a server died: {name}")),
        );
        if self.grants == 0 {
            found.push("there were no grants at all".into());
        }
        found
    }
}

/// Judges a history of servers with this quarantine.
pub fn judge(history: &History, quarantine_ms: u64) -> Verdict {
    let overlap = overlap(&history.beliefs);
    let (tokens_fallen, tokens_twice) = tokens::disorder(&history.beliefs);
    Verdict {
        rounds: history.rounds.len(),
        apart: history.rounds.iter().filter(|round| !round.healed).count(),
        promotions: history.rounds.iter().filter(|round| round.promoted).count(),
        grants: history.beliefs.len(),
        overlap_s: seconds(overlap.total),
        overlaps: overlap.times,
        tokens_fallen,
        tokens_twice,
        grants_lost: (history.beliefs.iter())
            .filter(|belief| belief.end == End::Lost)
            .count(),
        writes: history.writes.iter().filter(|write| write.done).count(),
        writes_late: late::late(&history.writes) + late::out_of_order(&history.logs),
        logs_unread: late::unread(&history.writes, &history.logs),
        wakeups_lost: wakeups::lost(history),
        tickets: (history.tickets.iter())
            .filter(|ticket| ticket.token.is_some())
            .count(),
        overtaken: fifo::overtaken(&history.tickets, &history.rounds),
        left: (history.left.iter())
            .filter(|left| left.value > 0)
            .map(|left| format!("{}: {} = {}", left.server, left.gauge, left.value))
            .collect(),
        died: history.died.clone(),
        silences_s: silence::longest(history).into_iter().map(seconds).collect(),
        unanswered: history.unanswered.len(),
        hung: hung::hung(&history.unanswered, &history.rounds),
        early: quarantine::early(&history.beliefs, &history.rounds, quarantine_ms),
    }
}

fn seconds(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

/// Histories with a fault, for the rules' tests and the run's own controls; in seconds.
pub mod planted {
    use crate::history::*;

    pub fn belief(lock: &str, owner: &str, token: u64, from: u64, until: u64) -> Belief {
        Belief {
            token,
            ..Belief::new(lock, owner, from * SECOND, until * SECOND)
        }
    }

    pub fn round(from: u64, calm: u64) -> Round {
        Round {
            name: "kill".into(),
            from: from * SECOND,
            calm: calm * SECOND,
            lossy: true,
            silent: false,
            promoted: true,
            healed: true,
            new: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::planted::belief;
    use super::*;
    use crate::history::{Left, Unanswered};

    fn judged(history: &History) -> Verdict {
        judge(history, 0)
    }

    fn peaceful() -> History {
        History {
            beliefs: vec![belief("k", "a", 1, 0, 1)],
            ..History::default()
        }
    }

    #[test]
    fn a_peaceful_history_has_nothing_against_it() {
        assert_eq!(judged(&peaceful()).never(), Vec::<String>::new());
    }

    #[test]
    fn a_history_without_grants_proves_nothing() {
        assert_eq!(judged(&History::default()).never().len(), 1);
    }

    #[test]
    fn a_dead_server_is_found() {
        let mut history = peaceful();
        history.died.push("7001".into());
        assert_eq!(judged(&history).never(), ["a server died: 7001"]);
    }

    #[test]
    fn servers_that_stay_apart_are_found() {
        let mut history = peaceful();
        history.rounds.push(super::planted::round(2, 3));
        assert_eq!(judged(&history).apart, 0);
        history.rounds[0].healed = false;
        assert_eq!(judged(&history).never().len(), 1);
    }

    #[test]
    fn a_gauge_that_stays_up_is_found() {
        let mut history = peaceful();
        for value in [0, 2] {
            history.left.push(Left {
                server: "7001".into(),
                gauge: "held".into(),
                value,
            });
        }
        assert_eq!(
            judged(&history).never(),
            ["left at the end: 7001: held = 2"]
        );
    }

    #[test]
    fn a_lost_grant_is_counted() {
        let mut history = peaceful();
        history.beliefs[0].end = End::Unconfirmed;
        assert_eq!(judged(&history).grants_lost, 0);
        history.beliefs[0].end = End::Lost;
        assert_eq!(judged(&history).grants_lost, 1);
    }

    #[test]
    fn calls_without_an_answer_are_counted() {
        let mut history = peaceful();
        history.unanswered.push(Unanswered {
            command: "DLOCK.ACQUIRE".into(),
            from: 0,
            until: 1,
        });
        assert_eq!(judged(&history).unanswered, 1);
        assert_eq!(judged(&history).never(), ["1 calls hung"]);
    }
}
