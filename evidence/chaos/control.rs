//! Proof that a run can fail: where two owners must be seen, they are; the effect of a setting is seen; the judge sees planted
//! faults.

use clap::ValueEnum;

use crate::client::{PULSES, REPLICATED};
use crate::fault::Fault;
use crate::history::{Absence, End, History, Left, Log, Ticket, Unanswered, Wait, Write, SECOND};
use crate::judge::planted::{belief, round};
use crate::judge::{judge, Verdict};
use crate::run::{Mode, Plan};
use crate::setting::{Replicas, NOTHING, ONE_REPLICA, RECOMMENDED, WAIT_ONE};

/// An effect that shows in some rounds only has shown after this many.
const OFTEN: usize = 12;

/// A fault of the run itself, which must make it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Planted {
    /// Servers start without the setting.
    NoSetting,
    /// New primaries have no quarantine, though the setting is there before and afterwards.
    NoQuarantine,
    /// The judge sees no two owners in the clients' records.
    BlindJudge,
    /// Clients believe only renewed holds.
    OnlyRenewed,
    /// A replica serves a copy when the schedule asks it for one.
    ServesCopies,
}

impl Plan {
    /// Returns true if this setting breaks a rule so that this fault must show two owners, after this many rounds.
    pub fn must_overlap(&self, rounds: usize) -> bool {
        if self.mode == Mode::Cluster {
            return false;
        }
        if self.setting.mistake.is_some() {
            return true;
        }
        match self.fault {
            // The old primary lives, and continues to grant.
            Fault::Stop | Fault::Stall | Fault::Partition | Fault::ChainedLater => {
                self.setting == NOTHING
            }
            // It has fewer replicas than half, and the setting asks for no more; or it has all that the setting asks for, and a
            // replica is promoted nevertheless.
            Fault::PartitionBeside(beside) => {
                let has_enough = usize::from(beside) >= Replicas::Half.of(self.replicas);
                let goes_on = self.setting == RECOMMENDED && has_enough && rounds >= OFTEN;
                goes_on || (self.setting == ONE_REPLICA && self.replicas == 3 && beside == 1)
            }
            // The one replica that confirmed is not the one that takes over.
            Fault::BriefStop | Fault::WrongChoice => {
                self.setting == WAIT_ONE && self.replicas > 1 && rounds >= OFTEN
            }
            _ => false,
        }
    }

    /// Returns true if a write must have been refused for want of replicas.
    pub fn must_refuse(&self) -> bool {
        let needed = self.setting.to_write.of(self.replicas);
        self.fault.is_cut() && needed > self.fault.beside()
    }

    /// Returns the controls of this cell that should have shown a fault, and do not.
    pub fn failed_controls(&self, history: &History, verdict: &Verdict) -> Vec<String> {
        let mut failed = Vec::new();
        let mut control = |is_well: bool, what: &str| {
            if !is_well {
                failed.push(format!("CONTROL FAILED: {what}"));
            }
        };
        control(
            !self.must_overlap(verdict.rounds) || verdict.overlaps > 0,
            "two owners must be seen under this setting and were not: the judge is blind to them, or the fault does nothing",
        );
        control(
            !self.fault.replaces() || verdict.promotions > 0,
            "no round had another primary: the fault does nothing",
        );
        control(
            verdict.early == 0,
            "a new primary granted within its quarantine: the module has none, or it was not set",
        );
        let setting = &self.setting;
        let is_applied = |of: &crate::history::Applied| {
            let to_write = setting.to_write.of(self.replicas) as u64;
            let has_lag = to_write == 0 || of.max_lag == setting.max_lag;
            let replicas = if setting.confirms { self.replicas } else { 0 };
            of.to_write == to_write
                && has_lag
                && of.quarantine_ms == setting.quarantine_ms
                && of.replicas == replicas as u64
        };
        control(
            !history.settings.is_empty() && history.settings.iter().all(is_applied),
            "a server has other settings than those of the cell: the harness does not apply them",
        );
        let answered = |kind: &str| {
            let mut kinds = history.answers.keys();
            kinds.any(|answer| answer.ends_with(&format!(": {kind}")))
        };
        control(
            !self.must_refuse() || answered("NOREPLICAS"),
            "no write was refused for want of replicas: min-replicas-to-write has no effect",
        );
        control(
            setting.wait == Replicas::None || answered(REPLICATED),
            "no WAIT found its replicas: the clients do not wait",
        );
        for renewed in [false, true] {
            let mut beliefs =
                (history.beliefs.iter()).filter(|belief| !PULSES.contains(&belief.lock.as_str()));
            control(
                beliefs.any(|belief| belief.renewed == renewed && belief.from < belief.until),
                if renewed {
                    "no client believed after a renewal"
                } else {
                    "no client believed at its grant"
                },
            );
        }
        failed
    }
}

