//! What clients ask for: taking locks, one or many, holding them, leaving their queues, and
//! answers that wait for replicas.

pub(crate) mod acquire;
pub(crate) mod confirm;
pub(crate) mod depart;
pub(crate) mod hold;
pub(crate) mod many;
