//! Why something was not measured.

/// Why something was not measured, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
