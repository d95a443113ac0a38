//! Views of locks: events, messages, INFO, listings, the dashboard.

mod events;
mod observability;
mod observers;
mod observing;
