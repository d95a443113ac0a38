//! A model of locks on a replicated server: which settings can give one lock to two owners.
//!
//! ```text
//!   rule ──────┐                        ┌── walk      random schedules with a seed, up to five replicas
//!   world ─────┴─> System::apply(step) ─┼── breadth   every schedule, shortest first, one or two replicas
//!                                       └── schedules/*.txt, replayed
//! ```
//!
//! | part | what is in it |
//! |---|---|
//! | [`action`] | what can happen, one step each, and how it is written |
//! | [`rule`] | what servers and clients do, as switches |
//! | [`system`] | servers, links, clients, and what a step does to them |
//! | [`settings`] | the table: each setting and what it is worth; each clause taken out |
//! | [`walk`], [`breadth`] | the two searches |
//! | [`schedule`] | schedules as files |
//! | [`page`] | what the page of the documents says |
//!
//! The property: never do two clients believe, by an answer that they got, that they hold the lock at one time.
//! `docs/protocol.md` says what is modelled and what is not.

#![forbid(unsafe_code)]

pub mod action;
pub mod breadth;
pub mod page;
pub mod rule;
pub mod schedule;
pub mod settings;
pub mod system;
pub mod walk;
