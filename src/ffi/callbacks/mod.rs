//! Where the server's callbacks come in. Each makes safe values of what it is given, once, and hands them to a function of the
//! rooms above; a panic ends here (`catch_panic`).

pub(crate) mod blocked;
pub(crate) mod command;
pub(crate) mod data_type;
pub(crate) mod info;
pub(crate) mod server_events;
pub(crate) mod sync;
pub(crate) mod timer;
