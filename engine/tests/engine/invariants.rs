//! Invariants: rules that hold after every step, whatever happened. Each states a promise to users in terms of a [`Picture`];
//! `faults` shows of each that it can fail.

use crate::deadlock;
use crate::snapshot::{key, text, Holder, Picture, Place, Row};
use crate::world::{Answered, Heard, Waiting, World};
use dlock_engine::Refusal;
use dlock_engine::{End, Limit, Millis, Name, Outcome, Token};
use std::collections::BTreeSet;

/// A promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The permits held never exceed any holder's limit.
    Limits,
    /// Tokens rise strictly over all grants.
    TokensRise,
    /// Places are granted in order of arrival, and no newcomer passes them.
    NoOvertaking,
    /// No wait ends by its time although the lock has come free for it by then.
    WaiterGetsIt,
    /// No request is queued while the lock is free for the head of the queue and the head is present.
    NobodyIdle,
    /// Replica and primary agree byte for byte.
    Replica,
    /// No place remains without a waiting request, except a ticket within its claim window.
    Ghost,
    /// An owner has one place at a lock, and a holder none in the queue.
    OnePlace,
    /// The engine counts its places correctly, and knows how old the oldest is.
    Places,
    /// The engine asks to be woken no later than the next deadline.
    Wakeup,
    /// The value is marked as having a queue exactly if it has one, and it has the tickets that are queued.
    Watched,
    /// The key's TTL is the one that the value demands.
    Ttl,
    /// Each place, except an absent ticket's, has one waiting request, and a request has a place at each of its locks.
    Answered,
    /// Every grant is answered; a request for many locks is granted all of them in one event, or none.
    AllOrNone,
    /// After a search, no wait stands that can never end; and no wait is refused that could end.
    NoCircle,
    /// A hold that is tied to a connection ends with it, and no other does.
    EphemeralEnds,
    /// A wait receives one outcome.
    ToldOnce,
    /// No lock is granted while a quarantine lasts.
    Quarantine,
    /// An answered lease never ends earlier, unless the owner asks for that.
    LeasesKept,
    /// A hold that the server renews does not end by time.
    AutoRenews,
    /// A tie knows when the lease of its hold ends.
    TieEnds,
    /// A command at one key changes no tie of a hold at another.
    TiesStay,
    /// No waiter is granted a lock while its slot migrates to another node.
    NotInLeavingSlots,
    /// A saved value reads back unchanged.
    RoundTrip,
    /// After everything was released, the engine keeps nothing.
    NoLeak,
}

/// A broken promise, and how it was broken.
#[derive(Debug)]
pub struct Broken(pub Rule, pub String);

/// Checks everything that one picture shows, given the previous one. `orderly` says that only the module created and removed keys
/// in between: then queues can be compared.
pub fn check(before: &Picture, after: &Picture, orderly: bool) -> Result<(), Broken> {
    tokens_rise(before.last_token, &after.grants)?;
    // Nothing is promised of a value that arrived unnoticed, until the next scan or the lock's next use.
    let seen = || {
        let rows = after.rows.iter();
        rows.filter(|(name, _)| !after.unseen.contains(*name))
    };
    for (name, row) in seen() {
        limits(name, row)?;
    }
    let known = before.unseen.is_empty() && after.unseen.is_empty();
    // A value that arrives at a lock that must not move joins no queue yet, and one that left may still have its places.
    let moves = before.leaving.is_empty() && after.leaving.is_empty();
    if known && moves {
        no_circle(before, after)?;
        places(after)?;
    }
    if known && moves {
        waiter_gets_it(before, after)?;
    }
    told_once(after)?;
    if moves {
        seen().try_for_each(|(name, row)| one_place(name, row))?;
        answered(after)?;
    }
    all_or_none(before, after)?;
    ephemeral_ends(before, after)?;
    quarantine(after)?;
    leases_kept(before, after)?;
    auto_renews(before, after)?;
    tie_ends(after)?;
    not_in_leaving_slots(after)?;
    if after.settled {
        wakeup(after)?;
        if after.granting {
            nobody_idle(after)?;
        }
        for (name, row) in seen() {
            ghost(name, row)?;
            watched(name, row)?;
            // A user's TTL stays until the module next writes to the lock.
            let given = |hold: &Holder| after.retimed.contains(&hold.token);
            if !row.holders.iter().any(given) {
                ttl(name, row)?;
            }
        }
    }
    if orderly && moves {
        let none = Row::default();
        for (name, row) in seen().filter(|(name, _)| !before.unseen.contains(*name)) {
            no_overtaking(
                name,
                before.rows.get(name).unwrap_or(&none),
                row,
                before,
                after,
            )?;
        }
    }
    replica(after)
}

