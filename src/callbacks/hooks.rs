//! What callbacks ask of the module's state. That is `run`'s, which they may not use: set at load.

use crate::ffi::ctx::Ctx;
use dlock_engine::Lock;
use std::sync::OnceLock;

/// The questions.
pub(crate) struct Hooks {
    /// Returns true if a lock that a user brings is within the caps of this server.
    pub has_room_for: fn(&Lock) -> bool,
    /// Returns how many databases the server has, and how many holds there are in all of them.
    pub databases_and_holds: fn() -> Option<(u32, i64)>,
    /// Looks what replicas have confirmed, and has that told by `run::enter`, which only reads locks here. The event loop is about
    /// to sleep then: no command is under way, and nobody calls it from within.
    pub confirm: fn(Ctx),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Takes the answers.
pub(crate) fn init(hooks: Hooks) {
    // A second load brings the same.
    let _ = HOOKS.set(hooks);
}

/// See [`Hooks::has_room_for`].
pub(crate) fn has_room_for(lock: &Lock) -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.has_room_for)(lock))
}

/// See [`Hooks::databases_and_holds`].
pub(crate) fn databases_and_holds() -> Option<(u32, i64)> {
    HOOKS.get().and_then(|hooks| (hooks.databases_and_holds)())
}

/// See [`Hooks::confirm`].
pub(crate) fn confirm(ctx: Ctx) {
    if let Some(hooks) = HOOKS.get() {
        (hooks.confirm)(ctx);
    }
}
