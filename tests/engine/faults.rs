//! Faults, planted in the tests' own fixture: a check that has never rejected anything proves nothing.

use crate::client::Client;
use crate::engine::change::End;
use crate::engine::{Grant, Limit, Policy};
use crate::invariants::{no_leak, round_trip, Broken, Rule};
use crate::keys::Value;
use crate::picture::{Holder, Picture};
use crate::simulation::Simulation;
use crate::world::{name, Answered, Waiting, World};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An effect does not reach the replica.
    LostEffect,
    /// An answer does not reach its connection.
    LostWake,
    /// The server does not look at what is due.
    SkippedTick,
    /// The server does not settle what was marked.
    SkippedSettlement,
    /// A lock is granted to a second owner.
    DoubleGrant,
    /// A grant's token is not above the last one.
    TokenBack,
    /// A grant goes to the second in the queue.
    Overtaken,
    /// Two in a queue change places.
    Swapped,
    /// An owner stands twice in a queue.
    TwoPlaces,
    /// A place is kept beyond its claim window.
    Ghost,
    /// A place is gone and still counted.
    LeakedPlace,
    /// The engine asks to be woken a little late.
    LateWakeup,
    /// The value does not know that somebody is queued.
    Unwatched,
    /// A key keeps the TTL it had.
    WrongTtl,
    /// A message does not reach its channel.
    LostMessage,
    /// A channel is told twice.
    TwoMessages,
    /// The server does not notice the end of a connection that a hold is tied to.
    ForgottenSession,
    /// A hold ends with a connection that it is not tied to.
    StraySession,
    /// A request for many locks has one of them already.
    Partly,
    /// A request for many locks is told of some of them.
    ToldPartly,
    /// The engine looks for no circles.
    Blind,
    /// A request that could be granted some time is refused.
    FalseAlarm,
    /// A wait that could be granted some time is ended as a deadlock.
    WrongVictim,
    /// A circle is broken by the wait of it that is the oldest.
    OldestVictim,
    /// A place that stands before one of a request for many locks vanishes, so that this passes it.
    PassedOver,
    /// A request for many locks leaves a place behind when its time is up.
    LeftBehind,
    /// It has been planted.
    Done,
}

impl Fault {
    /// Whether it is planted in the world, not in a picture of it.
    pub fn in_the_world(self) -> bool {
        matches!(
            self,
            Fault::LostEffect
                | Fault::LostWake
                | Fault::SkippedTick
                | Fault::SkippedSettlement
                | Fault::LostMessage
                | Fault::TwoMessages
                | Fault::ForgottenSession
                | Fault::Blind
                | Fault::FalseAlarm
                | Fault::WrongVictim
                | Fault::OldestVictim
                | Fault::PassedOver
                | Fault::LeftBehind
        )
    }

