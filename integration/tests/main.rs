//! All that is tested from outside: running servers, and what documents say. One program: few tests wait for the last of others.

mod around;
mod connections;
mod documents;
mod harness;
mod keys;
mod locks;
mod seeing;
mod survival;
