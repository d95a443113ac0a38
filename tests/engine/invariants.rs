//! What must hold after every step, whatever happened. Each rule is written from what users are promised, in terms of a
//! [`Picture`]; `faults` shows of each that it can fail.

use crate::circles::{second_upgrade, stuck_of, would_be_stuck, Reading};
use crate::engine::change::End;
use crate::engine::{Limit, Millis, Name, Token};
use crate::picture::{Holder, Picture, Place, Row};
use crate::world::{Waiting, World};
use std::collections::BTreeSet;

/// A promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// There are never more holders than any holder's limit.
    Limits,
    /// Tokens rise strictly over all grants.
    TokensRise,
    /// Places are granted in order of arrival, and no newcomer passes them.
    NoOvertaking,
    /// Nobody is queued while the lock is free for the head, and the head is present.
    NobodyIdle,
    /// Replica and primary agree byte for byte.
    Replica,
    /// Nobody keeps a place who is not there, but for a ticket within its claim window.
    Ghost,
    /// An owner has one place in a queue.
    OnePlace,
    /// The engine counts its places right.
    Places,
    /// The engine asks to be woken no later than the first thing that must happen.
    Wakeup,
    /// The value says that somebody is queued exactly if somebody is.
    Watched,
    /// The key's TTL is what the value says it must be.
    Ttl,
    /// Every request that waits has a place, and at every place but an absent ticket's somebody waits.
    Answered,
    /// Every grant is answered to somebody; a request for many locks is granted all of them in one event, or none.
    AllOrNone,
    /// No wait stands that could never end, once that was looked for; and none is refused that could.
    NoCircle,
    /// A hold that is tied to a connection ends with it, and no other does.
    SessionEnds,
    /// A wait by a channel ends with one message, or silently with its connection.
    NotifyTold,
    /// What was saved is what is read.
    RoundTrip,
    /// With everything given back, nothing is kept.
    NoLeak,
}

/// A promise that was broken, and how.
#[derive(Debug)]
pub struct Broken(pub Rule, pub String);

/// Checks everything that can be seen in one picture, given the one before. `orderly` says that no key came or went in
/// between by other means than the module's: then queues can be compared.
pub fn check(before: &Picture, after: &Picture, orderly: bool) -> Result<(), Broken> {
    tokens_rise(before.last_token, &after.grants)?;
    for (name, row) in &after.rows {
        limits(name, row)?;
        one_place(name, row)?;
    }
    places(after)?;
    notify_told(after)?;
    answered(after)?;
    all_or_none(after)?;
    session_ends(after)?;
    no_circle(before, after)?;
    if after.settled {
        wakeup(after)?;
    }
    for (name, row) in &after.rows {
        if after.settled {
            if after.granting {
                nobody_idle(name, after)?;
            }
            ghost(name, row, after.now)?;
            watched(name, row)?;
            ttl(name, row)?;
        }
        if orderly {
            let none = Row::default();
            no_overtaking(name, before.rows.get(name).unwrap_or(&none), row, after)?;
        }
    }
    replica(after)
}

fn broken<T>(rule: Rule, what: String) -> Result<T, Broken> {
    Err(Broken(rule, what))
}

fn shown(owner: &[u8]) -> String {
    String::from_utf8_lossy(owner).into_owned()
}

fn label(name: &Name) -> String {
    format!("{}:{}", name.db, shown(&name.key))
}

/// Within one step grants of several locks are recorded lock by lock: each must be above all that were granted before,
/// and rise within its lock.
fn tokens_rise(last: Token, grants: &[(Name, Vec<u8>, Token)]) -> Result<(), Broken> {
    for (at, (name, owner, token)) in grants.iter().enumerate() {
        let sooner = grants[..at]
            .iter()
            .filter(|(lock, ..)| lock == name)
            .map(|(.., token)| *token)
            .max();
        if *token <= last.max(sooner.unwrap_or(0)) {
            let what = format!(
                "{} was granted to {} with token {token}, not above {last}",
                label(name),
                shown(owner)
            );
            return broken(Rule::TokensRise, what);
        }
    }
    Ok(())
}

/// Whether a limit allows so many owners.
pub fn allows(limit: Limit, owners: usize) -> bool {
    limit.to_wire() == 0 || owners <= limit.to_wire() as usize
}

