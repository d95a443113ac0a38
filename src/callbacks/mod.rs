//! Callbacks of the server. A callback changes no lock: it notes what has happened, and returns. Its questions to the module's
//! state are answered by `run`, a later room: the functions are set at load ([`Hooks`]).

pub(crate) mod data_type;
pub(crate) mod events;

use crate::ffi::ctx::Ctx;
use dlock_engine::Lock;
use std::sync::OnceLock;

/// Functions of `run` that callbacks call.
pub(crate) struct Hooks {
    /// Returns true if a lock that a user brings by RESTORE is within the caps of this server.
    pub has_room_for: fn(&Lock) -> bool,
    /// Returns how many databases the server has, and how many holds there are in all of them.
    pub databases_and_holds: fn() -> Option<(u32, i64)>,
    /// Sends the answers that replicas have confirmed, by `run::enter`, which only reads locks here. The event loop is about to
    /// sleep: no command is running, and nobody calls it from within.
    pub confirm: fn(Ctx),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Sets the functions.
pub(crate) fn set_hooks(hooks: Hooks) {
    // A second load brings the same.
    let _ = HOOKS.set(hooks);
}
