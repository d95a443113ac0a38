//! The programs do what their pages say.

mod ladder;
mod pictures;