fn broken<T>(rule: Rule, what: String) -> Result<T, Broken> {
    Err(Broken(rule, what))
}

/// Checks that tokens rise. Within one step grants of several locks are recorded lock by lock: each must be above all earlier
/// grants, and rise within its lock.
fn tokens_rise(last: Token, grants: &[(Name, Vec<u8>, Token)]) -> Result<(), Broken> {
    for (at, (name, owner, token)) in grants.iter().enumerate() {
        let sooner = grants[..at].iter().filter(|(lock, ..)| lock == name);
        let sooner = sooner.map(|(.., token)| *token).max();
        if *token <= last.max(sooner.unwrap_or_default()) {
            let (name, owner) = (key(name), text(owner));
            let what = format!("{name} was granted to {owner} with {token:?}, not above {last:?}");
            return broken(Rule::TokensRise, what);
        }
    }
    Ok(())
}

/// Returns true if a limit allows this sum of permits.
pub fn allows(limit: Limit, permits: u64) -> bool {
    limit.to_wire() == 0 || permits <= u64::from(limit.to_wire())
}

/// Returns the sum of the permits that these hold.
pub fn permits<'h>(holders: impl IntoIterator<Item = &'h Holder>) -> u64 {
    let permits = holders.into_iter().map(|hold| hold.permits.get());
    permits.map(u64::from).sum()
}

fn limits(name: &Name, row: &Row) -> Result<(), Broken> {
    let count = permits(&row.holders);
    match row.holders.iter().find(|hold| !allows(hold.limit, count)) {
        None => Ok(()),
        Some(hold) => broken(
            Rule::Limits,
            format!(
                "{count} permits of {} are held beside {}",
                key(name),
                text(&hold.owner)
            ),
        ),
    }
}

fn one_place(name: &Name, row: &Row) -> Result<(), Broken> {
    let mut seen = BTreeSet::new();
    let twice = row.in_order().find(|place| !seen.insert(&place.owner));
    let holder = row
        .queue
        .iter()
        .find(|place| row.hold(&place.owner).is_some());
    match twice.or(holder) {
        None => Ok(()),
        Some(place) => broken(
            Rule::OnePlace,
            format!(
                "{} has more than one place at {}",
                text(&place.owner),
                key(name)
            ),
        ),
    }
}

fn nobody_idle(after: &Picture) -> Result<(), Broken> {
    let waits = after.waits.values();
    for wait in waits.filter(|wait| after.knows(wait)) {
        let free = |name: &Name| {
            let row = &after.rows[name];
            let first = row.in_order().next();
            first.is_some_and(|place| place.owner == wait.owner && compatible(row, place, after))
        };
        if wait.names.iter().all(free) {
            let what = format!(
                "a waiter could be granted: {}\n{}",
                wait.shown(),
                after.queues()
            );
            return broken(Rule::NobodyIdle, what);
        }
    }
    Ok(())
}

/// Checks that no request was answered null, for its time was up, that headed all of its queues while the leases that it waited for
/// had ended: a late server ends leases first.
fn waiter_gets_it(before: &Picture, after: &Picture) -> Result<(), Broken> {
    if !(before.settled && after.settled && before.granting && after.granting) {
        return Ok(());
    }
    let none = Row::default();
    let late = |heard: &&Heard| heard.outcome == Outcome::TimedOut;
    for Heard { at, asked, .. } in after.heard.iter().filter(late) {
        let free = |name: &Name| {
            let row = before.rows.get(name).unwrap_or(&none);
            let head = row.in_order().next();
            let ended = |hold: &&Holder| {
                let expired = (name.clone(), End::Expired, hold.token);
                !hold.auto && hold.deadline <= *at && after.over.contains(&expired)
            };
            head.is_some_and(|head| head.owner == asked.owner)
                && row.holders.iter().all(|hold| ended(&hold))
        };
        if asked.names.iter().all(free) {
            let what = format!("{} was answered null\n{}", asked.shown(), before.queues());
            return broken(Rule::WaiterGetsIt, what);
        }
    }
    Ok(())
}

