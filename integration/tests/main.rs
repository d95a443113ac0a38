//! All tests with running servers. One program: few tests wait for the last of others.

mod around;
mod connections;
mod harness;
mod keys;
mod locks;
mod pages;
mod seeing;
mod survival;
