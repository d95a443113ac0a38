//! What the server says to a write: it is asked by a call of the effect command, which then does nothing and says so.

use super::api::{self, api, Ctx, Text};
use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while the module asks the server about itself: then the effect command does nothing and says so.
static PROBING: AtomicBool = AtomicBool::new(false);

/// Returns true if a call of the effect command is the module's own question.
pub fn probing() -> bool {
    PROBING.load(Ordering::Relaxed)
}

/// What the server says to a write of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It would be done.
    Open,
    /// The key belongs to another node, as far as the server knows that nobody has said ASKING. All else is in order.
    Elsewhere,
    /// It would be refused.
    Barred,
}

/// What the server says to a write of this key, under the rules that scripts are held to: `E` gives refusals as replies.
pub fn write_of(ctx: *mut Ctx, key: &[u8]) -> Passage {
    run(ctx, key, c"SEsc")
}

/// Has the server run a command that does nothing, under no rules.
pub fn pass_through(ctx: *mut Ctx) {
    run(ctx, b"dlock", c"sc");
}

/// What every server says of a key of another node, and only then: it looks at that last.
const ELSEWHERE: &str = "non local key";

fn run(ctx: *mut Ctx, key: &[u8], rules: &CStr) -> Passage {
    let key = Text::new(key);
    PROBING.store(true, Ordering::Relaxed);
    // SAFETY: a live context, a string of one's own and a constant, as the rules say; the reply is freed last.
    let passage = unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"DLOCK.APPLY".as_ptr(),
            rules.as_ptr(),
            key.raw(),
            c"".as_ptr()
        ));
        let passage = if reply.is_null() {
            Passage::Barred
        } else if api!(RedisModule_CallReplyType(reply)) != raw::REDISMODULE_REPLY_ERROR as i32 {
            Passage::Open
        } else {
            let text = api::text_of(reply).unwrap_or_default();
            let elsewhere = text.contains(ELSEWHERE);
            match elsewhere {
                true => Passage::Elsewhere,
                false => Passage::Barred,
            }
        };
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        passage
    };
    PROBING.store(false, Ordering::Relaxed);
    passage
}