/// Returns true if the owner of this place may hold the lock together with the other holders.
fn compatible(row: &Row, place: &Place, after: &Picture) -> bool {
    let live = row.holders.iter().filter(|hold| hold.deadline > after.now);
    let others: Vec<_> = live.filter(|hold| hold.owner != place.owner).collect();
    let all = permits(others.iter().copied()) + u64::from(place.permits.get());
    let is_one_more = row.hold(&place.owner).is_none();
    let full = is_one_more && others.len() >= after.max_holders;
    others.is_empty()
        || !full && allows(place.limit, all) && others.iter().all(|hold| allows(hold.limit, all))
}

fn ghost(name: &Name, row: &Row) -> Result<(), Broken> {
    // A session's place may be absent for as long as the window of the session.
    let over = |place: &&Place| {
        place.is_absent() && !place.in_session && place.left.is_none_or(|left| left == 0)
    };
    let upgrade = row.upgrade.iter().find(|place| place.is_absent());
    match row.queue.iter().find(over).or(upgrade) {
        None => Ok(()),
        Some(place) => broken(
            Rule::Ghost,
            format!(
                "{}'s place for {} has no waiting request",
                text(&place.owner),
                key(name)
            ),
        ),
    }
}

fn watched(name: &Name, row: &Row) -> Result<(), Broken> {
    use dlock_engine::PlaceKind::{Absent, Ticket};
    let Some(watched) = row.watched else {
        return Ok(());
    };
    let tickets = row
        .queue
        .iter()
        .filter(|place| matches!(place.kind, Absent | Ticket));
    let tickets: Vec<_> = tickets
        .map(|place| (place.owner.clone(), place.limit, place.permits))
        .collect();
    // A session's place that is absent does not show whether it is a ticket.
    let is_plain = !row.in_order().any(|place| place.in_session);
    let differs = is_plain && Some(&tickets) != row.tickets.as_ref();
    if watched != row.in_order().next().is_some() || differs {
        return broken(Rule::Watched, format!("{}: {row:?}", key(name)));
    }
    Ok(())
}

fn ttl(name: &Name, row: &Row) -> Result<(), Broken> {
    match row.ttl {
        Some((is, must)) if is != must => broken(
            Rule::Ttl,
            format!("{}: TTL is {is:?} and must be {must:?}", key(name)),
        ),
        _ => Ok(()),
    }
}

