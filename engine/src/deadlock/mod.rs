//! Circles of waiting owners.
//!
//! An owner counts as one thread: while it waits for anything it releases nothing, whatever connections use its name. So a request
//! is never granted if what it waits for leads back to it. One [`search`] forward, when the request would begin to wait, finds
//! that; nothing is kept for it but the waiting requests by owner. [`text`] names the circle in an error.
//!
//! A request waits
//!
//! * for all requests of each holder that excludes it by itself: one of the two limits is 1;
//! * unless it is an upgrade, which stands ahead of the queue, for the nearest request for many locks before it;
//! * and, if its own limit is not 1, for the first request before it whose limit is 1.
//!
//! Other requests before it need no look: they wait for the same holders and for the same requests for many locks. Each of
//! these must go before the request is granted, so no circle that is found could end. Where limits are 1 or unbounded and each
//! owner has one request, none is missed. Left to time-outs are circles that depend on how many may hold a semaphore, those
//! through another request of an owner that only stands before others, and those that close in another way than by a request.

mod search;
mod text;

pub(crate) use search::{Asked, Wanted};
pub(crate) use text::two_upgrades;
