//! What the server says to a write: it is asked by a call of the effect command, which then does nothing and says so.

use super::call::Rules;
use super::ctx::Ctx;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while the module asks the server about itself: then the effect command does nothing and says so.
static PROBING: AtomicBool = AtomicBool::new(false);

/// Returns true if a call of the effect command is the module's own question.
pub(crate) fn probing() -> bool {
    PROBING.load(Ordering::Relaxed)
}

/// What the server says to a write of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It would be done.
    Open,
    /// The key belongs to another node, as far as the server knows that nobody has said ASKING. All else is in order.
    Elsewhere,
    /// It would be refused.
    Barred,
}

/// What every server says of a key of another node, and only then: it looks at that last.
const ELSEWHERE: &str = "non local key";

/// What the server says to a write of this key, under the rules that scripts are held to.
pub(crate) fn write_of(ctx: Ctx, key: &[u8]) -> Passage {
    PROBING.store(true, Ordering::Relaxed);
    let answer = ctx.call(c"DLOCK.APPLY", Rules::SCRIPT, [key, b""]);
    let passage = match &answer {
        None => Passage::Barred,
        Some(answer) if !answer.value().is_error() => Passage::Open,
        Some(answer) => match answer.value().text().unwrap_or_default() {
            text if text.contains(ELSEWHERE) => Passage::Elsewhere,
            _ => Passage::Barred,
        },
    };
    // The reply is freed before: what that calls back is the question's, too.
    drop(answer);
    PROBING.store(false, Ordering::Relaxed);
    passage
}
