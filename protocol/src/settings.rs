//! The table: each setting, in a world, and whether it can give two owners there.

use crate::rule::{needed, Chains, Counting, Rule, Word};
use crate::system::{Orderly, Setup, World};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in schedules and programs.
    pub name: &'static str,
    pub text: &'static str,
    pub failovers: &'static str,
    pub setup: fn(u8) -> Setup,
    /// Numbers of replicas for which two owners are possible.
    pub breaks: &'static [u8],
    /// Numbers of replicas for which they are not.
    pub holds: &'static [u8],
}

const ALL: &[u8] = &[1, 2, 3, 4, 5];
const ANY: &str = "any";
const BESIDE: &str = "orderly";
const APART: &str = "orderly, Sentinels apart";

const fn any(rule: Rule, replicas: u8) -> Setup {
    Setup {
        rule,
        world: World::any(replicas),
    }
}

const fn beside(rule: Rule, replicas: u8) -> Setup {
    Setup {
        rule,
        world: World::orderly(replicas, true),
    }
}

/// Returns the setup with replicas that may be told to follow replicas.
const fn chained(rule: Rule, replicas: u8) -> Setup {
    Setup {
        rule,
        world: World {
            chains: true,
            ..World::any(replicas)
        },
    }
}

const fn apart(rule: Rule, replicas: u8) -> Setup {
    Setup {
        rule,
        world: World::orderly(replicas, false),
    }
}

/// Weaker rules: changes to the present one.
const fn all_count(r: u8) -> Rule {
    Rule {
        counting: Counting::AtOnce,
        word: Word::None,
        alone_counts: true,
        ..Rule::mended(r)
    }
}

