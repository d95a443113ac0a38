//! Locks that many clients want again and again.

pub(crate) mod contest;
pub(crate) mod crossing;
pub(crate) mod hot;
