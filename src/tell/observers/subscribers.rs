//! Whether there are subscribers: a message that nobody receives costs a quarter of an uncontended release. This concerns only
//! plain messages outside a cluster, which sharded channels do not carry.
//!
//! The server reports no subscriptions to modules, and asking for them costs as much as a few messages. So the first messages of an
//! iteration of the event loop are published without asking. Only a burst asks first, once an iteration: a client that subscribes
//! within that same iteration has not been answered yet. After a burst, the next iteration with messages asks before its first one.
//! Once a subscriber was seen, nothing is asked until the next check of the module's event, once a second.
//!
//! A pattern may match any channel, so it counts as a subscriber. An unrelated channel does not, but the server compares all
//! channels to find that out: where there are many, every message is published.

use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many messages one iteration publishes before it asks whether anybody subscribes.
const UNASKED: u32 = 4;

/// The most channels that the server is asked to compare.
const FEW_CHANNELS: u64 = 16;

/// The channels of the module's messages.
const OURS: &[u8] = b"__dlock@*";

/// Whether a subscriber was seen since the last check.
static SEEN: AtomicBool = AtomicBool::new(true);

struct Iteration {
    messages: u32,
    // How many of them this iteration publishes without asking.
    unasked: u32,
    nobody: bool,
}

static ITERATION: MainThread<Iteration> = MainThread::new(Iteration {
    messages: 0,
    unasked: UNASKED,
    nobody: false,
});

/// Ends an iteration of the event loop.
pub(crate) fn on_before_sleep() {
    if let Some(mut iteration) = ITERATION.borrow() {
        // Clients that send many requests at once, and then their releases, have every second iteration without messages.
        iteration.unasked = match iteration.messages {
            0 => iteration.unasked,
            1..=UNASKED => UNASKED,
            _ => 0,
        };
        iteration.messages = 0;
        iteration.nobody = false;
    }
}

/// Forgets the subscriber that was seen, unless the server counts patterns or many channels.
pub(crate) fn refresh(ctx: Ctx) {
    let seen = ctx.server_fields(c"stats", |field| {
        let count = |name: &CStr| field(name).and_then(|count| count.parse().ok());
        let more_than = |name, few| count(name).is_some_and(|count: u64| count > few);
        more_than(c"pubsub_channels", FEW_CHANNELS) || more_than(c"pubsub_patterns", 0)
    });
    SEEN.store(seen, Ordering::Relaxed);
}

/// Skips a message, and counts it, if an earlier one of this iteration has shown that nobody subscribes. Asks the server nothing.
/// Returns true if the message is skipped.
pub(crate) fn skip() -> bool {
    ITERATION.borrow().is_some_and(|mut iteration| {
        iteration.messages += u32::from(iteration.nobody);
        iteration.nobody
    })
}

/// Returns true if one more message may have a subscriber.
pub(crate) fn may_exist(ctx: Ctx) -> bool {
    if SEEN.load(Ordering::Relaxed) {
        return true;
    }
    let Some(mut iteration) = ITERATION.borrow() else {
        return true;
    };
    iteration.messages += 1;
    if iteration.messages == iteration.unasked + 1 {
        iteration.nobody = !subscribed(ctx);
        SEEN.store(!iteration.nobody, Ordering::Relaxed);
    }
    !iteration.nobody
}

/// Asks the server for the subscriptions that a message may have.
fn subscribed(ctx: Ctx) -> bool {
    let patterns = ctx.call(c"PUBSUB", Rules::NONE, [b"NUMPAT"]);
    if patterns.is_none_or(|answer| answer.value().integer() != 0) {
        return true;
    }
    let channels = ctx.call(c"PUBSUB", Rules::NONE, [b"CHANNELS", OURS]);
    channels.is_none_or(|answer| answer.value().len() != 0)
}