type IsSeen = fn(&Verdict) -> bool;

/// Returns histories with one fault each, and whether the judge sees it.
fn wrong() -> Vec<(&'static str, History, IsSeen)> {
    let peaceful = History {
        beliefs: vec![belief("k", "a", 5, 0, 3)],
        ..History::default()
    };
    let with = |change: &dyn Fn(&mut History)| {
        let mut history = peaceful.clone();
        change(&mut history);
        history
    };
    let ticket = |asked: u64, token: u64| Ticket {
        lock: "k".into(),
        owner: token.to_string(),
        asked,
        placed: asked + 1,
        until: 10 * SECOND,
        token: Some(token),
    };
    vec![
        (
            "two owners",
            with(&|history| history.beliefs.push(belief("k", "b", 6, 2, 4))),
            |verdict| verdict.overlaps == 1 && verdict.overlap_s > 0.9,
        ),
        (
            "a token that fell",
            with(&|history| history.beliefs.push(belief("k", "b", 4, 4, 5))),
            |verdict| verdict.tokens_fallen == 1,
        ),
        (
            "a token that came twice",
            with(&|history| history.beliefs.push(belief("k", "b", 5, 4, 5))),
            |verdict| verdict.tokens_twice == 1,
        ),
        (
            "a lost grant",
            with(&|history| history.beliefs[0].end = End::Lost),
            |verdict| verdict.grants_lost == 1,
        ),
        (
            "a late write",
            with(&|history| {
                history.writes.push(Write {
                    lock: "k".into(),
                    token: 5,
                    sent: 11,
                    alive_until: 10,
                    done: true,
                });
                history.logs.push(Log {
                    lock: "k".into(),
                    tokens: vec![5],
                });
            }),
            |verdict| verdict.writes_late == 1,
        ),
        (
            "a lost wake-up",
            with(&|history| {
                history.waits.push(Wait {
                    lock: "k".into(),
                    owner: "w".into(),
                    from: 0,
                    until: 20 * SECOND,
                });
            }),
            |verdict| verdict.wakeups_lost == 1,
        ),
        (
            "a lock that nobody had for too long",
            with(&|history| {
                history.waits.push(Wait {
                    lock: "k".into(),
                    owner: "w".into(),
                    from: 0,
                    until: 20 * SECOND,
                });
                history.absences.push(Absence {
                    lock: "k".into(),
                    from: 3 * SECOND,
                    until: 15 * SECOND,
                });
            }),
            |verdict| verdict.wakeups_lost == 1,
        ),
        (
            "a ticket that was overtaken",
            with(&|history| history.tickets = vec![ticket(0, 9), ticket(5, 8)]),
            |verdict| verdict.overtaken == 1,
        ),
        (
            "a call that hung",
            with(&|history| {
                history.unanswered.push(Unanswered {
                    command: "DLOCK.ACQUIRE".into(),
                    from: 0,
                    until: 1,
                });
            }),
            |verdict| verdict.hung == 1,
        ),
        (
            "a server that died",
            with(&|history| history.died.push("7001".into())),
            |verdict| !verdict.died.is_empty(),
        ),
        (
            "a gauge that stays up",
            with(&|history| {
                history.left.push(Left {
                    server: "7001".into(),
                    gauge: "dlock_locks".into(),
                    value: 1,
                });
            }),
            |verdict| !verdict.left.is_empty(),
        ),
        (
            "a grant in a quarantine",
            with(&|history| {
                let mut promotion = round(10, 40);
                promotion.new = Some((15 * SECOND, 7));
                history.rounds.push(promotion);
                let mut early = belief("k", "b", 6, 16, 17);
                early.server = 7;
                history.beliefs.push(early);
            }),
            |verdict| verdict.early == 1,
        ),
    ]
}

/// Returns the faults that a judge does not see.
pub fn blind_spots(judge: impl Fn(&History, u64) -> Verdict) -> Vec<String> {
    let unseen = wrong()
        .into_iter()
        .filter(|(_, history, is_seen)| !is_seen(&judge(history, 13_000)));
    unseen
        .map(|(what, ..)| format!("CONTROL FAILED: the judge does not see {what}"))
        .collect()
}

