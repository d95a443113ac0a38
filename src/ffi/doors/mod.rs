//! Where the server's callbacks come in. Each makes safe values of what it is given, once, and hands them to a function of the
//! rooms above; a panic ends here (`catch_panic`).

pub mod blocked;
pub mod command;
pub mod data_type;
pub mod info;
pub mod loop_end;
pub mod server_events;
pub mod timer;
