//! Sessions: what one program holds and waits for under a name.
//!
//! | file | contents |
//! |---|---|
//! | `node`, `replica` | one server, and the connections that are blocked at it; and its replica, which confirms |
//! | `model`, `words` | sessions in the plainest code: lists and no index; and what is asked of them |
//! | `exploration` | the engine against the `model`, with every short sequence of some commands and events |
//! | `comparison` | the engine against the `model`, with random commands, deaths and times |
//! | `found` | what the comparison has found |
//! | `overflow` | a session whose rows nobody reads |
//! | `spares` | sessions that end and begin again within a second |
//! | `young` | many holds that are taken within a second |
//! | `program`, `programs` | a program that follows the rules; many of them, and what happens to them |

mod comparison;
mod exploration;
mod found;
mod model;
mod node;
mod overflow;
mod program;
mod programs;
mod replica;
mod spares;
mod words;
mod young;
