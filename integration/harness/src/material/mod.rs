//! Data to send to servers: awkward bytes, broken payloads, the rivals' scripts, the rules of a page.

pub(crate) mod awkward;
pub mod dump;
pub mod rivals;
pub(crate) mod rules;