/// Compares a queue with the previous one: the places that stay keep their order, new ones stand at the end, and no owner was
/// granted the lock while an earlier place stays.
fn no_overtaking(
    name: &Name,
    was: &Row,
    is: &Row,
    before: &Picture,
    after: &Picture,
) -> Result<(), Broken> {
    let rank = |owner: &[u8]| was.queue.iter().position(|place| place.owner == owner);
    let grants: Vec<&Vec<u8>> = after
        .grants
        .iter()
        .filter(|(lock, ..)| lock == name)
        .map(|(_, owner, _)| owner)
        .collect();
    let undone = |owner: &Vec<u8>| {
        let here = |heard: &&Heard| heard.asked.owner == *owner && heard.asked.names.contains(name);
        after.heard.iter().filter(here).any(|heard| heard.lost)
    };
    let stayed = |place: &&Place| {
        // Else it left its place by a grant, and waits again.
        !grants.contains(&&place.owner) || undone(&place.owner)
    };
    // A newer request for many locks has entered all of its queues again: behind all places there.
    let entered = |wait: &Waiting| wait.many && wait.event > before.event;
    let anew = |place: &Place| {
        let its = |wait: &Waiting| wait.owner == place.owner && wait.names.contains(name);
        after.waits.values().any(|wait| entered(wait) && its(wait))
    };
    // One in a session does so as well, unless it asks for what it waits for already.
    let either = |place: &&Place| {
        let here = (name.clone(), place.owner.clone());
        after.entered.get(&here) == Some(&true)
    };
    let queue = || is.queue.iter().filter(|place| !either(place));
    let mut old = queue().skip_while(|place| !anew(place));
    if let Some(passed) = old.find(|place| !anew(place) && rank(&place.owner).is_some()) {
        let what = format!(
            "a new request stands before {} at {}",
            text(&passed.owner),
            key(name)
        );
        return broken(Rule::NoOvertaking, what);
    }
    let ranks: Vec<usize> = queue()
        .filter(|place| !anew(place))
        .map(|place| {
            Some(place)
                .filter(stayed)
                .and_then(|place| rank(&place.owner))
                .unwrap_or(usize::MAX)
        })
        .collect();
    if ranks.windows(2).any(|pair| pair[0] > pair[1]) {
        let shown = |row: &Row| {
            row.queue
                .iter()
                .map(|place| text(&place.owner))
                .collect::<Vec<_>>()
        };
        let (was, is) = (shown(was), shown(is));
        let what = format!(
            "the queue for {} changed its order: {was:?}, {is:?}",
            key(name)
        );
        return broken(Rule::NoOvertaking, what);
    }
    // An owner whose grant was undone has its old place: places behind it may have been granted.
    let back = |rank: &usize| {
        was.queue
            .get(*rank)
            .is_some_and(|place| undone(&place.owner))
    };
    // A holder's upgrade does not pass through the queue.
    let queued = |owner: &&Vec<u8>| {
        let live = was
            .hold(owner)
            .is_some_and(|hold| hold.deadline > after.now);
        let upgrades = was
            .upgrade
            .as_ref()
            .is_some_and(|place| place.owner == **owner);
        !live && !upgrades
    };
    for owner in grants.into_iter().filter(queued) {
        let stood = rank(owner).unwrap_or(usize::MAX);
        let mut before = ranks.iter().filter(|rank| !back(rank));
        if let Some(passed) = before.find(|rank| **rank < stood) {
            let (owner, passed) = (text(owner), text(&was.queue[*passed].owner));
            let what = format!("{owner} got {} before {passed}, who still waits", key(name));
            return broken(Rule::NoOvertaking, what);
        }
    }
    Ok(())
}

fn places(after: &Picture) -> Result<(), Broken> {
    let count: usize = after.rows.values().map(|row| row.in_order().count()).sum();
    if count != after.places {
        let what = format!(
            "there are {count} places, and the engine counts {}",
            after.places
        );
        return broken(Rule::Places, what);
    }
    let oldest = after.rows.values().filter_map(|row| row.oldest_ms).max();
    // By microseconds, of which each of the two drops a part.
    let exact = match oldest {
        Some(oldest) => (oldest..=oldest + 1000).contains(&after.oldest_ms),
        None => after.oldest_ms == 0,
    };
    if !exact {
        let told = after.oldest_ms;
        let what = format!("the oldest place is {oldest:?} ms old, and the engine says {told}");
        return broken(Rule::Places, what);
    }
    Ok(())
}

fn answered(after: &Picture) -> Result<(), Broken> {
    let rows = after.rows.iter();
    for (name, row) in rows.filter(|(name, _)| !after.unseen.contains(*name)) {
        for place in row.in_order().filter(|place| !place.in_session) {
            let here = |wait: &&Waiting| wait.owner == place.owner && wait.names.contains(name);
            let waits = after.waits.values().filter(here);
            if waits.count() != usize::from(!place.is_absent()) {
                let what = format!(
                    "{} at {}\n{}",
                    text(&place.owner),
                    key(name),
                    after.queues()
                );
                return broken(Rule::Answered, what);
            }
        }
    }
    let waits = after.waits.values();
    for wait in waits.filter(|wait| after.knows(wait)) {
        let place = |name: &Name| {
            after.rows[name]
                .in_order()
                .any(|place| place.owner == wait.owner)
        };
        if !wait.names.iter().all(place) {
            let what = format!(
                "a waiting request has no place: {}\n{}",
                wait.shown(),
                after.queues()
            );
            return broken(Rule::Answered, what);
        }
    }
    Ok(())
}

