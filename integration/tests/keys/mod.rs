//! What becomes of a lock when its key comes, goes or gets another value.

mod appearing;
mod removal;
mod replaced;
