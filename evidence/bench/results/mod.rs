//! Samples, their statistics, and the output.

pub(crate) mod check;
pub(crate) mod numbers;
pub(crate) mod outcome;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod series;
mod spread;