/// Checks that every outcome had a waiting request.
fn told_once(after: &Picture) -> Result<(), Broken> {
    match after.unasked.first() {
        None => Ok(()),
        Some(unasked) => {
            let what = format!("no request waited for {unasked:?}, or it had its outcome already");
            broken(Rule::ToldOnce, what)
        }
    }
}

fn all_or_none(before: &Picture, after: &Picture) -> Result<(), Broken> {
    let told = |name: &Name, owner: &[u8], token: Token| {
        let by_answer = after.answers.iter().any(|answer| {
            let mut parts = answer.names.iter().zip(&answer.tokens);
            answer.owner == owner && parts.any(|part| part == (name, &token))
        });
        // A row tells of a grant in a session.
        let by_row = |place: &Place| place.in_session && place.owner == owner;
        let row = before.rows.get(name);
        by_answer
            || row.is_some_and(|row| row.in_order().any(by_row))
            || after.entered.contains_key(&(name.clone(), owner.to_vec()))
    };
    for (name, owner, token) in &after.grants {
        if !told(name, owner, *token) {
            let (name, owner) = (key(name), text(owner));
            let what = format!("{owner} was granted {name} ({token:?}), and no answer says so");
            return broken(Rule::AllOrNone, what);
        }
    }
    let partly = after
        .answers
        .iter()
        .find(|answer| answer.names.len() != answer.tokens.len());
    match partly.or(after.stale.first()) {
        None => Ok(()),
        Some(answer) => broken(
            Rule::AllOrNone,
            format!("an answer has only some of the locks, or a dead token: {answer:?}"),
        ),
    }
}

fn ephemeral_ends(before: &Picture, after: &Picture) -> Result<(), Broken> {
    for (name, row) in &after.rows {
        let ended = |client: &u64| after.settled && after.ended.contains(client);
        if let Some(hold) = row
            .holders
            .iter()
            .find(|hold| hold.ephemeral.as_ref().is_some_and(ended))
        {
            let (owner, name) = (text(&hold.owner), key(name));
            let what =
                format!("{owner} still holds {name}, and the connection that it ends with is gone");
            return broken(Rule::EphemeralEnds, what);
        }
    }
    let stray = |name: &Name, token: Token| {
        let mut holders = before
            .rows
            .get(name)
            .into_iter()
            .flat_map(|row| &row.holders);
        holders.any(|hold| hold.token == token && hold.ephemeral.is_none())
    };
    let ended = after.over.iter().filter(|(_, end, _)| *end == End::Closed);
    for (name, _, token) in ended {
        if stray(name, *token) {
            let name = key(name);
            let what = format!("{name}: {token:?} was not ephemeral, and ended with a connection");
            return broken(Rule::EphemeralEnds, what);
        }
    }
    Ok(())
}

fn quarantine(after: &Picture) -> Result<(), Broken> {
    match after.grants.first().filter(|_| after.quarantined) {
        None => Ok(()),
        Some((name, owner, _)) => {
            let what = format!("{} was granted to {}", key(name), text(owner));
            broken(Rule::Quarantine, what)
        }
    }
}

/// Checks that answered leases last. A value that a user restores under another hold's token is the user's responsibility.
fn leases_kept(before: &Picture, after: &Picture) -> Result<(), Broken> {
    if after.lost {
        return Ok(());
    }
    let told = before.rows.values().flat_map(|row| &row.holders);
    let kept = |hold: &&Holder| {
        !after.renewed.contains(&hold.owner) && !after.restored.contains(&hold.token)
    };
    for hold in told.filter(kept) {
        let held = after.rows.values().flat_map(|row| &row.holders);
        let mut its = held.filter(|other| other.token == hold.token);
        let cut = its.any(|other| other.deadline < hold.deadline);
        let mut over = after.over.iter();
        let over = over.any(|(_, end, token)| (*end, *token) == (End::Expired, hold.token));
        if cut || over && hold.deadline > after.now {
            let (owner, token) = (text(&hold.owner), hold.token);
            let what = format!(
                "{owner} was told that {token:?} lasts until {:?}",
                hold.deadline
            );
            return broken(Rule::LeasesKept, what);
        }
    }
    Ok(())
}

