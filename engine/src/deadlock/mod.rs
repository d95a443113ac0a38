//! Who waits for whom, and whether a wait can ever end.
//!
//! A wait is refused if it would still stand after every owner that waits for nothing had given back all that it holds, and
//! the queues had been served. So a [`look`] plays that through ([`play`]), on the part of the world that the wait depends on:
//! the holders of the lock and the places before it, what those wait for, and so on. For mutexes what is left standing is the
//! circle in the wait-for graph; a semaphore or a shared lock that will be free enough raises no alarm. What is left standing is
//! named, and untied, in [`circle`].
//!
//! An owner is one actor: while it waits for anything it gives nothing back, whatever connections use its name; with several
//! waits it acts when all are granted. An absent ticket waits for nothing.
//!
//! A look is bounded and done in one piece: it has an answer within its steps, or it has none ([`OutOfSteps`]). Nothing of it
//! is kept.

// Positions are those of the look's own lists, which only grow while it lasts.
#![allow(clippy::indexing_slicing)]

mod circle;
mod look;
mod play;
mod text;

pub(crate) use look::{Look, OutOfSteps, Wanted, ASKED};
pub(crate) use text::{deadlock, two_upgrades, Circle};
