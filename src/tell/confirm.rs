//! Answers that wait until replicas have confirmed what they promise (`dlock.replicas`).
//!
//! An answer is here from the event that decided it until one of these happens:
//!
//! | event | result |
//! |---|---|
//! | replicas have confirmed the stream up to its effects | `run::confirm` checks that its promises still stand, and sends it |
//! | its time is up, or CLIENT UNBLOCK … TIMEOUT ends it | `NOACK` |
//! | its connection ends, or CLIENT UNBLOCK … ERROR ends it | nothing is sent |
//!
//! In the last two cases the engine revokes the undelivered new holds (`rules::outside::undelivered`).
//!
//! The offset that must be confirmed is known only where the effects are in the stream: when the event loop is about to sleep.

use crate::ffi::memory::MainThread;
use crate::node::timer;
use crate::replicas;
use crate::settings::config;
use dlock_engine::collections::ByNumber;
use dlock_engine::{Millis, NoAck, Now, Output, Receiver, RequestId, SteadyMs};
use std::collections::{BTreeSet, VecDeque};

/// How many ended answers the list of those that wait may have, besides as many as wait.
const ENDED_KEPT: usize = 1024;

/// An answer that waits for its confirmation.
#[derive(Debug)]
pub(crate) struct Unconfirmed {
    /// The answer.
    pub output: Output,
    /// When it was decided: microseconds of the steady clock.
    pub since_us: u64,
    /// The offset of the stream that must be confirmed; 0 while that is not known.
    pub needs: u64,
    deadline: Option<SteadyMs>,
}

/// All of them.
#[derive(Default)]
struct Answers {
    by_id: ByNumber<RequestId, Unconfirmed>,
    // Since the event loop last slept.
    fresh: Vec<RequestId>,
    // In the order of the stream.
    asked: VecDeque<(u64, RequestId)>,
    deadlines: BTreeSet<(SteadyMs, RequestId)>,
}

lazy_static::lazy_static! {
    static ref ANSWERS: MainThread<Answers> = MainThread::new(Answers::default());
}

/// Returns how many answers wait.
pub(crate) fn waiting() -> usize {
    ANSWERS.borrow().map_or(0, |answers| answers.by_id.len())
}

/// Keeps an answer until it is confirmed.
pub(crate) fn keep(output: Output, now: Now) {
    let id = output.id;
    let patience: Millis = config::ACK_TIMEOUT_MS.amount() as Millis;
    let least = now.steady().after(patience);
    let deadline = output.pending.until.map(|until| until.max(least));
    let answer = Unconfirmed {
        output,
        since_us: now.steady_us,
        needs: 0,
        deadline,
    };
    if let Some(mut answers) = ANSWERS.borrow() {
        answers.deadlines.extend(deadline.map(|at| (at, id)));
        answers.fresh.push(id);
        answers.by_id.insert(id, answer);
    }
    if let Some(at) = deadline {
        timer::arm(at, now.steady());
    }
    if timer::asleep() {
        // An answer from the end of an iteration waits for the next.
        timer::soon();
    }
}

/// Sets the offset that the answers since the last call need: all their effects are in the stream up to there.
pub(crate) fn stamp(offset: u64) {
    if let Some(mut answers) = ANSWERS.borrow() {
        let answers = &mut *answers;
        for id in answers.fresh.drain(..) {
            if let Some(answer) = answers.by_id.get_mut(&id) {
                answer.needs = offset;
                answers.asked.push_back((offset, id));
            }
        }
        if answers.asked.len() > 2 * answers.by_id.len() + ENDED_KEPT {
            // The first may wait for ever, and renewals that nobody has confirmed end behind it.
            let Answers { asked, by_id, .. } = answers;
            asked.retain(|(_, id)| by_id.contains_key(id));
        }
    }
}

/// Takes out the answers that are confirmed once the stream is confirmed up to this offset, in order.
pub(crate) fn take_confirmed(offset: u64) -> Vec<Unconfirmed> {
    let mut confirmed = Vec::new();
    if let Some(mut answers) = ANSWERS.borrow() {
        while let Some(&(needs, id)) = answers.asked.front() {
            if needs > offset && answers.by_id.contains_key(&id) {
                break;
            }
            answers.asked.pop_front();
            confirmed.extend(answers.take(id));
        }
    }
    confirmed
}

/// Returns the offset that the last of them needs; none if none waits.
pub(crate) fn most_needed() -> Option<u64> {
    let mut answers = ANSWERS.borrow()?;
    // Answers that have ended otherwise are still in this list.
    while let Some(&(needs, id)) = answers.asked.back() {
        if answers.by_id.contains_key(&id) {
            return Some(needs);
        }
        answers.asked.pop_back();
    }
    None
}

/// Returns when the time of the next one is up.
pub(crate) fn next_deadline() -> Option<SteadyMs> {
    let answers = ANSWERS.borrow()?;
    answers.deadlines.first().map(|(at, _)| *at)
}

/// Takes out those whose time is up.
pub(crate) fn take_overdue(now: SteadyMs) -> Vec<Unconfirmed> {
    let mut overdue = Vec::new();
    if let Some(mut answers) = ANSWERS.borrow() {
        while let Some(&(at, id)) = answers.deadlines.first() {
            if at > now {
                break;
            }
            answers.deadlines.pop_first();
            overdue.extend(answers.take(id));
        }
    }
    overdue
}

/// Takes out one answer.
pub(crate) fn take(id: RequestId) -> Option<Unconfirmed> {
    ANSWERS.borrow()?.take(id)
}

/// Drops those for which no connection is blocked, after a demotion: the server itself ends the waits of the others.
pub(crate) fn drop_unblocked() {
    let Some(mut answers) = ANSWERS.borrow() else {
        return;
    };
    let kept = answers.by_id.values();
    let unblocked = kept.filter(|answer| !matches!(answer.output.to, Receiver::Connection));
    for id in unblocked.map(|answer| answer.output.id).collect::<Vec<_>>() {
        answers.take(id);
    }
}

/// Returns the error of an answer that was not confirmed in time and needs this offset of the stream.
pub(crate) fn too_late(needs: u64, now: SteadyMs) -> NoAck {
    NoAck::Late {
        confirmed: match needs {
            0 => 0,
            needs => replicas::with(|links, terms| links.have_acknowledged(terms, needs, now.0)),
        },
        needed: replicas::status(now).needed,
    }
}

impl Answers {
    fn take(&mut self, id: RequestId) -> Option<Unconfirmed> {
        let answer = self.by_id.remove(&id)?;
        if let Some(at) = answer.deadline {
            self.deadlines.remove(&(at, id));
        }
        if self.by_id.is_empty() {
            // These lists still have answers that were taken out before their turn.
            self.asked.clear();
            self.fresh.clear();
        }
        Some(answer)
    }
}