fn limits(name: &Name, row: &Row) -> Result<(), Broken> {
    let count = row.holders.len();
    match row.holders.iter().find(|hold| !allows(hold.limit, count)) {
        None => Ok(()),
        Some(hold) => broken(
            Rule::Limits,
            format!(
                "{count} hold {} beside {:?}",
                label(name),
                shown(&hold.owner)
            ),
        ),
    }
}

fn one_place(name: &Name, row: &Row) -> Result<(), Broken> {
    let mut seen = BTreeSet::new();
    match row.queue.iter().find(|place| !seen.insert(&place.owner)) {
        None => Ok(()),
        Some(place) => broken(
            Rule::OnePlace,
            format!(
                "{} is queued twice for {}",
                shown(&place.owner),
                label(name)
            ),
        ),
    }
}

fn nobody_idle(name: &Name, after: &Picture) -> Result<(), Broken> {
    let head = |name: &Name| {
        let row = after.rows.get(name)?;
        let head = row.upgrade.as_ref().or(row.queue.first())?;
        Some((row, head)).filter(|(_, head)| head.present)
    };
    let Some((row, first)) = head(name) else {
        return Ok(());
    };
    let free = |name: &Name| match head(name) {
        Some((row, place)) if place.owner == first.owner => compatible(row, place, after.now),
        // Of many locks those that the owner holds are not queued for, unless it came to hold them later (RENAME).
        _ => after.rows.get(name).is_some_and(|row| {
            let mine = |hold: &Holder| hold.owner == first.owner && hold.deadline > after.now;
            let queued = row.queue.iter().any(|place| place.owner == first.owner);
            row.holders.iter().any(mine) && !queued
        }),
    };
    // Of a holder who waits to upgrade the lock and stands in the queue, too, it is not seen which request is where.
    let twice = row.upgrade.is_some() && row.queue.iter().any(|place| place.owner == first.owner);
    let waits = after.waits_at(name, &first.owner);
    let waits: Vec<_> = waits
        .filter(|wait| wait.names.len() > 1 || !twice)
        .collect();
    // Alone among all that wait there, those who ask for other locks as well need those too.
    let alone = waits.is_empty() || waits.iter().any(|wait| wait.names.len() == 1);
    let idle = match alone {
        true => free(name),
        false => waits.iter().any(|wait| wait.names.iter().all(free)),
    };
    if idle {
        return broken(
            Rule::NobodyIdle,
            format!(
                "{} waits for {}, which is free\n{}",
                shown(&first.owner),
                label(name),
                after.queues()
            ),
        );
    }
    Ok(())
}

/// Whether the owner of this place may hold beside the other holders.
fn compatible(row: &Row, place: &Place, now: Millis) -> bool {
    let others: Vec<&Holder> = row
        .holders
        .iter()
        .filter(|hold| hold.deadline > now && hold.owner != place.owner)
        .collect();
    let count = others.len() + 1;
    count == 1
        || (allows(place.limit, count) && others.iter().all(|hold| allows(hold.limit, count)))
}

fn ghost(name: &Name, row: &Row, now: Millis) -> Result<(), Broken> {
    let over = |place: &&Place| !place.present && place.until.map_or(true, |until| until <= now);
    let upgrade = row.upgrade.iter().find(|place| !place.present);
    match row.queue.iter().find(over).or(upgrade) {
        None => Ok(()),
        Some(place) => {
            let what = format!(
                "{}'s place for {} has nobody",
                shown(&place.owner),
                label(name)
            );
            broken(Rule::Ghost, what)
        }
    }
}

fn watched(name: &Name, row: &Row) -> Result<(), Broken> {
    let queued = row.upgrade.is_some() || !row.queue.is_empty();
    match row.watched {
        Some(watched) if watched != queued => broken(
            Rule::Watched,
            format!("{}: watched {watched}, queued {queued}", label(name)),
        ),
        _ => Ok(()),
    }
}

fn ttl(name: &Name, row: &Row) -> Result<(), Broken> {
    match row.ttl {
        Some((is, must)) if is != must => broken(
            Rule::Ttl,
            format!("{}: TTL is {is:?} and must be {must:?}", label(name)),
        ),
        _ => Ok(()),
    }
}