/// Returns the verdict of this run's judge on a cell.
pub fn verdict_of(plan: &Plan, history: &History) -> Verdict {
    let mut verdict = judge(history, plan.setting.after_promotion_ms());
    if plan.planted == Some(Planted::BlindJudge) {
        (verdict.overlaps, verdict.overlap_s) = (0, 0.0);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Applied;
    use crate::report::tests::plan;
    use crate::setting::{Setting, WAIT_AND_QUARANTINE};

    /// Returns a history in which all controls of this cell succeed.
    fn convincing(plan: &Plan) -> History {
        let mut promotion = round(10, 40);
        promotion.new = Some((15 * SECOND, 7));
        let mut history = History {
            beliefs: vec![belief("k", "a", 1, 0, 3), belief("k", "b", 2, 4, 5)],
            rounds: vec![promotion],
            settings: vec![Applied {
                server: "7001".into(),
                to_write: plan.setting.to_write.of(plan.replicas) as u64,
                max_lag: plan.setting.max_lag,
                quarantine_ms: plan.setting.quarantine_ms,
                replicas: if plan.setting.confirms {
                    plan.replicas as u64
                } else {
                    0
                },
            }],
            ..History::default()
        };
        history.beliefs[1].renewed = true;
        for kind in ["ACQUIRE: NOREPLICAS", "WAIT: replicated"] {
            history.answers.insert(kind.into(), 1);
        }
        if plan.must_overlap(1) {
            history.beliefs[1].from = 2 * SECOND;
        }
        history
    }

    fn failed(plan: &Plan, history: &History) -> Vec<String> {
        plan.failed_controls(history, &verdict_of(plan, history))
    }

    /// Asserts that exactly one control fails for this fault, and returns its text.
    #[track_caller]
    fn caught(fault: Fault, setting: Setting, change: impl Fn(&mut Plan, &mut History)) -> String {
        let mut plan = plan(fault, setting);
        let mut history = convincing(&plan);
        assert_eq!(failed(&plan, &history), Vec::<String>::new());
        change(&mut plan, &mut history);
        let mut failed = failed(&plan, &history);
        assert_eq!(failed.len(), 1, "{failed:?}");
        failed.remove(0)
    }

    #[test]
    fn the_judge_sees_all_that_is_planted() {
        assert_eq!(blind_spots(judge), Vec::<String>::new());
    }

    #[test]
    fn a_blind_judge_is_caught() {
        let all = blind_spots(|_, _| Verdict::default());
        assert_eq!(all.len(), wrong().len());
        let to_owners = |history: &History, quarantine_ms: u64| Verdict {
            overlaps: 0,
            ..judge(history, quarantine_ms)
        };
        let found = blind_spots(to_owners);
        assert_eq!(found, ["CONTROL FAILED: the judge does not see two owners"]);
        let said = caught(Fault::Partition, NOTHING, |plan, _| {
            plan.planted = Some(Planted::BlindJudge);
        });
        assert!(said.contains("two owners must be seen"), "{said}");
    }

    #[test]
    fn a_module_without_quarantine_is_caught() {
        let said = caught(Fault::Kill, RECOMMENDED, |_, history| {
            let mut early = belief("k", "c", 3, 16, 17);
            early.server = 7;
            history.beliefs.push(early);
        });
        assert!(said.contains("within its quarantine"), "{said}");
    }

    #[test]
    fn settings_that_nobody_applied_are_caught() {
        let said = caught(Fault::Kill, RECOMMENDED, |_, history| {
            history.settings[0].to_write = 0;
        });
        assert!(said.contains("other settings"), "{said}");
        let said = caught(Fault::Kill, RECOMMENDED, |_, history| {
            history.settings.clear();
        });
        assert!(said.contains("other settings"), "{said}");
        let said = caught(Fault::Partition, RECOMMENDED, |_, history| {
            history.answers.clear();
        });
        assert!(said.contains("no write was refused"), "{said}");
        let said = caught(Fault::Kill, WAIT_AND_QUARANTINE, |_, history| {
            history.answers.clear();
        });
        assert!(said.contains("no WAIT"), "{said}");
    }

    #[test]
    fn faults_that_do_nothing_are_caught() {
        let said = caught(Fault::Kill, RECOMMENDED, |_, history| {
            history.rounds[0].promoted = false;
        });
        assert!(said.contains("no round had another primary"), "{said}");
    }

    #[test]
    fn clients_that_all_believe_in_one_way_are_caught() {
        for renewed in [false, true] {
            let said = caught(Fault::Kill, RECOMMENDED, |_, history| {
                history.beliefs.retain(|belief| belief.renewed == renewed);
            });
            assert!(said.contains("no client believed"), "{said}");
        }
    }
}
