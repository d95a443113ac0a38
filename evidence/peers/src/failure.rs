//! The reason why a measurement failed.

/// Why a measurement failed, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
