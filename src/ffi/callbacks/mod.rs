//! Entry points of the server's callbacks. Each makes safe values of its arguments, once, and passes them to a function of a
//! later room; a panic ends here (`catch_panic`).

pub(crate) mod blocked;
pub(crate) mod command;
pub(crate) mod data_type;
pub(crate) mod info;
pub(crate) mod scan;
pub(crate) mod server_events;
pub(crate) mod setting;
pub(crate) mod sync;
pub(crate) mod timer;
