//! The clocks, the one timer, and where in its loop the server is.

pub(crate) mod clock;
pub(crate) mod event_loop;
pub(crate) mod timer;
