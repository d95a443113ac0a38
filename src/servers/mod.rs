//! What exists for some servers only, each with its version, its reason, and the test that notices its end.

pub mod dry_run;
pub mod quirks;
pub mod turn_end;
pub mod wait_key;
