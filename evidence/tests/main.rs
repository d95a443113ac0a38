//! The programs behave as their pages say.

mod ladder;
mod pictures;
