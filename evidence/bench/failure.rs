//! Why a measurement came to nothing.

/// Why a measurement came to nothing: the rest of the run goes on without it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
