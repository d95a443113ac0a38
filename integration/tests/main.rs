//! All tests from outside: running servers, and the claims of documents. One program: few tests wait for the last of others.

mod around;
mod connections;
mod documents;
mod harness;
mod keys;
mod locks;
mod seeing;
mod survival;
