//! Samples, their statistics, and the output.

pub(crate) mod check;
pub(crate) mod outcome;
pub(crate) mod plot;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod series;
mod spread;
