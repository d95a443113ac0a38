//! Faults, planted between the engine and the world, or in the pictures of it: a check that has never rejected anything proves
//! nothing. A table says which check catches each fault, and by which sequence: no line of a sequence can be left out.

use crate::client::Client;
use crate::exploration;
use crate::invariants::{self, no_leak, round_trip, Broken, Rule};
use crate::keys::Value;
use crate::pair::Pair;
use crate::random;
use crate::script::Reader;
use crate::server::Server;
use crate::slots::promise;
use crate::snapshot::{Holder, Picture};
use crate::ties;
use crate::transcript::Labels;
use crate::world::{name, Answered, Waiting, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::change::Change;
use dlock_engine::lock::Hold;
use dlock_engine::Refusal;
use dlock_engine::{
    End, Grant, Limit, NameRef, Now, Outcome, Permits, PlaceKind, Policy, Promise, RequestId,
    TieId, Token, ONE,
};

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    // The engine receives another command than the client sent.
    /// EPHEMERAL is dropped.
    DeafToEphemeral,
    /// HOLDS is dropped.
    DeafToHolds,
    /// SHARED is dropped.
    DeafToShared,
    /// PERMITS is dropped.
    DeafToPermits,
    /// CLAIM is dropped.
    DeafToClaim,
    /// TOKEN is dropped.
    DeafToToken,
    /// AUTO is dropped.
    DeafToAuto,
    /// AUTO from another connection takes EPHEMERAL along.
    DragsEphemeral,
    /// AUTO is over as soon as it begins.
    ShortAuto,
    /// BLOCK has no bound, whatever it says.
    EndlessBlock,
    /// A lease is one millisecond short.
    ShortLease,
    /// RELEASE ends all holds.
    ReleasesAll,
    /// A request that takes over keeps the stricter of both limits.
    MergesLimits,
    /// A request that takes over asks for as many permits as the older one.
    MergesPermits,
    /// A request that takes over is queued behind all others.
    QueuesAgain,
    /// A request that does not wait takes over.
    PollTakesOver,
    /// One of many locks is dropped.
    ForgetsOne,
    /// A waiting owner is assumed able to act by another of its connections.
    TwoActors,
    /// A command that ties a hold ends all other ties of its token.
    OneTieAToken,

    // The client receives another answer than the engine gave.
    /// A holder that waits is refused although it could be granted.
    FalseAlarm,
    /// A re-entry in a quarantine is answered as a wait.
    ReentryWaits,
    /// An answer does not reach its blocked connection.
    LostWake,
    /// A connection receives its outcome twice.
    TwoWakes,
    /// A replaced request is answered null.
    ReplacedAsNull,
    /// A replaced request is not answered.
    ReplacedUntold,
    /// A waiting upgrade is not answered when its hold ends.
    NotHeldUntold,
    /// A request for many locks that may not wait is answered null.
    HoldingAsNull,
    /// A waiter whose own hold arrives by a value is not answered.
    TryAgainUntold,
    /// A cancelled request is answered as timed out.
    CancelledAsNull,
    /// A grant is answered with another token.
    WrongToken,

    // The engine learns other events than happened.
    /// A blocked request keeps its place when its connection ends.
    DeadWaiterStays,
    /// The engine does not learn that a connection has ended.
    EndUnnoticed,
    /// Deadlock detection is off.
    Blind,
    /// The server wakes a millisecond late.
    LateTick,
    /// A late server ends the waits before the leases that they have waited for.
    TimesOutFirst,
    /// The server does not settle marked locks.
    Unsettled,
    /// An effect does not reach the replica.
    LostEffect,
    /// An undelivered grant stands.
    GrantStands,
    /// An undelivered grant is revoked even if an older hold or a later command touched it.
    TakesBackAll,
    /// An undelivered grant loses its ticket.
    TicketGone,
    /// The check whether a hold may be renewed uses the one whether it may be granted.
    OneQuestion,
    /// A lock that comes by RENAME is not noticed.
    RenameUnseen,
    /// A lock that DEL removes is not noticed.
    DelUnseen,
    /// A tie is not ended when its hold leaves the name.
    TieStays,
    /// The windows of a lock begin again when it gets another name.
    WindowsAnew,
    /// The server does not scan once a second.
    NoLook,
    /// The next use of a lock does not notice that its value arrived unnoticed.
    UseBlind,
    /// A TTL that a user gives removes no key.
    ExpireIgnored,
    /// Leases are cut to a TTL that a user gives.
    ExpireObeyed,
    /// A key keeps the TTL that a user gave when the lock is written to.
    TtlSticks,
    /// A due expiry precedes a renewal that is due in the same instant.
    EndsFirst,
    /// The time of AUTO runs out while its connection waits.
    WaitsUnheard,
    /// A lower `max-lease-ms` does not reach the engine.
    LongLeases,
    /// A step of the wall clock steps all clocks.
    SteadySteps,
    /// `grants no` does not reach the engine.
    GrantsOn,
    /// A step of the wall clock moves the quarantine.
    QuarantineSteps,
    /// Every value that arrives at a key counts as a user's.
    TrustsNobody,

    // The picture does not show the world as it is.
    /// A lock is granted to a second owner.
    DoubleGrant,
    /// One of several holds has all permits.
    TooManyPermits,
    /// A grant's token is not above the last one.
    TokenBack,
    /// A grant goes to the second in the queue.
    Overtaken,
    /// Two places in a queue are swapped.
    Swapped,
    /// An owner has two places in a queue.
    TwoPlaces,
    /// A place is kept beyond its claim window.
    Ghost,
    /// A removed place is still counted.
    LeakedPlace,
    /// The engine asks to be woken a millisecond late.
    LateWakeup,
    /// The value is not marked as having a queue.
    Unwatched,
    /// The value has lost a ticket.
    LostTicket,
    /// A key keeps an old TTL.
    WrongTtl,
    /// A hold ends with a connection that it is not tied to.
    StrayClosed,
    /// A new request for many locks stands before the older waiters.
    EntersAhead,
    /// A request for many locks has one of them already.
    Partly,
    /// A request for many locks is answered with some of them.
    ToldPartly,
    /// A request waits without a place.
    Nowhere,
    /// A tie does not know that the lease of its hold was renewed.
    StaleTie,
}

