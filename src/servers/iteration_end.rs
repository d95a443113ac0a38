//! A call back at the end of an iteration of the event loop, from where the server works off the connections that modules have
//! unblocked: before it sends anything, and after every command of the iteration.
//!
//! The server that needs this (`quirks::Unblocks::EndOfIteration`) tells of that moment to nobody. But a call of the module's own
//! can be blocked there and unblocked at once, as a
//! connection can; what it leaves behind is freed when its turn comes among those that were unblocked, and that is told.

use crate::ffi::call::Rules;
use crate::ffi::cell::MainThread;
use crate::ffi::ctx::Ctx;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while the module makes its call.
static CALLING: AtomicBool = AtomicBool::new(false);

/// Set when the module's call will be freed at the end of this iteration.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// What is called then.
static WORK: MainThread<Option<fn()>> = MainThread::new(None);

/// Has `work` called at the end of this iteration, once. Returns true if the server will.
pub(crate) fn call_back(ctx: Ctx, work: fn()) -> bool {
    if AWAITED.load(Ordering::Relaxed) {
        return true;
    }
    if let Some(mut kept) = WORK.borrow() {
        *kept = Some(work);
    }
    CALLING.store(true, Ordering::Relaxed);
    drop(ctx.call(c"DLOCK.HELP", Rules::MAY_BLOCK, []));
    CALLING.store(false, Ordering::Relaxed);
    AWAITED.load(Ordering::Relaxed)
}

/// Returns true if a call is the module's own of [`call_back`].
pub(crate) fn calling() -> bool {
    CALLING.load(Ordering::Relaxed)
}

/// Blocks the module's own call, and unblocks it. In MULTI and in scripts the server does not block it, and answers it with an
/// error; what is freed is so all the same.
pub(crate) fn block(ctx: Ctx) {
    if ctx.block_once(freed) {
        AWAITED.store(true, Ordering::Relaxed);
    }
}

fn freed() {
    AWAITED.store(false, Ordering::Relaxed);
    let work = WORK.borrow().and_then(|mut kept| kept.take());
    if let Some(work) = work {
        work();
    }
}