fn auto_renews(before: &Picture, after: &Picture) -> Result<(), Broken> {
    if !after.only_time {
        return Ok(());
    }
    for (name, row) in &before.rows {
        // The hold may have another token by now, after an upgrade.
        let ended = |hold: &&Holder| {
            let goes_on = after.rows.get(name).and_then(|row| row.hold(&hold.owner));
            goes_on.is_none_or(|hold| hold.deadline <= after.now)
        };
        let renewed = |hold: &&Holder| hold.auto && hold.deadline > before.now;
        // Leases follow a step of the wall clock, and renewals do not.
        let nearer =
            |hold: &&Holder| after.stepped.get(&(name.clone(), hold.token)) == Some(&hold.deadline);
        let mut holds = row.holders.iter().filter(renewed);
        if let Some(hold) = holds.find(|hold| ended(hold) && !nearer(hold)) {
            let what = format!("{}'s hold {:?} has ended", text(&hold.owner), hold.token);
            return broken(Rule::AutoRenews, what);
        }
    }
    Ok(())
}

fn tie_ends(after: &Picture) -> Result<(), Broken> {
    for ((_, token), tied) in &after.ties {
        let row = after.rows.get(&tied.name);
        let hold = row.and_then(|row| row.hold(&tied.owner));
        let hold = hold.filter(|hold| hold.token == *token && !after.unseen.contains(&tied.name));
        if let Some(hold) = hold.filter(|hold| hold.deadline != tied.end) {
            let what = format!("{token:?}: {:?}, not {:?}", hold.deadline, tied.end);
            return broken(Rule::TieEnds, what);
        }
    }
    Ok(())
}

fn not_in_leaving_slots(after: &Picture) -> Result<(), Broken> {
    // A waiter to whose owner a value has brought the lock enters it once more.
    let fresh = |token: &Token| after.grants.iter().any(|(.., granted)| granted == token);
    let leaves = |answer: &&Answered| {
        let mut parts = answer.names.iter().zip(&answer.tokens);
        parts.any(|(name, token)| after.leaving.contains(name) && fresh(token))
    };
    let mut later = after.answers.iter().filter(|answer| !answer.at_once);
    match later.find(leaves) {
        None => Ok(()),
        Some(answer) => broken(Rule::NotInLeavingSlots, format!("{answer:?}")),
    }
}

fn no_circle(before: &Picture, after: &Picture) -> Result<(), Broken> {
    // The scene lacks the waits of sessions. Their own comparison has a rule for them.
    if after.sessions {
        return Ok(());
    }
    let stands = |scene, id: u64| deadlock::play(scene).waits.iter().any(|wait| wait.id == id);
    for asked in &after.refused {
        let stuck = after.detection && stands(after.scene_with(asked), u64::MAX);
        if !stuck && !second_upgrade(after, asked) {
            let (asked, queues) = (asked.shown(), after.queues());
            let what = format!("a wait that could end was refused: {asked}\n{queues}");
            return broken(Rule::NoCircle, what);
        }
    }
    let told = |heard: &&Heard| matches!(heard.outcome, Outcome::Refused(Refusal::Deadlock(_)));
    if let Some(heard) = after.heard.iter().find(told) {
        let (ended, queues) = (heard.asked.shown(), before.queues());
        let what = format!("a wait was ended: {ended}\n{queues}");
        return broken(Rule::NoCircle, what);
    }
    // No wait has ended meanwhile, which might close a circle in another way.
    let alone = after.heard.is_empty() && after.settled;
    let fresh = after
        .waits
        .iter()
        .filter(|(id, _)| !before.waits.contains_key(id));
    for (id, asked) in fresh.filter(|_| alone && after.detection && after.thorough) {
        if deadlock::closes_a_circle(&after.scene(), id.0) {
            let (asked, queues) = (asked.shown(), after.queues());
            let what = format!("a wait can never end: {asked}\n{queues}");
            return broken(Rule::NoCircle, what);
        }
    }
    Ok(())
}

/// Returns true if this request would need an upgrade for which another owner already waits.
fn second_upgrade(picture: &Picture, asked: &Waiting) -> bool {
    asked
        .names
        .iter()
        .filter_map(|name| picture.rows.get(name))
        .any(|row| {
            let other = row
                .upgrade
                .as_ref()
                .is_some_and(|place| place.owner != asked.owner);
            let hold = row.hold(&asked.owner);
            other && hold.is_some_and(|hold| asked.limit < hold.limit)
        })
}

