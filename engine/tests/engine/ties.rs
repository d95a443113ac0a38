//! The ties of holds to connections, as the engine has them.

use crate::invariants::{Broken, Rule};
use crate::script::Act;
use crate::server;
use crate::snapshot::{key, Holder, Picture};
use crate::world::{name, World};
use dlock_engine::{Millis, Name, Party, TieId, Token, WallMs};
use std::collections::{BTreeMap, BTreeSet};

/// A tie in the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Tied {
    pub client: u64,
    pub name: Name,
    pub owner: Vec<u8>,
    pub auto: bool,
    /// When the hold's lease ends, as far as the tie knows.
    pub end: WallMs,
    /// When the server renews it next, on the steady clock.
    pub due: Option<Millis>,
}

/// Returns when a renewal is due, from its debug form.
fn due(text: &str) -> Option<Millis> {
    let (_, at) = text.split_once("SteadyMs(")?;
    at.split(')').next()?.parse().ok()
}

/// Returns all ties, by lock and token.
pub fn ties(world: &World) -> BTreeMap<(Name, Token), Tied> {
    let ties = &world.primary.engine.holds().ties;
    let mut found = BTreeMap::new();
    let mut last = TieId::default();
    while let Some((id, tie)) = ties.after(last) {
        last = id;
        let tied = Tied {
            client: match tie.party {
                Party::Connection(client) => client.0,
                Party::Session(_) => continue,
            },
            name: tie.name().to_owned(),
            owner: tie.owner().to_vec(),
            auto: tie.auto.is_some(),
            end: tie.end,
            due: tie.auto.and_then(|auto| due(&format!("{:?}", auto.next))),
        };
        found.insert((tied.name.clone(), id.token), tied);
    }
    found
}

/// Checks that a command changes no tie of a hold at a key that it does not name.
pub fn ties_stay(act: &Act, before: &Picture, after: &Picture) -> Result<(), Broken> {
    // A renewal may have been due.
    let at_once = (before.now, before.steady) == (after.now, after.steady);
    if !(matches!(act, Act::Command(_)) && at_once) {
        return Ok(());
    }
    let named = server::keys_of(act).into_iter();
    let named: BTreeSet<Name> = named.map(|(db, key)| name(db, &key)).collect();
    for (name, row) in before
        .rows
        .iter()
        .filter(|(name, _)| !named.contains(*name))
    {
        for hold in &row.holders {
            let after = after.rows.get(name).and_then(|row| row.hold(&hold.owner));
            let changed = |after: &&Holder| {
                after.token == hold.token
                    && (after.ephemeral, after.auto) != (hold.ephemeral, hold.auto)
            };
            if let Some(after) = after.filter(changed) {
                let what = format!("{}: {hold:?} became {after:?}", key(name));
                return Err(Broken(Rule::TiesStay, what));
            }
        }
    }
    Ok(())
}
