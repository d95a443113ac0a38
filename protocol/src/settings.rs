//! The table: each setting, in a world, and whether it can give two owners there.

use crate::conduct::{needed, Conduct};
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

const fn any(conduct: Conduct, replicas: u8) -> Setup {
    Setup {
        conduct,
        world: World::any(replicas),
    }
}

const fn beside(conduct: Conduct, replicas: u8) -> Setup {
    Setup {
        conduct,
        world: World::orderly(replicas, true),
    }
}

/// Returns the setup with replicas that may be ordered to follow replicas.
const fn chained(conduct: Conduct, replicas: u8) -> Setup {
    Setup {
        conduct,
        world: World {
            chains: true,
            ..World::any(replicas)
        },
    }
}

const fn apart(conduct: Conduct, replicas: u8) -> Setup {
    Setup {
        conduct,
        world: World::orderly(replicas, false),
    }
}

/// Returns `dlock.replicas` without clauses of the rule, by the names of their absence.
fn without_all(replicas: u8, faults: &[&str]) -> Conduct {
    let whole = Conduct::replicas(replicas);
    faults.iter().fold(whole, |some, fault| some.without(fault))
}

/// Returns `dlock.replicas` with a quarantine of half a lease.
const fn short_quarantine(conduct: Conduct) -> Conduct {
    Conduct {
        quarantine: 2,
        ..conduct
    }
}