/// Compares a queue with what it was: who stays keeps the order, who is new stands at the end, and nobody was granted
/// the lock while somebody who stood before is still there.
fn no_overtaking(name: &Name, before: &Row, after: &Row, picture: &Picture) -> Result<(), Broken> {
    let rank = |queue: &[Place], owner: &[u8]| queue.iter().position(|place| place.owner == owner);
    let granted = |owner: &[u8]| {
        let its = |grant: &&(Name, Vec<u8>, Token)| grant.0 == *name && grant.1 == owner;
        let held = before.holders.iter().any(|hold| hold.owner == owner);
        !held && picture.grants.iter().any(|grant| its(&grant))
    };
    let ranks: Vec<usize> = after
        .queue
        .iter()
        .map(|place| match granted(&place.owner) {
            // It has left its place by a grant, and come to wait again.
            true => usize::MAX,
            false => rank(&before.queue, &place.owner).unwrap_or(usize::MAX),
        })
        .collect();
    // In quarantine a holder's re-entry stands before all others.
    if picture.granting && ranks.windows(2).any(|pair| pair[0] > pair[1]) {
        return broken(
            Rule::NoOvertaking,
            format!(
                "the queue for {} changed its order: {:?}, {:?}",
                label(name),
                shown_queue(before),
                shown_queue(after)
            ),
        );
    }
    let grants = picture.grants.iter().filter(|(lock, ..)| lock == name);
    for (_, owner, token) in grants {
        // A holder's upgrade is not the queue's affair.
        let holds = before
            .holders
            .iter()
            .any(|hold| hold.owner == *owner && hold.deadline > picture.now);
        if holds
            || before
                .upgrade
                .as_ref()
                .is_some_and(|place| place.owner == *owner)
        {
            continue;
        }
        let stood = rank(&before.queue, owner).unwrap_or(usize::MAX);
        if let Some(passed) = ranks.iter().find(|rank| **rank < stood) {
            let passed = shown(&before.queue[*passed].owner);
            let what = format!(
                "{} got {} ({token}) before {passed}, who still waits",
                shown(owner),
                label(name)
            );
            return broken(Rule::NoOvertaking, what);
        }
    }
    Ok(())
}

fn shown_queue(row: &Row) -> Vec<String> {
    row.queue.iter().map(|place| shown(&place.owner)).collect()
}

fn places(after: &Picture) -> Result<(), Broken> {
    let count: usize = after
        .rows
        .values()
        .map(|row| row.queue.len() + usize::from(row.upgrade.is_some()))
        .sum();
    if count != after.places {
        return broken(
            Rule::Places,
            format!(
                "there are {count} places, and the engine counts {}",
                after.places
            ),
        );
    }
    Ok(())
}

fn answered(after: &Picture) -> Result<(), Broken> {
    let mut places = BTreeSet::new();
    for (name, row) in &after.rows {
        let present = row
            .queue
            .iter()
            .chain(&row.upgrade)
            .filter(|place| place.present);
        places.extend(present.map(|place| (name, &place.owner)));
    }
    let waits: BTreeSet<(&Name, &Vec<u8>)> = after
        .waits
        .iter()
        .flat_map(|wait| wait.names.iter().map(move |name| (name, &wait.owner)))
        .collect();
    // Of many locks those that the owner held when it was last looked at are not queued for.
    let optional = |(name, owner): &(&Name, &Vec<u8>)| {
        let mut its = after.waits_at(name, owner).peekable();
        its.peek().is_some() && its.all(|wait| wait.names.len() > 1)
    };
    let mut different = waits.symmetric_difference(&places);
    if let Some((name, owner)) = different.find(|part| !optional(part)) {
        let what = format!("{} waits for {}, or does not", shown(owner), label(name));
        return broken(Rule::Answered, what);
    }
    // But one of them at least is, or nothing keeps it from all of them.
    let nowhere = |wait: &&Waiting| {
        let mut names = wait.names.iter();
        !names.any(|name| places.contains(&(name, &wait.owner)))
    };
    match after.waits.iter().find(nowhere) {
        None => Ok(()),
        Some(wait) => {
            let what = format!("{} waits nowhere: {wait:?}", shown(&wait.owner));
            broken(Rule::Answered, what)
        }
    }
}

/// Every message was waited for, and the engine knows of no other waits by a channel than those who wait.
fn notify_told(after: &Picture) -> Result<(), Broken> {
    if let Some(message) = after.unasked.first() {
        return broken(
            Rule::NotifyTold,
            format!("nobody waited for {message:?}, or was told already"),
        );
    }
    let waits = after.waits.iter().filter(|wait| wait.channel.is_some());
    let count = waits.count();
    if after.settled && count != after.notifies {
        let what = format!(
            "{count} wait by a channel, and the engine will tell {}",
            after.notifies
        );
        return broken(Rule::NotifyTold, what);
    }
    Ok(())
}

