//! What there is to see. Changes nothing, ends nothing, and may be done on a replica.

pub mod graph;
pub mod inspect;
