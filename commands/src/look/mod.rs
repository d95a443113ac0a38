//! Commands that change no lock. `LOG` and `STATS` can reset what they show.

pub(crate) mod graph;
pub(crate) mod inspect;
pub mod list;
pub(crate) mod log;
pub mod stats;