/// The check that catches a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Model,
    Invariant(Rule),
}

use By::{Invariant, Model};
use Fault::*;

/// Each fault with the check that catches it, and a sequence at whose end it does: it does not without any of these lines, and no
/// shorter sequence of [`exploration`](crate::exploration)'s acts does.
#[rustfmt::skip]
const CAUGHT: [(Fault, By, &str); 90] = [
    (DeafToEphemeral, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL"),
    (DeafToHolds, Model, "1: ACQUIRE x a HOLDS 2"),
    (DeafToShared, Model, "1: ACQUIRE x a 10 BLOCK 4 SHARED"),
    (DeafToPermits, Model, "1: ACQUIRE x a LIMIT 2 PERMITS 2"),
    (DeafToClaim, Model, "1: ACQUIRE x a 10; 2: FAIRACQUIRE x b 10 CLAIM 7"),
    (DeafToToken, Model, "1: ACQUIRE x a; 1: ACQUIRE y a; 1: RELEASE x a TOKEN #2"),
    (DeafToAuto, Model, "1: ACQUIRE x a; 1: RENEW x a AUTO 0"),
    (DragsEphemeral, Model, "1: ACQUIRE x a EPHEMERAL; 2: RENEW x a AUTO 0"),
    (ShortAuto, Model, "1: ACQUIRE x a; 1: RENEW x a 1000 AUTO 0; wait 500"),
    (EndsFirst, Model, "1: ACQUIRE x a; 1: RENEW x a 1000 AUTO 0; clock 743; wait 333"),
    (WaitsUnheard, Model, "1: ACQUIRE x a 1000 AUTO 9; 2: ACQUIRE y b; 1: ACQUIRE y c BLOCK 0; wait 333"),
    (ExpireIgnored, Model, "1: ACQUIRE x a; expire x 9; wait 9"),
    (ExpireObeyed, Model, "1: ACQUIRE x a; expire x 9"),
    (TtlSticks, Model, "1: ACQUIRE x a; expire x 9; 1: RENEW x a; wait 9"),
    (EndlessBlock, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 4 SHARED"),
    (ShortLease, Model, "1: ACQUIRE x a 10"),
    (ReleasesAll, Model, "1: ACQUIRE x a 10; 1: ACQUIRE x a 10; 1: RELEASE x a"),
    (MergesLimits, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: ACQUIRE x b 10 BLOCK 4 SHARED"),
    (MergesPermits, Model, "1: ACQUIRE x a; 2: ACQUIRE x b LIMIT 2 PERMITS 2 BLOCK 0; 5: ACQUIRE x b LIMIT 2 BLOCK 0"),
    (QueuesAgain, Model, "1: ACQUIRE x a 10; 2: FAIRACQUIRE x b 10 BLOCK 4 CLAIM 7; 5: ACQUIRE x b 10 BLOCK 0 EPHEMERAL"),
    (PollTakesOver, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: ACQUIRE x b 10"),
    (ForgetsOne, Model, "1: MACQUIRE 2 x y a 10 BLOCK 0"),
    (TwoActors, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: ACQUIRE y b 10; 1: ACQUIRE y a 10 BLOCK 0 EPHEMERAL"),
    (TimesOutFirst, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 20; stall 40"),
    (TimesOutFirst, Model, "1: ACQUIRE x a 10; wait 6; 2: ACQUIRE x b 10 BLOCK 4 SHARED; wait 4"),
    (OneTieAToken, Model, "1: ACQUIRE x a EPHEMERAL; copy x y; 1: RENEW y a EPHEMERAL"),
    (FalseAlarm, Model, "1: ACQUIRE x a 10; 2: ACQUIRE y b 10; 1: ACQUIRE y a 10 BLOCK 0 EPHEMERAL"),
    (ReentryWaits, Model, "config quarantine 15; 1: ACQUIRE x a 10"),
    (LostWake, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 1: RELEASE x a"),
    (TwoWakes, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 1: RELEASE x a"),
    (ReplacedAsNull, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: ACQUIRE x b 10 BLOCK 0 EPHEMERAL"),
    (ReplacedUntold, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: ACQUIRE x b 10 BLOCK 0 EPHEMERAL"),
    (NotHeldUntold, Model, "1: ACQUIRE x a 10 BLOCK 4 SHARED; 2: ACQUIRE x b 10 BLOCK 4 SHARED; 1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; del x"),
    (HoldingAsNull, Model, "1: ACQUIRE x a 10; 2: ACQUIRE y b 10; 1: MACQUIRE 2 x y a 10 BLOCK 0"),
    (TryAgainUntold, Model, "1: ACQUIRE x a 10; 2: ACQUIRE y b 10; 1: ACQUIRE y a 10 BLOCK 0 EPHEMERAL; rename x y"),
    (CancelledAsNull, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 5: CANCEL x b"),
    (WrongToken, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 1: RELEASE x a"),
    (DeadWaiterStays, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 2 dies"),
    (EndUnnoticed, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; 1 dies"),
    (Blind, Model, "1: ACQUIRE x a 10; 2: MACQUIRE 2 x y b 10 BLOCK 0; 1: ACQUIRE y a 10 BLOCK 0 EPHEMERAL"),
    (LateTick, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; wait 10"),
    (Unsettled, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; 1 dies"),
    (GrantStands, Model, "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 0 EPHEMERAL; 2 is cut off; 1: RELEASE x a"),
    (TakesBackAll, Model, "1: ACQUIRE x a SHARED; 2: ACQUIRE x b SHARED; 1: ACQUIRE x a BLOCK 0; 1 is cut off; 2: RELEASE x b"),
    (TicketGone, Model, "1: ACQUIRE x a 10; 2: FAIRACQUIRE x b 10 BLOCK 4 CLAIM 7; 2 is cut off; 1: RELEASE x a"),
    (TakesBackAll, Model, "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 2 is cut off; 1 (pipelined): RELEASE x a; 1: RENEW x b"),
    (TakesBackAll, Model, "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 2 is cut off; 1 (pipelined): RELEASE x a; 1: ACQUIRE x b HOLDS 1"),
    (TakesBackAll, Model, "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 2 is cut off; 1 (pipelined): RELEASE x a; 1: DOWNGRADE x b LIMIT 1"),
    (TakesBackAll, Model, "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 2 is cut off; 1 (pipelined): RELEASE x a; 1: RELEASE x b HOLDS 1"),
    (RenameUnseen, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; rename x y"),
    (TieStays, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; rename x y"),
    (WindowsAnew, Model, "1: ACQUIRE x a; 2: FAIRACQUIRE x b; wait 10; rename x y"),
    (NoLook, Model, "1: ACQUIRE x a; 2: MACQUIRE 2 x y b BLOCK 0; behind set y; look"),
    (UseBlind, Model, "1: ACQUIRE x a; 2: MACQUIRE 2 x y b BLOCK 0; 3: ACQUIRE z c; 4: FAIRACQUIRE z d; behind rename z y; 4: CANCEL y d"),
    (LongLeases, Model, "config max-lease-ms 500; 1: RENEW x a 400 AUTO 0"),
    (DelUnseen, Model, "1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; del x"),
    (SteadySteps, Model, "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 50; clock 20"),
    (GrantsOn, Model, "config grants no; 1: ACQUIRE x a 10"),
    (TrustsNobody, Model, "1: ACQUIRE x a; config max-lease-ms 10; rename x y"),
    (QuarantineSteps, Model, "config quarantine 15; 1: ACQUIRE x a 10 BLOCK 0 EPHEMERAL; clock 20"),
    (StaleTie, Invariant(Rule::TieEnds), "1: ACQUIRE x a AUTO 9"),
    (OneTieAToken, Invariant(Rule::TiesStay), "1: ACQUIRE x a EPHEMERAL; copy x y; 2: RENEW y a AUTO 0"),
    (LostEffect, Invariant(Rule::Replica), "1: ACQUIRE x a"),
    (DoubleGrant, Invariant(Rule::Limits), "1: ACQUIRE x a"),
    (TooManyPermits, Invariant(Rule::Limits), "1: ACQUIRE x a LIMIT 2; 2: ACQUIRE x b LIMIT 2"),
    (TokenBack, Invariant(Rule::TokensRise), "1: ACQUIRE x a"),
    (Overtaken, Invariant(Rule::NoOvertaking), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 3: ACQUIRE x c BLOCK 0"),
    (Swapped, Invariant(Rule::NoOvertaking), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 3: ACQUIRE x c BLOCK 0"),
    (EntersAhead, Invariant(Rule::NoOvertaking), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 3: MACQUIRE 2 x y c BLOCK 0"),
    (TwoPlaces, Invariant(Rule::OnePlace), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0"),
    (Ghost, Invariant(Rule::Ghost), "1: ACQUIRE x a; 2: FAIRACQUIRE x b"),
    (LeakedPlace, Invariant(Rule::Places), "wait 1"),
    (LateWakeup, Invariant(Rule::Wakeup), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 50"),
    (Unwatched, Invariant(Rule::Watched), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0"),
    (LostTicket, Invariant(Rule::Watched), "1: ACQUIRE x a; 2: FAIRACQUIRE x b"),
    (WrongTtl, Invariant(Rule::Ttl), "1: ACQUIRE x a"),
    (StrayClosed, Invariant(Rule::EphemeralEnds), "1: ACQUIRE x a; wait 1"),
    (Partly, Invariant(Rule::AllOrNone), "1: ACQUIRE x a; 2: MACQUIRE 2 x y b BLOCK 0"),
    (ToldPartly, Invariant(Rule::AllOrNone), "1: MACQUIRE 2 x y a"),
    (Nowhere, Invariant(Rule::Answered), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0"),
    (FalseAlarm, Invariant(Rule::NoCircle), "1: ACQUIRE x a; 2: ACQUIRE y b; 1: ACQUIRE y a BLOCK 0"),
    (Blind, Invariant(Rule::NoCircle), "1: ACQUIRE x a; 2: ACQUIRE y b; 1: ACQUIRE y a BLOCK 0; 2: ACQUIRE x b BLOCK 0"),
    (Unsettled, Invariant(Rule::NobodyIdle), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; del x"),
    (TimesOutFirst, Invariant(Rule::WaiterGetsIt), "1: ACQUIRE x a 10; 2: ACQUIRE x b 10 BLOCK 20; stall 40; wait 1"),
    (TimesOutFirst, Invariant(Rule::WaiterGetsIt), "1: ACQUIRE x a 10; 2: MACQUIRE 2 x y b 10 BLOCK 20; stall 40; wait 1"),
    (TwoWakes, Invariant(Rule::ToldOnce), "1: ACQUIRE x a; 2: ACQUIRE x b BLOCK 0; 1: RELEASE x a"),
    (TrustsNobody, Invariant(Rule::LeasesKept), "1: ACQUIRE x a; config max-lease-ms 10; rename x y"),
    (TrustsNobody, Invariant(Rule::LeasesKept), "1: ACQUIRE x a; 2: FAIRACQUIRE x b; config max-lease-ms 10; restart"),
    (OneQuestion, Invariant(Rule::AutoRenews), "1: ACQUIRE x a; 1: RENEW x a 1000 AUTO 0; slot of x migrates; wait 1000"),
    (QuarantineSteps, Invariant(Rule::Quarantine), "crash quarantine 15; 1: ACQUIRE x a BLOCK 0; clock 20"),
];

impl World {
    pub fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the command as the engine receives it.
    pub fn distort(&mut self, client: Client, db: u32, words: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut heard: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let Some(fault) = self.fault else {
            return heard;
        };
        let at = |heard: &[Vec<u8>], option: &str| {
            heard
                .iter()
                .position(|word| word.eq_ignore_ascii_case(option.as_bytes()))
        };
        let without = |heard: &mut Vec<Vec<u8>>, option: &str, words: usize| {
            if let Some(at) = at(heard, option) {
                heard.drain(at..at + words);
            }
        };
        let asked = self.asked(client, db, words);
        let older = asked.as_ref().and_then(|asked| {
            let its =
                |wait: &&Waiting| wait.owner == asked.owner && wait.names.contains(&asked.names[0]);
            self.waits.values().find(its).cloned()
        });
        let waits = at(&heard, "BLOCK").is_some();
        match (fault, asked, older) {
            (DeafToEphemeral, ..) => without(&mut heard, "EPHEMERAL", 1),
            (DeafToHolds, ..) => without(&mut heard, "HOLDS", 2),
            (DeafToShared, ..) => without(&mut heard, "SHARED", 1),
            (DeafToPermits, ..) => without(&mut heard, "PERMITS", 2),
            (DeafToClaim, ..) => without(&mut heard, "CLAIM", 2),
            (DeafToToken, ..) => without(&mut heard, "TOKEN", 2),
            (DeafToAuto, ..) => without(&mut heard, "AUTO", 2),
            (DragsEphemeral, ..)
                if at(&heard, "AUTO").is_some() && self.engine().ephemeral() > 0 =>
            {
                heard.push(b"EPHEMERAL".to_vec());
            }
            (ShortAuto, ..) => {
                if let Some(at) = at(&heard, "AUTO") {
                    heard[at + 1] = b"1".to_vec();
                }
            }
            (EndlessBlock, ..) => {
                if let Some(at) = at(&heard, "BLOCK") {
                    heard[at + 1] = b"0".to_vec();
                }
            }
            (ShortLease, Some(asked), _) if !asked.many => {
                let lease = heard
                    .get(3)
                    .map(|lease| String::from_utf8_lossy(lease).parse::<u64>());
                if let Some(Ok(lease)) = lease {
                    heard[3] = (lease - 1).max(1).to_string().into_bytes();
                }
            }
            (ReleasesAll, None, _) if words[0] == b"RELEASE" && heard.len() == 3 => {
                heard.extend([b"HOLDS".to_vec(), b"0".to_vec()]);
            }
            (MergesLimits, Some(asked), Some(older)) if older.limit < asked.limit => {
                without(&mut heard, "SHARED", 1);
            }
            (MergesPermits, Some(asked), Some(older)) if older.permits != asked.permits => {
                without(&mut heard, "PERMITS", 2);
                heard.extend([b"PERMITS".to_vec(), older.permits.to_string().into_bytes()]);
            }
            (QueuesAgain, Some(asked), Some(_)) if waits && !asked.many => self.clear(&asked),
            (PollTakesOver, Some(asked), Some(_)) if !waits && !asked.many => self.clear(&asked),
            (TwoActors, Some(asked), _) => {
                self.speakers.insert((asked.owner, client.id));
                let by_two = |wait: &Waiting| {
                    let its = self
                        .speakers
                        .iter()
                        .filter(|(owner, _)| *owner == wait.owner);
                    its.count() > 1
                };
                if self.waits.values().any(by_two) {
                    self.primary
                        .set_policy(|policy| policy.deadlock_detection = false);
                }
            }
            (OneTieAToken, ..)
                if ["EPHEMERAL", "AUTO"]
                    .iter()
                    .any(|tie| at(&heard, tie).is_some()) =>
            {
                self.untie_others(db, &heard);
            }
            (ForgetsOne, Some(asked), _) if asked.many && asked.names.len() == 2 => {
                heard[1] = b"1".to_vec();
                heard.remove(3);
            }
            _ => {}
        }
        heard
    }

    /// Answers the waits whose time is up as if no lease had ended yet.
    pub fn time_out_first(&mut self) {
        let before = Now { us: 0, ..self.now };
        while self.engine().tick(before) {}
        while self.engine().time_out(before) {}
    }

    /// Ends the ties of the holds at other keys whose token is that of the hold that a command is about.
    fn untie_others(&mut self, db: u32, words: &[Vec<u8>]) {
        let here = NameRef { db, key: &words[1] }.to_owned();
        let lock = self.primary.keys.lock(&here);
        let Some(token) = lock.and_then(|lock| Some(lock.hold(&words[2])?.token)) else {
            return;
        };
        let ties = &mut self.engine().holds_mut().ties;
        let mut last = TieId::default();
        while let Some((id, tie)) = ties.after(last) {
            let other = id.token == token && tie.name() != here.as_ref();
            last = id;
            if other {
                ties.untie(id);
            }
        }
    }

    /// Treats every value as one that a user brought.
    pub fn mistrust(&mut self) {
        if !self.is(TrustsNobody) {
            return;
        }
        for value in self.primary.keys.values.values_mut() {
            if let Value::Lock(lock, _) = value {
                **lock = std::mem::take(&mut **lock).marked_restored();
            }
        }
    }

    /// Removes the owner's place; its request is answered as replaced.
    fn clear(&mut self, asked: &Waiting) {
        let Server { engine, keys, .. } = &mut self.primary;
        let name = asked.names[0].as_ref();
        drop(engine.cancel(keys, self.now, name, &asked.owner));
        for mut output in engine.take_outputs() {
            output.outcome = Outcome::Replaced;
            engine.push_output(output);
        }
    }

    /// Returns the answer to a request for locks as the client receives it.
    pub fn falsify(
        &mut self,
        asked: &Waiting,
        answer: Result<Reply, Error>,
    ) -> Result<Reply, Error> {
        match (self.fault, answer) {
            (Some(FalseAlarm), Ok(Reply::Wait(id, _))) if self.holds_something(&asked.owner) => {
                let Server { engine, keys, .. } = &mut self.primary;
                engine.abandon(keys, self.now, id);
                Err(Error::Refused(Refusal::Deadlock(String::new())))
            }
            (Some(HoldingAsNull), Err(Error::Refused(Refusal::At(why, _))))
                if *why == Refusal::Holding =>
            {
                Ok(Reply::NullArray)
            }
            (Some(ReentryWaits), Err(Error::Refused(Refusal::Quarantine(_)))) => {
                Ok(Reply::Wait(RequestId(u64::MAX), None))
            }
            (_, answer) => answer,
        }
    }

    fn holds_something(&self, owner: &[u8]) -> bool {
        let held = |value: &Value| match value {
            Value::Lock(lock, _) => lock.hold(owner).is_some(),
            Value::Other => false,
        };
        self.primary.keys.values.values().any(held)
    }

    /// Returns an outcome as it is delivered, with its recipients.
    pub fn garble(&mut self, id: RequestId, outcome: Outcome) -> Vec<(RequestId, Outcome)> {
        match (self.fault, outcome) {
            (Some(LostWake), _) => Vec::new(),
            (Some(TwoWakes), outcome) => vec![(id, outcome.clone()), (id, outcome)],
            (Some(ReplacedAsNull), Outcome::Replaced) => vec![(id, Outcome::TimedOut)],
            (Some(ReplacedUntold), Outcome::Replaced) => Vec::new(),
            (Some(NotHeldUntold), Outcome::Refused(Refusal::NotHeld)) => Vec::new(),
            (Some(TryAgainUntold), Outcome::Refused(refusal))
                if refusal.to_string().starts_with("TRYAGAIN ") =>
            {
                Vec::new()
            }
            (Some(CancelledAsNull), Outcome::Cancelled) => vec![(id, Outcome::TimedOut)],
            (Some(WrongToken), Outcome::Granted(grant)) => {
                let token = Token(grant.token.0 + 1);
                vec![(id, Outcome::Granted(Grant { token, ..grant }))]
            }
            (_, outcome) => vec![(id, outcome)],
        }
    }

    /// Returns the promises of undelivered answers as the engine learns them.
    pub fn unheard_of(&mut self, promises: Vec<Promise>) -> Vec<Promise> {
        match self.fault {
            Some(GrantStands) => Vec::new(),
            Some(TicketGone) => {
                let without = |promise| Promise {
                    ticket: None,
                    ..promise
                };
                promises.into_iter().map(without).collect()
            }
            Some(TakesBackAll) => {
                let new = |promise| Promise {
                    is_new: true,
                    ..promise
                };
                promises.into_iter().map(new).collect()
            }
            _ => promises,
        }
    }

    /// Marks these holds as untouched.
    pub fn freshen(&mut self, promises: &[Promise]) {
        for promise in promises {
            let value = self.primary.keys.values.get_mut(&promise.name);
            let Some(Value::Lock(lock, _)) = value.filter(|_| self.fault == Some(TakesBackAll))
            else {
                continue;
            };
            let lasting = (**lock).clone();
            if let Some(hold) = lasting.hold(&promise.owner) {
                lock.apply(&Change::Hold(Hold {
                    fresh: true,
                    ..hold
                }));
            }
        }
    }
}

impl Fault {
    /// Forges a picture, if it offers the occasion.
    fn forge(self, before: &Picture, after: &mut Picture) {
        self.forged(before, after).unwrap_or_default();
    }

    /// Forges a picture; none if it offers no occasion.
    fn forged(self, before: &Picture, after: &mut Picture) -> Option<()> {
        let mut rows = after.rows.values_mut();
        match self {
            DoubleGrant => {
                let row = rows.find(|row| row.holders.len() == 1)?;
                let thief = Holder {
                    owner: b"thief".to_vec(),
                    limit: Limit::EXCLUSIVE,
                    permits: ONE,
                    ..row.holders[0].clone()
                };
                row.holders.push(thief);
            }
            TooManyPermits => {
                let row = rows.find(|row| row.holders.len() > 1)?;
                row.holders[0].permits = Permits::new(row.holders[0].limit.to_wire())?;
            }
            TokenBack => {
                let (.., token) = after.grants.first_mut()?;
                *token = before.last_token;
            }
            Overtaken => {
                let (name, row) = after.rows.iter_mut().find(|(_, row)| row.queue.len() > 1)?;
                let second = row.queue.remove(1);
                after.places -= 1;
                after.waits.retain(|_, wait| wait.owner != second.owner);
                let token = Token(u64::MAX);
                after.answers.push(Answered {
                    at_once: false,
                    names: vec![name.clone()],
                    owner: second.owner.clone(),
                    tokens: vec![token],
                });
                after.grants.push((name.clone(), second.owner, token));
            }
            Swapped => rows.find(|row| row.queue.len() > 1)?.queue.swap(0, 1),
            TwoPlaces => {
                let row = rows.find(|row| !row.queue.is_empty())?;
                row.queue.push(row.queue[0].clone());
                after.places += 1;
            }
            Ghost => {
                let mut places = rows.flat_map(|row| &mut row.queue);
                places.find(|place| place.is_absent())?.left = Some(0);
            }
            LeakedPlace => after.places += 1,
            LateWakeup => *after.next_wakeup.as_mut()? += 1,
            Unwatched => {
                *rows.find_map(|row| row.watched.as_mut().filter(|watched| **watched))? = false
            }
            LostTicket => drop(rows.find_map(|row| row.tickets.as_mut()?.pop())?),
            WrongTtl => rows.find_map(|row| row.ttl.as_mut())?.0.take().map(drop)?,
            StrayClosed => {
                let rows = before.rows.iter();
                let mut holds =
                    rows.flat_map(|(name, row)| row.holders.iter().map(move |hold| (name, hold)));
                let (name, hold) = holds.find(|(_, hold)| hold.ephemeral.is_none())?;
                after.over.push((name.clone(), End::Closed, hold.token));
            }
            EntersAhead => {
                let many = |wait: &Waiting| wait.many && wait.event > before.event;
                let fresh = after.waits.values().find(|wait| many(wait))?;
                let row = after.rows.get_mut(&fresh.names[0])?;
                let last = row.queue.pop()?;
                row.queue.insert(0, last);
            }
            Partly => {
                let wait = after.waits.values().find(|wait| wait.many)?;
                let token = Token(after.last_token.0 + 1);
                after
                    .grants
                    .push((wait.names[0].clone(), wait.owner.clone(), token));
            }
            ToldPartly => {
                let answer = after
                    .answers
                    .iter_mut()
                    .find(|answer| answer.names.len() > 1)?;
                answer.tokens.pop();
            }
            StaleTie => after.ties.values_mut().next()?.end.0 += 1,
            Nowhere => {
                let row = rows.find(|row| {
                    row.queue
                        .iter()
                        .any(|place| place.kind == PlaceKind::Waiter)
                })?;
                row.queue.pop();
                after.places -= 1;
            }
            _ => {}
        }
        Some(())
    }
}

/// Returns true if these lines, with this fault, are caught.
fn is_caught(fault: Fault, by: By, lines: &[&str]) -> bool {
    let acts = lines
        .iter()
        .map(|line| Reader::default().read(line).expect("a line"));
    match by {
        Model => {
            let mut pair = Pair::new(policy());
            pair.world.fault = Some(fault);
            { acts }.any(|act| pair.act(&act).is_err())
        }
        Invariant(rule) => {
            let mut world = World::new(policy());
            world.fault = Some(fault);
            let mut before = Picture::take(&mut world);
            { acts }.any(|act| {
                world.act(&act, &Labels::new());
                let mut after = Picture::take(&mut world);
                fault.forge(&before, &mut after);
                let checked = invariants::check(&before, &after, act.is_orderly())
                    .and_then(|()| ties::ties_stay(&act, &before, &after));
                before = after;
                checked.is_err_and(|Broken(broken, _)| broken == rule)
            })
        }
    }
}

/// Returns a policy with windows short enough to look at every millisecond of them.
pub fn policy() -> Policy {
    Policy {
        claim_window_ms: 20,
        ..Policy::default()
    }
}

#[test]
fn every_fault_is_caught_and_no_line_of_its_sequence_is_idle() {
    for (fault, by, lines) in CAUGHT {
        let lines: Vec<&str> = lines.split("; ").collect();
        assert!(
            is_caught(fault, by, &lines),
            "{fault:?} is not caught: {lines:?}"
        );
        for at in 0..lines.len() {
            let fewer = [&lines[..at], &lines[at + 1..]].concat();
            let caught = is_caught(fault, by, &fewer);
            assert!(!caught, "{fault:?} is caught without {:?}", lines[at]);
        }
    }
}

/// Longer sequences are too many for every run of the tests.
const SHORT: usize = 3;

/// Tries all sequences, from the shortest on: random runs may come by a fault late.
#[test]
fn the_exploration_finds_a_fault_at_its_smallest_sequence() {
    for (fault, by, lines) in CAUGHT {
        let lines: Vec<&str> = lines.split("; ").collect();
        let is_tried = lines.len() <= SHORT || random::is_long();
        if is_tried && by == Model && exploration::says(&lines) {
            let found = exploration::explore(lines.len(), Some(fault));
            let found = found.expect_err("it is caught at that length");
            assert_eq!(
                found.lines.len(),
                lines.len(),
                "{fault:?}: {:?}",
                found.lines
            );
        }
    }
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

/// Each of these leaves something behind that the other rules ignore.
#[test]
fn what_is_left_behind_is_seen() {
    let leave: [fn(&mut World); 4] = [
        |world| drop(world.send(Client::connection(1), 0, &[b"ACQUIRE", b"shop", b"ada"])),
        |world| drop(world.send(Client::connection(1), 0, &[b"FAIRACQUIRE", b"shop", b"ada"])),
        |world| world.engine().on_key_changed(name(0, "shop").as_ref()),
        |world| {
            world
                .engine()
                .on_undelivered([promise("shop", "ada", Token(1))]);
        },
    ];
    for (at, leave) in leave.into_iter().enumerate() {
        let mut world = World::new(Policy::default());
        let before = no_leak(&world);
        assert!(before.is_ok(), "{before:?}");
        leave(&mut world);
        assert!(
            matches!(no_leak(&world), Err(Broken(Rule::NoLeak, _))),
            "{at}"
        );
    }
}
