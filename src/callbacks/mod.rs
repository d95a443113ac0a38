//! What the server calls. A callback changes no lock: it notes what has happened, and returns. What callbacks ask of the module's
//! state is `run`'s, which they may not use: it is set at load ([`Hooks`]).

pub(crate) mod data_type;
pub(crate) mod events;

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
pub(crate) fn answer_by(hooks: Hooks) {
    // A second load brings the same.
    let _ = HOOKS.set(hooks);
}