fn all_or_none(after: &Picture) -> Result<(), Broken> {
    let told = |name: &Name, owner: &[u8], token: Token| {
        after.answers.iter().any(|answer| {
            let mut parts = answer.names.iter().zip(&answer.tokens);
            answer.owner == owner && parts.any(|part| part == (name, &token))
        })
    };
    for (name, owner, token) in &after.grants {
        if !told(name, owner, *token) {
            let what = format!(
                "{} was granted {} ({token}), and nobody was told",
                shown(owner),
                label(name)
            );
            return broken(Rule::AllOrNone, what);
        }
    }
    for answer in &after.answers {
        let owner = shown(&answer.owner);
        if answer.names.len() != answer.tokens.len() {
            let what = format!("{owner} was told of some of its locks: {answer:?}");
            return broken(Rule::AllOrNone, what);
        }
    }
    match after.stale.first() {
        None => Ok(()),
        Some(answer) => broken(
            Rule::AllOrNone,
            format!(
                "{} was told of a token that is dead: {answer:?}",
                shown(&answer.owner)
            ),
        ),
    }
}

fn session_ends(after: &Picture) -> Result<(), Broken> {
    for (name, row) in &after.rows {
        for hold in &row.holders {
            let ended =
                |clients: &BTreeSet<u64>| !clients.is_empty() && clients.is_subset(&after.ended);
            if after.settled && hold.tied.as_ref().is_some_and(ended) {
                let what = format!(
                    "{} still holds {}, and the connection of the session is gone",
                    shown(&hold.owner),
                    label(name)
                );
                return broken(Rule::SessionEnds, what);
            }
        }
    }
    let sessions = after.over.iter().filter(|(end, _)| *end == End::Session);
    for (_, token) in sessions {
        if !after.sessions.contains(token) {
            let what = format!("{token} was taken without SESSION, and ended with a connection");
            return broken(Rule::SessionEnds, what);
        }
    }
    Ok(())
}

/// Whether a request for many locks has come to queue for one that its owner held when it began to wait.
fn queued_late(before: &Picture, after: &Picture) -> bool {
    let place = |picture: &Picture, name: &Name, owner: &[u8]| {
        let row = picture.rows.get(name);
        row.is_some_and(|row| {
            let mut places = row.queue.iter().chain(&row.upgrade);
            places.any(|place| place.owner == owner)
        })
    };
    before.waits.iter().any(|wait| {
        let late =
            |name: &Name| place(after, name, &wait.owner) && !place(before, name, &wait.owner);
        wait.names.len() > 1 && wait.names.iter().any(late)
    })
}

fn no_circle(before: &Picture, after: &Picture) -> Result<(), Broken> {
    let told = |wait: &Waiting| {
        let keys: Vec<String> = wait.names.iter().map(label).collect();
        let by = wait.channel.as_ref().map_or("", |_| ", by a channel");
        format!(
            "{} for {} ({}{by})",
            shown(&wait.owner),
            keys.join(" and "),
            wait.client
        )
    };
    for (asked, waits) in &after.refused {
        let then = Picture {
            waits: waits.clone(),
            ..after.clone()
        };
        let stuck = after.detection && would_be_stuck(&then, asked, Reading::Narrow);
        if !stuck && !second_upgrade(after, asked) {
            let (asked, queues) = (told(asked), after.queues());
            let what = format!("a wait could end, and was refused: {asked}\n{queues}");
            return broken(Rule::NoCircle, what);
        }
    }
    if !after.broken.is_empty() {
        let stuck = stuck_of(before, Reading::Narrow);
        for ended in &after.broken {
            let its = |at: &usize| before.waits[*at] == *ended;
            if !stuck.iter().any(its) && ![before, after].iter().any(|at| second_upgrade(at, ended))
            {
                let (ended, queues) = (told(ended), before.queues());
                let what = format!("a wait could end, and was ended: {ended}\n{queues}");
                return broken(Rule::NoCircle, what);
            }
        }
    }
    if !after.detection || !after.thorough || !after.settled {
        return Ok(());
    }
    let fresh = |wait: &Waiting| wait.event > before.event;
    if !after.looked && !after.waits.iter().any(fresh) {
        return Ok(());
    }
    // Who comes to wait behind a circle that has closed by other means waits for that to be broken.
    let mut without = after.clone();
    without.waits.retain(|wait| !fresh(wait));
    if !after.looked
        && (queued_late(before, after) || !stuck_of(&without, Reading::Wide).is_empty())
    {
        return Ok(());
    }
    let stuck = stuck_of(after, Reading::Wide);
    let mut missed = stuck.iter().map(|at| &after.waits[*at]);
    match missed.find(|wait| after.looked || fresh(wait)) {
        None => Ok(()),
        Some(wait) => broken(
            Rule::NoCircle,
            format!(
                "this wait can never end: {}\n{}",
                told(wait),
                after.queues()
            ),
        ),
    }
}

