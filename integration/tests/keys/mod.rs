//! Locks whose key comes, goes or gets another value.

mod appearing;
mod removal;
mod replaced;