    /// Forges a picture, if it offers the occasion.
    pub fn forge(self, before: &Picture, after: &mut Picture) -> bool {
        match self {
            Fault::DoubleGrant => {
                let Some(row) = after.rows.values_mut().find(|row| row.holders.len() == 1) else {
                    return false;
                };
                let first = row.holders[0].clone();
                row.holders.push(Holder {
                    owner: b"thief".to_vec(),
                    limit: Limit::EXCLUSIVE,
                    ..first
                });
                true
            }
            Fault::TokenBack => match after.grants.first_mut() {
                Some((.., token)) if before.last_token > 0 => {
                    *token = before.last_token;
                    true
                }
                _ => false,
            },
            Fault::Overtaken => {
                let waits =
                    |row: &crate::picture::Row| row.queue.len() > 1 && row.upgrade.is_none();
                let Some((name, _)) = before.rows.iter().find(|(_, row)| waits(row)) else {
                    return false;
                };
                let same = after
                    .rows
                    .get(name)
                    .is_some_and(|row| row.queue == before.rows[name].queue);
                let second = &before.rows[name].queue[1].owner;
                let single = |wait: &Waiting| wait.names.len() == 1 && wait.channel.is_none();
                let same = same && after.waits_at(name, second).all(single);
                if same {
                    let row = after.rows.get_mut(name).expect("the row is there");
                    let second = row.queue.remove(1);
                    after
                        .waits
                        .retain(|wait| wait.owner != second.owner || !wait.names.contains(name));
                    after.places -= 1;
                    after.answers.push(Answered {
                        at_once: false,
                        names: vec![name.clone()],
                        owner: second.owner.clone(),
                        tokens: vec![u64::MAX],
                    });
                    after.grants.push((name.clone(), second.owner, u64::MAX));
                }
                same
            }
            Fault::Swapped => match after.rows.iter_mut().find(|(name, row)| {
                row.queue.len() > 1
                    && before
                        .rows
                        .get(*name)
                        .is_some_and(|before| before.queue == row.queue)
            }) {
                Some((_, row)) => {
                    row.queue.swap(0, 1);
                    after.granting
                }
                None => false,
            },
            Fault::TwoPlaces => match after.rows.values_mut().find(|row| !row.queue.is_empty()) {
                Some(row) => {
                    row.queue.push(row.queue[0].clone());
                    after.places += 1;
                    true
                }
                None => false,
            },
            Fault::Ghost => {
                let queues = after.rows.values_mut().flat_map(|row| row.queue.iter_mut());
                match queues
                    .filter(|_| after.settled)
                    .find(|place| !place.present)
                {
                    Some(place) => {
                        place.until = Some(after.now);
                        true
                    }
                    None => false,
                }
            }
            Fault::LeakedPlace => {
                after.places += 1;
                true
            }
            Fault::LateWakeup => {
                let real = after.settled
                    && after.waits.iter().filter_map(|wait| wait.until).min() == after.next_wakeup;
                if let Some(at) = after.next_wakeup.as_mut().filter(|_| real) {
                    *at += 1;
                    return true;
                }
                false
            }
            Fault::Unwatched => {
                match after
                    .rows
                    .values_mut()
                    .find(|row| row.watched == Some(true))
                    .filter(|_| after.settled)
                {
                    Some(row) => {
                        row.watched = Some(false);
                        true
                    }
                    None => false,
                }
            }
            Fault::WrongTtl => match after.rows.values_mut().find_map(|row| row.ttl.as_mut()) {
                Some((ttl, _)) if after.settled => {
                    *ttl = ttl.map_or(Some(1), |_| None);
                    true
                }
                _ => false,
            },
            Fault::StraySession => {
                let holds = before.rows.values().flat_map(|row| &row.holders);
                match { holds }.find(|hold| hold.tied.is_none()) {
                    Some(hold) => {
                        after.over.push((End::Session, hold.token));
                        true
                    }
                    None => false,
                }
            }
            Fault::Partly => match after.waits.iter().find(|wait| wait.names.len() > 1) {
                Some(wait) => {
                    let token = after.last_token + 1;
                    let (name, owner) = (wait.names[0].clone(), wait.owner.clone());
                    after.grants.push((name, owner, token));
                    true
                }
                None => false,
            },
            Fault::ToldPartly => {
                match { after.answers.iter_mut() }.find(|answer| answer.names.len() > 1) {
                    Some(answer) => {
                        answer.tokens.pop();
                        true
                    }
                    None => false,
                }
            }
            _ => false,
        }
    }
}

/// Plants a fault in simulations until one offers the occasion, and requires that exactly this rule rejects it.
fn check(fault: Fault, rule: Rule) {
    check_among(fault, rule, &[]);
}

/// The same for a fault that shows in more than one way: until this rule rejects it.
fn check_among(fault: Fault, rule: Rule, others: &[Rule]) {
    for seed in 1..=20 {
        let mut simulation = Simulation::new(seed, Some(fault));
        if let Err(Broken(found, what)) = simulation.run(200) {
            if others.contains(&found) {
                continue;
            }
            assert_eq!(found, rule, "seed {seed}: {what}\n{}", simulation.story());
            return;
        }
    }
    panic!("nobody noticed {fault:?}");
}

#[test]
fn a_lost_effect_is_seen_on_the_replica() {
    check(Fault::LostEffect, Rule::Replica);
}

#[test]
fn a_lost_answer_is_missed() {
    check(Fault::LostWake, Rule::Answered);
}

