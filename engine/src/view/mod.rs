//! What there is to see. Changes nothing, ends nothing, and may be done on a replica.

pub(crate) mod graph;
pub(crate) mod inspect;