fn wakeup(after: &Picture) -> Result<(), Broken> {
    let waits = after.waits.values().filter_map(|wait| wait.until);
    let mut musts: Vec<Millis> = waits.map(|until| until.since(after.steady)).collect();
    let rows = after.rows.iter();
    for (_, row) in rows.filter(|(name, _)| !after.unseen.contains(*name)) {
        let absent = row.queue.iter().filter(|place| place.is_absent());
        musts.extend(absent.filter_map(|place| place.left));
        if row.in_order().next().is_some() || row.holders.len() > 1 {
            musts.extend(
                row.holders
                    .iter()
                    .map(|hold| hold.deadline.since(after.now)),
            );
        }
    }
    // Deadlines in the past are for the other rules to find.
    let first = musts.into_iter().filter(|left| *left > 0).min();
    let next = after.next_wakeup;
    let late = first.is_some_and(|first| next.is_none_or(|next| next > first));
    if late || next == Some(0) {
        let what =
            format!("{first:?} ms from now something is due, and the engine sleeps for {next:?}");
        return broken(Rule::Wakeup, what);
    }
    Ok(())
}

fn replica(after: &Picture) -> Result<(), Broken> {
    let Some(replica) = &after.replica else {
        return Ok(());
    };
    let mut names = after.primary.keys().chain(replica.keys());
    match names.find(|name| after.primary.get(name) != replica.get(name)) {
        None => Ok(()),
        Some(name) => {
            let (one, other) = (after.primary.get(name), replica.get(name));
            let what = format!(
                "{}: the primary has {one:?}, the replica {other:?}",
                key(name)
            );
            broken(Rule::Replica, what)
        }
    }
}

/// Checks that a saved value and a rewritten AOF give unchanged data.
pub fn round_trip(world: &World) -> Result<(), Broken> {
    let here = world.primary.data();
    let read = world.primary.reload(world.now).data();
    let replayed = world.primary.rewrite(world.now).data();
    if here != read || here != replayed {
        let what = format!("saved {here:?}\nread {read:?}\nreplayed {replayed:?}");
        return broken(Rule::RoundTrip, what);
    }
    Ok(())
}

/// Checks that the engine keeps nothing, after everything was released and every connection has ended.
pub fn no_leak(world: &World) -> Result<(), Broken> {
    let engine = &world.primary.engine;
    let left = (
        engine.places(),
        engine.next_wakeup(world.now),
        engine.unsettled(),
    );
    if left != (0, None, false) {
        let what = format!("places, next wake-up, unsettled: {left:?}");
        return broken(Rule::NoLeak, what);
    }
    if !world.primary.keys.values.is_empty() {
        let what = format!("keys: {:?}", world.primary.keys.values);
        return broken(Rule::NoLeak, what);
    }
    // The engine has no getters for parts that only a leak fills: its debug form shows them.
    // What is kept of sessions that are over goes with the next scan.
    let mut engine = engine.clone();
    engine.begin_scan();
    let inside = format!("{engine:?}");
    match EMPTY.iter().find(|part| !inside.contains(*part)) {
        None => Ok(()),
        Some(part) => broken(
            Rule::NoLeak,
            format!("kept, or a field that EMPTY does not list: no {part:?} in {inside}"),
        ),
    }
}

/// Parts of the debug form of an engine that keeps nothing, as the fields stand: a new field goes into its part.
const EMPTY: [&str; 9] = [
    "by_id: {}, twins: {}, by_party: {}, ephemeral: 0, autos: 0, renewals: {}, maturing: [], due: [], resumed: []",
    "sessions: Sessions { by_no: {}",
    "timers: Deadlines { index: {}",
    "windows: Deadlines { index: {}",
    "outbox: []",
    "by_id: {}, places: 0, ages: Ages { groups: {} }, leases: Deadlines { index: {}",
    "awaited: {}, empty: WaitQueue",
    "by_id: {}, by_owner: {}, owners: 0",
    "dirty: [], arrived: [], follow_ups: {}, garbage: [], left: [], undelivered: {}, ended: {}, read: None, overdue: [], scan: Over",
];
