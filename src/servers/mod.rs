//! What exists for some servers only, each with its version, its reason, and the test that notices its end.

pub(crate) mod dry_run;
pub(crate) mod iteration_end;
pub(crate) mod quirks;
pub(crate) mod wait_key;
