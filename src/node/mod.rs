//! The state of this server: its role and whether it would accept a write, its clocks and the one timer, its slots in a cluster,
//! and how many locks it has.

pub(crate) mod census;
pub(crate) mod clock;
pub(crate) mod gate;
pub(crate) mod slots;
pub(crate) mod timer;
