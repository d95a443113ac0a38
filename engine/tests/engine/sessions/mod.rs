//! Sessions: what one program holds and waits for under a name.
//!
//! | file | contents |
//! |---|---|
//! | `node` | one server, and the connections that are blocked at it |
//! | `model`, `words` | sessions in the plainest code: lists and no index; and what is asked of them |
//! | `comparison` | the engine against the `model`, with random commands, deaths and times |
//! | `found` | what the comparison has found |
//! | `overflow` | a session whose rows nobody reads |
//! | `young` | many holds that are taken within a second |
//! | `program`, `programs` | a program that follows the rules; many of them, and what happens to them |

mod comparison;
mod found;
mod model;
mod node;
mod overflow;
mod program;
mod programs;
mod words;
mod young;