/// All rows, in the order of the page.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "nothing",
        text: "nothing",
        failovers: BESIDE,
        setup: |r| beside(Conduct::nothing(), r),
        breaks: ALL,
        holds: &[],
    },
    Setting {
        name: "quarantine",
        text: "quarantine alone",
        failovers: BESIDE,
        setup: |r| beside(Conduct::quarantine(2), r),
        breaks: &[2, 3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "older",
        text: "the older setting: `min-replicas-to-write` (r + 1) / 2, small lag, quarantine",
        failovers: BESIDE,
        setup: |r| beside(Conduct::min_replicas(needed(r)), r),
        breaks: &[],
        holds: ALL,
    },
    Setting {
        name: "older-lossy",
        text: "the older setting, and a primary restarts in place without its last entries",
        failovers: BESIDE,
        setup: |r| {
            let setup = beside(Conduct::min_replicas(needed(r)), r);
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
            let setup = beside(Conduct::min_replicas(needed(r)), r);
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
            let setup = beside(Conduct::min_replicas(needed(r)), r);
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
        setup: |r| apart(Conduct::min_replicas(needed(r)), r),
        breaks: &[2, 3, 4, 5],
        holds: &[1],
    },
    Setting {
        name: "older-any",
        text: "the older setting",
        failovers: ANY,
        setup: |r| any(Conduct::min_replicas(needed(r)), r),
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "older-one",
        text: "the older setting with `min-replicas-to-write 1`",
        failovers: APART,
        setup: |r| apart(Conduct::min_replicas(1), r),
        breaks: &[3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "older-all",
        text: "the older setting with all replicas",
        failovers: APART,
        setup: |r| apart(Conduct::min_replicas(r), r),
        breaks: &[],
        holds: ALL,
    },
    Setting {
        name: "wait",
        text: "`WAIT` for (r + 1) / 2 by the client",
        failovers: BESIDE,
        setup: |r| beside(Conduct::wait(needed(r)), r),
        breaks: ALL,
        holds: &[],
    },
    Setting {
        name: "wait-quarantine",
        text: "`WAIT` for (r + 1) / 2 by the client, and quarantine",
        failovers: BESIDE,
        setup: |r| {
            beside(
                Conduct {
                    wait: needed(r),
                    ..Conduct::quarantine(2)
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
        setup: |r| any(Conduct::wait(r), r),
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "all-count",
        text: "`replicas`, all confirmations count",
        failovers: ANY,
        setup: |r| any(without_all(r, &["at-once", "no-word"]), r),
        breaks: &[2, 3, 4, 5],
        holds: &[],
    },
    Setting {
        name: "promotion-only",
        text: "`replicas`, joiners judged at a promotion only",
        failovers: ANY,
        setup: |r| any(without_all(r, &["promotion-only", "no-word"]), r),
        breaks: &[2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "no-word",
        text: "`replicas`, without the word in the stream",
        failovers: ANY,
        setup: |r| any(without_all(r, &["no-word"]), r),
        breaks: &[2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "one-less",
        text: "`replicas`, one confirmation less",
        failovers: ANY,
        setup: |r| any(without_all(r, &["one-less"]), r),
        breaks: &[1, 2, 3, 4],
        holds: &[],
    },
    Setting {
        name: "short-quarantine",
        text: "`replicas`, a quarantine shorter than the leases",
        failovers: ANY,
        setup: |r| any(short_quarantine(without_all(r, &["short-quarantine"])), r),
        breaks: &[1, 2, 3],
        holds: &[],
    },
    Setting {
        name: "closed-renews",
        text: "`replicas`, a server in its quarantine renews by token",
        failovers: ANY,
        setup: |r| any(without_all(r, &["closed-renews"]), r),
        breaks: &[1],
        holds: &[],
    },
    Setting {
        name: "start-untold",
        text: "`replicas`, a primary's start is not announced",
        failovers: ANY,
        setup: |r| any(without_all(r, &["start-untold"]), r),
        breaks: &[2],
        holds: &[],
    },
    Setting {
        name: "chains",
        text: "`replicas`, replicas follow replicas, briefly",
        failovers: ANY,
        setup: |r| chained(without_all(r, &["chains"]), r),
        breaks: &[4],
        holds: &[],
    },
    Setting {
        name: "chains-ended-later",
        text: "`replicas`, replicas are ordered to follow replicas, and a replica serves them, but ends the link a little later",
        failovers: ANY,
        setup: |r| chained(without_all(r, &["chains-ended-later"]), r),
        breaks: &[4],
        holds: &[],
    },
    Setting {
        name: "no-chains",
        text: "`replicas`, replicas are ordered to follow replicas, but a replica serves none",
        failovers: ANY,
        setup: |r| chained(Conduct::replicas(r), r),
        breaks: &[],
        holds: &[4],
    },
    Setting {
        name: "older-rdb",
        text: "`replicas`, a replica restarts from an older RDB",
        failovers: ANY,
        setup: |r| Setup {
            conduct: Conduct::replicas(r),
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
        setup: |r| any(Conduct::replicas(r), r),
        breaks: &[],
        holds: ALL,
    },
];

/// A planted fault: its name, its text, and a number of replicas at which it gives two owners. Most take a clause from the rule; the
/// others are of clients, or of whoever calls the rule.
pub type Fault = (&'static str, &'static str, u8);

/// One fault for each clause, and the others.
pub const FAULTS: &[Fault] = &[
    ("one-less", "confirmations are one less", 2),
    ("at-once", "full joiners count at once", 2),
    (
        "promotion-only",
        "joiners are judged at a promotion only",
        2,
    ),
    ("no-word", "a full joining is not announced", 2),
    ("start-untold", "a start is not announced", 2),
    (
        "short-quarantine",
        "the quarantine is shorter than the lease",
        2,
    ),
    ("open-after-start", "a primary is open after its start", 1),
    (
        "open-after-full",
        "a replica is open after its own full resynchronisation",
        1,
    ),
    (
        "open-after-failed-full",
        "it is open until it has loaded one",
        1,
    ),
    ("closed-renews", "a closed server renews by token", 1),
    ("closed-renews-all", "it renews without a token", 1),
    ("ended", "a hold that has ended is confirmed", 2),
    ("sent", "what was sent is taken as confirmed", 2),
    ("counts-from-answer", "a client counts from the answer", 2),
    (
        "later-end",
        "a client without an answer believes the later end",
        1,
    ),
    (
        "chains-ended-later",
        "a replica serves replicas, and ends their links a little later",
        4,
    ),
    ("chains", "a replica serves replicas", 4),
    ("no-allowance", "a client makes no allowance for clocks", 1),
];

/// Returns servers and clients with this fault.
#[must_use]
pub fn with_fault(fault: &str, conduct: Conduct) -> Conduct {
    match fault {
        "short-quarantine" => short_quarantine(conduct.without(fault)),
        "open-after-failed-full" => Conduct {
            learns_when_loaded: true,
            ..conduct
        },
        "closed-renews-all" => Conduct {
            names_token: false,
            ..conduct.without("closed-renews")
        },
        "counts-from-answer" => Conduct {
            counts_from_sending: false,
            ..conduct
        },
        "later-end" => Conduct {
            believes_earlier: false,
            ..conduct
        },
        "no-allowance" => Conduct {
            allowance: 0,
            ..conduct
        },
        clause => conduct.without(clause),
    }
}

/// Returns the rule with this fault, in a world with the events that it needs.
#[must_use]
pub fn without(fault: &Fault) -> Setup {
    let (name, _, replicas) = *fault;
    let conduct = with_fault(name, Conduct::replicas(replicas));
    match name {
        "chains" | "chains-ended-later" => chained(conduct, replicas),
        _ => any(conduct, replicas),
    }
}

/// Returns the row of this name.
#[must_use]
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}
