//! The one way in (`enter`): state, commands, the module's own event.

mod caller;
mod command;
mod confirm;
mod enter;
mod event;
mod guard;
#[allow(unsafe_code)]
mod keyspace;
mod list;
pub(crate) mod load;
mod notices;
mod search;
mod state;