/// All rows, in the order of the page.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "nothing",
        text: "nothing",
        failovers: BESIDE,
        setup: |r| beside(Rule::nothing(), r),
        breaks: ALL,
        holds: &[],
    },
    Setting {
        name: "quarantine",
        text: "quarantine alone",
        failovers: BESIDE,
        setup: |r| beside(Rule::quarantine(2), r),
        breaks: &[2, 3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "older",
        text: "the older setting: `min-replicas-to-write` (r + 1) / 2, small lag, quarantine",
        failovers: BESIDE,
        setup: |r| beside(Rule::min_replicas(needed(r)), r),
        breaks: &[],
        holds: ALL,
    },
    Setting {
        name: "older-lossy",
        text: "the older setting, and a primary restarts in place without its last entries",
        failovers: BESIDE,
        setup: |r| {
            let setup = beside(Rule::min_replicas(needed(r)), r);
            Setup {
                world: World {
                    lossy: true,
                    older_primary: true,
                    force: true,
                    ..setup.world
                },
                ..setup
            }
        },
        breaks: &[1, 2, 4],
        holds: &[],
    },
    Setting {
        name: "older-force",
        text: "the older setting, and an operator ends a hold just before the failover",
        failovers: BESIDE,
        setup: |r| {
            let setup = beside(Rule::min_replicas(needed(r)), r);
            Setup {
                world: World {
                    force: true,
                    ..setup.world
                },
                ..setup
            }
        },
        breaks: &[2],
        holds: &[],
    },
    Setting {
        name: "older-early",
        text: "the older setting, and the old primary comes back before all follow the new one",
        failovers: BESIDE,
        setup: |r| {
            let setup = beside(Rule::min_replicas(needed(r)), r);
            let orderly = setup.world.orderly.map(|orderly| Orderly {
                heals_late: false,
                ..orderly
            });
            Setup {
                world: World {
                    orderly,
                    ..setup.world
                },
                ..setup
            }
        },
        breaks: &[2],
        holds: &[],
    },
    Setting {
        name: "older-apart",
        text: "the older setting",
        failovers: APART,
        setup: |r| apart(Rule::min_replicas(needed(r)), r),
        breaks: &[2, 3, 4, 5],
        holds: &[1],
    },
    Setting {
        name: "older-any",
        text: "the older setting",
        failovers: ANY,
        setup: |r| any(Rule::min_replicas(needed(r)), r),
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "older-one",
        text: "the older setting with `min-replicas-to-write 1`",
        failovers: APART,
        setup: |r| apart(Rule::min_replicas(1), r),
        breaks: &[3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "older-all",
        text: "the older setting with all replicas",
        failovers: APART,
        setup: |r| apart(Rule::min_replicas(r), r),
        breaks: &[],
        holds: ALL,
    },
    Setting {
        name: "wait",
        text: "`WAIT` for (r + 1) / 2 by the client",
        failovers: BESIDE,
        setup: |r| beside(Rule::wait(needed(r)), r),
        breaks: ALL,
        holds: &[],
    },
    Setting {
        name: "wait-quarantine",
        text: "`WAIT` for (r + 1) / 2 by the client, and quarantine",
        failovers: BESIDE,
        setup: |r| {
            beside(
                Rule {
                    confirmations: needed(r),
                    ..Rule::quarantine(2)
                },
                r,
            )
        },
        breaks: &[],
        holds: ALL,
    },
    Setting {
        name: "wait-all",
        text: "`WAIT` for all replicas by the client",
        failovers: ANY,
        setup: |r| any(Rule::wait(r), r),
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "all-count",
        text: "`replicas`, all confirmations count",
        failovers: ANY,
        setup: |r| any(all_count(r), r),
        breaks: &[2, 3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "promotion-only",
        text: "`replicas`, joiners judged at a promotion only",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    counting: Counting::SincePromotion,
                    word: Word::None,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "no-word",
        text: "`replicas`, without the word in the stream",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    word: Word::None,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "one-less",
        text: "`replicas`, one confirmation less",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    confirmations: needed(r) - 1,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[1, 2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "short-quarantine",
        text: "`replicas`, a quarantine shorter than the leases",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    quarantine: 2,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "closed-renews",
        text: "`replicas`, a server in its quarantine renews by token",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    closed_renews_never: false,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[1],
        holds: &[],
    },
    Setting {
        name: "start-untold",
        text: "`replicas`, a primary's start is not announced",
        failovers: ANY,
        setup: |r| {
            any(
                Rule {
                    start_is_told: false,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[2],
        holds: &[],
    },
    Setting {
        name: "chains",
        text: "`replicas`, replicas follow replicas, briefly",
        failovers: ANY,
        setup: |r| {
            chained(
                Rule {
                    chains: Chains::Served,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[4],
        holds: &[],
    },
    Setting {
        name: "chains-ended-later",
        text: "`replicas`, replicas are ordered to follow replicas, and a replica serves them, but ends the link a little later",
        failovers: ANY,
        setup: |r| {
            chained(
                Rule {
                    chains: Chains::EndedLater,
                    ..Rule::mended(r)
                },
                r,
            )
        },
        breaks: &[4],
        holds: &[],
    },
    Setting {
        name: "no-chains",
        text: "`replicas`, replicas are ordered to follow replicas, but a replica serves none",
        failovers: ANY,
        setup: |r| chained(Rule::mended(r), r),
        breaks: &[],
        holds: &[4],
    },
    Setting {
        name: "older-rdb",
        text: "`replicas`, a replica restarts from an older RDB",
        failovers: ANY,
        setup: |r| Setup {
            rule: Rule::mended(r),
            world: World {
                older_replica: true,
                ..World::any(r)
            },
        },
        breaks: &[2],
        holds: &[],
    },
    Setting {
        name: "rule",
        text: "**`replicas`, as the rule says**",
        failovers: ANY,
        setup: |r| any(Rule::mended(r), r),
        breaks: &[],
        holds: ALL,
    },
];

/// A clause's name, its text, a number of replicas that needs it, and the rule without it.
pub type Fault = (&'static str, &'static str, u8, fn(Rule) -> Rule);

/// Each clause of the rule taken out, one at a time, with a number of replicas that needs it.
pub const FAULTS: &[Fault] = &[
    ("one-less", "confirmations are one less", 2, |r| Rule {
        confirmations: r.confirmations - 1,
        ..r
    }),
    ("at-once", "full joiners count at once", 2, |r| Rule {
        counting: Counting::AtOnce,
        ..r
    }),
    (
        "promotion-only",
        "joiners are judged at a promotion only",
        2,
        |r| Rule {
            counting: Counting::SincePromotion,
            ..r
        },
    ),
    ("no-word", "a full joining is not announced", 2, |r| Rule {
        word: Word::None,
        ..r
    }),
    ("start-untold", "a start is not announced", 2, |r| Rule {
        start_is_told: false,
        ..r
    }),
    (
        "short-quarantine",
        "the quarantine is shorter than the lease",
        2,
        |r| Rule { quarantine: 2, ..r },
    ),
    (
        "open-after-start",
        "a server is open after its start",
        1,
        |r| Rule {
            closed_after_start: false,
            ..r
        },
    ),
    (
        "open-after-full",
        "it is open after its own full resynchronisation",
        1,
        |r| Rule {
            closed_after_full: false,
            ..r
        },
    ),
    (
        "open-after-failed-full",
        "it is open after one that failed",
        1,
        |r| Rule {
            closed_after_failed_full: false,
            ..r
        },
    ),
    (
        "closed-renews",
        "it renews by token while it is closed",
        1,
        |r| Rule {
            closed_renews_never: false,
            ..r
        },
    ),
    (
        "closed-renews-all",
        "it renews without a token while it is closed",
        1,
        |r| Rule {
            closed_renews_never: false,
            closed_renews_by_token: false,
            ..r
        },
    ),
    ("ended", "a hold that has ended is confirmed", 2, |r| Rule {
        ended_is_not_confirmed: false,
        ..r
    }),
    ("sent", "what was sent is taken as confirmed", 2, |r| Rule {
        acknowledged_since: false,
        ..r
    }),
    (
        "counts-from-answer",
        "a client counts from the answer",
        2,
        |r| Rule {
            counts_from_sending: false,
            ..r
        },
    ),
    (
        "later-end",
        "a client without an answer believes the later end",
        1,
        |r| Rule {
            believes_earlier: false,
            ..r
        },
    ),
    (
        "chains-ended-later",
        "a replica serves replicas, and ends their links a little later",
        4,
        |r| Rule {
            chains: Chains::EndedLater,
            ..r
        },
    ),
    (
        "no-allowance",
        "a client makes no allowance for clocks",
        1,
        |r| Rule { allowance: 0, ..r },
    ),
];

/// Returns the present rule without one of its clauses, in a world with the events of that clause.
#[must_use]
pub fn without(fault: &Fault) -> Setup {
    let (_, _, replicas, change) = *fault;
    let rule = change(Rule::mended(replicas));
    match rule.chains {
        Chains::Refused => any(rule, replicas),
        _ => chained(rule, replicas),
    }
}

/// Returns the row of this name.
#[must_use]
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}