fn wakeup(after: &Picture) -> Result<(), Broken> {
    let mut musts: Vec<Millis> = after.waits.iter().filter_map(|wait| wait.until).collect();
    for row in after.rows.values() {
        musts.extend(
            row.queue
                .iter()
                .filter(|place| !place.present)
                .filter_map(|place| place.until),
        );
        if !row.queue.is_empty() || row.upgrade.is_some() || row.holders.len() > 1 {
            musts.extend(row.holders.iter().map(|hold| hold.deadline));
        }
    }
    // What should have happened already is for the other rules to find.
    let first = musts.into_iter().filter(|at| *at > after.now).min();
    let next = after.next_wakeup;
    if first.is_some_and(|first| next.map_or(true, |next| next > first)) {
        return broken(
            Rule::Wakeup,
            format!("{first:?} is due, and the engine sleeps until {next:?}"),
        );
    }
    if next.is_some_and(|next| next <= after.now) {
        return broken(
            Rule::Wakeup,
            format!(
                "{next:?} is over at {}, and nothing has come of it",
                after.now
            ),
        );
    }
    Ok(())
}

fn replica(after: &Picture) -> Result<(), Broken> {
    let Some(replica) = &after.replica else {
        return Ok(());
    };
    let names: BTreeSet<&Name> = after.primary.keys().chain(replica.keys()).collect();
    match names
        .into_iter()
        .find(|name| after.primary.get(name) != replica.get(name))
    {
        None => Ok(()),
        Some(name) => {
            let (one, other) = (after.primary.get(name), replica.get(name));
            broken(
                Rule::Replica,
                format!(
                    "{}: the primary has {one:?}, the replica {other:?}",
                    label(name)
                ),
            )
        }
    }
}

/// A saved value read again, and a rewritten AOF replayed, give the same data.
pub fn round_trip(world: &World) -> Result<(), Broken> {
    let (here, read, replayed) = (
        world.primary.data(),
        world.primary.reload(world.now).data(),
        world.primary.rewrite(world.now).data(),
    );
    if here != read || here != replayed {
        return broken(
            Rule::RoundTrip,
            format!("saved {here:?}\nread {read:?}\nreplayed {replayed:?}"),
        );
    }
    Ok(())
}

/// To be asked when everything was given back and everyone is gone.
pub fn no_leak(world: &World) -> Result<(), Broken> {
    let engine = &world.primary.engine;
    let left = (engine.places(), engine.next_wakeup(), engine.unsettled());
    if left != (0, None, false) {
        return broken(
            Rule::NoLeak,
            format!("places, next wake-up, unsettled: {left:?}"),
        );
    }
    if !world.primary.keys.values.is_empty() {
        return broken(
            Rule::NoLeak,
            format!("keys: {:?}", world.primary.keys.values),
        );
    }
    // The engine has no getters for what only a leak would show; its debug form tells.
    let inside = format!("{engine:?}");
    match [
        "len: 0 }, deadlines: Deadlines { index: {}",
        "by_id: {}, by_owner: {}",
        "blocked: {}, notified: {}, notifies: 0",
        "by_token: {}, by_client: {}, by_owner: {}",
        "holders: {}, crowded: {}",
        "dirty: []",
        "next: {}",
        "undelivered: []",
        "leaving: {}, suspects: {}, relying: {}",
    ]
    .into_iter()
    .find(|part| !inside.contains(part))
    {
        None => Ok(()),
        Some(part) => broken(Rule::NoLeak, format!("no {part:?} in {inside}")),
    }
}
