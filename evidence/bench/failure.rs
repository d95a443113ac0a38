//! The reason why a measurement failed.

/// Why a measurement failed: the rest of the run continues without it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
