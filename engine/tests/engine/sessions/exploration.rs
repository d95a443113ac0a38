//! Every sequence, up to a depth, of some commands and events in two sessions: the engine against the [`model`](super::model), everything
//! compared after each step, as in the [`comparison`](super::comparison).
//!
//! Two states are equal if the model's and the instants at which the engine wakes are: then the search continues from one of them.

use super::comparison::{Pair, Step};
use super::words::{Command, Share, Take, Verb};
use dlock_engine::Millis;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The depth of `make test`.
const DEPTH: usize = 4;

const LEASE_MS: Millis = 2_000;

fn take(
    verb: Verb,
    keys: &[&'static str],
    owner: &'static str,
    block: Option<Millis>,
    session: Option<&'static str>,
) -> Command {
    Command::Take(Take {
        verb,
        keys: keys.to_vec(),
        owner,
        lease: LEASE_MS,
        block,
        holds: None,
        share: Share {
            limit: 1,
            permits: 1,
        },
        ephemeral: false,
        claim: None,
        session,
    })
}

fn renew(session: Option<&'static str>) -> Command {
    Command::Renew {
        many: false,
        keys: vec!["k"],
        owner: "s/1",
        lease: LEASE_MS,
        token: None,
        ephemeral: false,
        session,
    }
}

/// Returns all possible next steps. Only one request has a time-out: what ends at one instant may end in any order.
fn steps(pair: &Pair) -> Vec<Step> {
    let keep = |ms, seen, block| Command::Session {
        session: "s",
        ms,
        seen,
        block,
    };
    let release = |token| Command::Release {
        key: "k",
        owner: "s/1",
        leave: None,
        token,
    };
    let seen = pair.model.last_row("s").filter(|(id, _)| pair.knows(*id));
    let commands = [
        take(Verb::One, &["k"], "s/1", None, Some("s")),
        take(Verb::One, &["k"], "s/1", Some(3_000), Some("s")),
        take(Verb::One, &["k"], "s/1", Some(0), None),
        take(Verb::Fair, &["k"], "t/1", Some(0), Some("t")),
        take(Verb::Many, &["k", "l"], "s/2", Some(0), Some("s")),
        take(Verb::One, &["k"], "ada", Some(0), None),
        renew(Some("s")),
        renew(Some("t")),
        renew(None),
        release(None),
        release(pair.model.first_token("k")),
        Command::Cancel {
            key: "k",
            owner: "s/1",
        },
        Command::Force {
            key: "k",
            owner: None,
        },
        keep(1_500, None, None),
        keep(1_500, seen, Some(1_000)),
        keep(0, None, None),
    ];
    // A connection for each owner, which may be blocked, and one for the sessions.
    let client = |command: &Command| match command {
        Command::Take(take) if take.session.is_none() => 1 + u64::from(take.owner == "ada"),
        _ => 3,
    };
    let sends = commands
        .into_iter()
        .map(|its| Step::Sends(Some(client(&its)), its));
    let next = pair
        .model
        .next_due()
        .map(|due| due.saturating_sub(pair.model.now).max(1));
    let events = [
        Step::Dies(1),
        Step::Dies(3),
        Step::Deletes("k"),
        Step::Restarts,
        Step::ChangesRoles,
    ];
    sends.chain(events).chain(next.map(Step::Passes)).collect()
}

/// Returns a number that equal states share.
fn identity(pair: &Pair) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{:?} {:?}", pair.model, pair.node.due_in()).hash(&mut hasher);
    hasher.finish()
}

/// Takes all next steps from a state, and from those that follow, down to a depth. Counts the steps. Errors with the first sequence that
/// shows a difference.
fn explore(
    pair: &Pair,
    depth: usize,
    known: &mut HashMap<u64, usize>,
    tried: &mut usize,
) -> Result<(), String> {
    for step in steps(pair) {
        *tried += 1;
        let mut next = pair.clone();
        next.perform(&step)
            .map_err(|what| format!("{step}\n{what}"))?;
        let deepest = known.entry(identity(&next)).or_default();
        if *deepest + 1 < depth {
            *deepest = depth - 1;
            explore(&next, depth - 1, known, tried).map_err(|what| format!("{step}\n{what}"))?;
        }
    }
    Ok(())
}

#[test]
fn every_sequence_in_sessions_does_what_the_model_does() {
    let depth =
        std::env::var("DLOCK_DEPTH").map_or(DEPTH, |depth| depth.parse().expect("a number"));
    let (mut known, mut tried) = (HashMap::new(), 0);
    if let Err(what) = explore(&Pair::new(), depth, &mut known, &mut tried) {
        panic!("{what}");
    }
    println!("depth {depth}: {tried} steps, {} states", known.len());
}
