//! Requests of clients: for one lock or many, about holds, to leave a queue; and answers that wait for replicas.

pub(crate) mod acquire;
pub(crate) mod confirm;
pub(crate) mod depart;
pub(crate) mod hold;
pub(crate) mod many;
pub(crate) mod session;
