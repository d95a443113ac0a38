//! A model of locks on a replicated server: which settings can give one lock to two owners.
//!
//! ```text
//!   conduct ───┐                        ┌── walk      random schedules with a seed, up to five replicas
//!   world ─────┴─> System::apply(step) ─┼── breadth   every schedule, shortest first, one or two replicas
//!                                       └── schedules/*.txt, replayed
//! ```
//!
//! | part | contents |
//! |---|---|
//! | [`action`] | the steps, and their text |
//! | [`conduct`] | the settings of servers, and the behaviour of clients; the rule itself is [`dlock_confirm`] |
//! | [`system`] | servers, links, clients, and the effect of a step on them |
//! | [`settings`] | the table: what each setting guarantees; each clause taken out |
//! | [`walk`], [`breadth`] | the two searches |
//! | [`schedule`] | schedules as files |
//! | [`page`] | the part of the documentation that the program writes |
//!
//! The property: never do two clients believe, by an answer that they received, that they hold the lock at one time.
//! `docs/protocol.md` lists the modelled parts and the omitted ones.

#![forbid(unsafe_code)]

pub mod action;
pub mod breadth;
pub mod conduct;
pub mod page;
pub mod schedule;
pub mod settings;
pub mod system;
pub mod walk;
