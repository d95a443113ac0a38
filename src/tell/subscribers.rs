//! Whether there are subscribers: a message that nobody receives costs a quarter of an uncontended release.
//!
//! The server tells its modules of no subscription, and asking for them costs as much as a few messages. So the first
//! messages of a turn of the event loop are published without asking. Only a burst asks first, once a turn: a client that
//! subscribes within that same turn has not been answered yet. A turn that follows a burst counts as a burst from its first
//! message on. Once a subscriber was seen, nothing is asked until the next heartbeat.

use crate::ffi::api::{self, api, Ctx};
use crate::ffi::cell::MainThread;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages that are published in one turn before it is asked whether anybody subscribes.
const UNASKED: u32 = 4;

/// A subscriber was seen since the last heartbeat.
static SEEN: AtomicBool = AtomicBool::new(true);

struct Turn {
    messages: u32,
    // How many of them are published without asking in this turn.
    unasked: u32,
    nobody: bool,
}

static TURN: MainThread<Turn> = MainThread::new(Turn {
    messages: 0,
    unasked: UNASKED,
    nobody: false,
});

/// The event loop has made a turn.
pub fn turn() {
    if let Some(mut turn) = TURN.try_borrow_mut() {
        turn.unasked = if turn.messages > UNASKED { 0 } else { UNASKED };
        turn.messages = 0;
        turn.nobody = false;
    }
}

/// Forgets the subscriber that was seen, unless the server counts subscriptions.
pub fn heartbeat(ctx: *mut Ctx) {
    // Not every server has all of them (`quirks`).
    let none = |field: &CStr| {
        let count = api::server_info(ctx, c"stats", field);
        count.map_or(true, |count| count == "0")
    };
    let fields = [
        c"pubsub_channels",
        c"pubsub_patterns",
        c"pubsubshard_channels",
    ];
    SEEN.store(!fields.into_iter().all(none), Ordering::Relaxed);
}

/// Whether it is known that nobody subscribes. Asks the server nothing.
pub fn known_absent() -> bool {
    TURN.try_borrow_mut().is_some_and(|mut turn| {
        turn.messages += u32::from(turn.nobody);
        turn.nobody
    })
}

/// Whether one more message may have a subscriber.
pub fn may_exist(ctx: *mut Ctx) -> bool {
    if SEEN.load(Ordering::Relaxed) {
        return true;
    }
    let Some(mut turn) = TURN.try_borrow_mut() else {
        return true;
    };
    turn.messages += 1;
    if turn.messages == turn.unasked + 1 {
        turn.nobody = !subscribed(ctx);
        SEEN.store(!turn.nobody, Ordering::Relaxed);
    }
    !turn.nobody
}

/// Asks the server for its subscriptions.
fn subscribed(ctx: *mut Ctx) -> bool {
    [c"NUMPAT", c"CHANNELS", c"SHARDCHANNELS"]
        .into_iter()
        .any(|what| {
            // SAFETY: a call with constants, which runs no command of a client's; the reply is freed.
            unsafe {
                let reply = api!(RedisModule_Call(
                    ctx,
                    c"PUBSUB".as_ptr(),
                    c"c".as_ptr(),
                    what.as_ptr()
                ));
                if reply.is_null() {
                    return true;
                }
                let any = match what == c"NUMPAT" {
                    true => api!(RedisModule_CallReplyInteger(reply)) != 0,
                    false => api!(RedisModule_CallReplyLength(reply)) != 0,
                };
                api!(RedisModule_FreeCallReply(reply));
                any
            }
        })
}