#[test]
fn a_server_that_sleeps_on_is_found_late() {
    check(Fault::SkippedTick, Rule::Wakeup);
}

#[test]
fn a_lock_that_is_not_handed_on_is_found_free() {
    let others = [
        Rule::Watched,
        Rule::Ttl,
        Rule::Ghost,
        Rule::Places,
        Rule::SessionEnds,
        Rule::NotifyTold,
    ];
    check_among(Fault::SkippedSettlement, Rule::NobodyIdle, &others);
}

#[test]
fn a_second_owner_is_one_too_many() {
    check(Fault::DoubleGrant, Rule::Limits);
}

#[test]
fn a_token_that_goes_back_is_seen() {
    check(Fault::TokenBack, Rule::TokensRise);
}

#[test]
fn overtaking_is_seen() {
    check(Fault::Overtaken, Rule::NoOvertaking);
    check(Fault::Swapped, Rule::NoOvertaking);
}

#[test]
fn a_second_place_is_one_too_many() {
    check(Fault::TwoPlaces, Rule::OnePlace);
}

#[test]
fn a_place_with_nobody_is_seen() {
    check(Fault::Ghost, Rule::Ghost);
}

#[test]
fn a_leaked_place_is_counted() {
    check(Fault::LeakedPlace, Rule::Places);
}

#[test]
fn a_late_wakeup_is_seen() {
    check(Fault::LateWakeup, Rule::Wakeup);
}

#[test]
fn a_lock_that_nobody_watches_is_seen() {
    check(Fault::Unwatched, Rule::Watched);
}

#[test]
fn a_wrong_ttl_is_seen() {
    check(Fault::WrongTtl, Rule::Ttl);
}

#[test]
fn a_message_that_is_lost_or_told_twice_is_seen() {
    check(Fault::LostMessage, Rule::NotifyTold);
    check(Fault::TwoMessages, Rule::NotifyTold);
}

#[test]
fn a_session_that_is_forgotten_or_ends_a_strangers_hold_is_seen() {
    check(Fault::ForgottenSession, Rule::SessionEnds);
    check(Fault::StraySession, Rule::SessionEnds);
}

#[test]
fn a_part_of_many_locks_is_seen() {
    check(Fault::Partly, Rule::AllOrNone);
    check(Fault::ToldPartly, Rule::AllOrNone);
}

#[test]
fn a_circle_is_seen_and_a_false_alarm_too() {
    check(Fault::Blind, Rule::NoCircle);
    check(Fault::FalseAlarm, Rule::NoCircle);
}

#[test]
fn a_value_that_is_read_otherwise_is_seen() {
    let mut world = World::new(Policy::default());
    drop(world.send(Client::connection(1), 0, &[b"ACQUIRE", b"shop", b"ada"]));
    assert!(round_trip(&world).is_ok());
    for value in world.primary.keys.values.values_mut() {
        let Value::Lock(_, ttl) = value else { continue };
        *ttl = None;
    }
    assert!(matches!(
        round_trip(&world),
        Err(Broken(Rule::RoundTrip, _))
    ));
}

/// Each of these leaves something behind that the other rules do not mind.
#[test]
fn what_is_left_behind_is_seen() {
    let leave: [fn(&mut World); 4] = [
        |world| drop(world.send(Client::connection(1), 0, &[b"ACQUIRE", b"shop", b"ada"])),
        |world| drop(world.send(Client::connection(1), 0, &[b"FAIRACQUIRE", b"shop", b"ada"])),
        |world| world.engine().note(&name(0, "shop")),
        |world| {
            world.engine().undelivered(
                name(0, "shop"),
                Box::from(*b"ada"),
                Grant {
                    token: 1,
                    holds: 1,
                    added: 1,
                },
            )
        },
    ];
    for (at, leave) in leave.into_iter().enumerate() {
        let mut world = World::new(Policy::default());
        assert!(no_leak(&world).is_ok());
        leave(&mut world);
        assert!(
            matches!(no_leak(&world), Err(Broken(Rule::NoLeak, _))),
            "{at}"
        );
    }
}
