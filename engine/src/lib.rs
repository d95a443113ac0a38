//! The lock itself, and nothing else: no Redis, no clock, no randomness that a decision depends on, no I/O, no `unsafe`.
//!
//! Time is an argument everywhere; the same inputs give the same outputs. The methods of [`Engine`] fall into four kinds:
//!
//! * **requests** (`acquire`, `acquire_many`, `renew`, `release`, `force`, `cancel`, …): what a client asks; they bring the
//!   lock up to date, decide, and answer;
//! * **events** (`tick`, `leave`, `on_disconnect`, `unheard`, `on_key_changed`, …): what happened outside a request;
//!   they only note what is to be done, since they may come at a moment when nothing may be changed;
//! * **settlement** (`settle_dirty`, `bring_up_to_date`): does what is to be done, when the caller says that changes are
//!   possible;
//! * **getters** (`policy`, `counters`, `held`, `position`, `check`, `view`, `next_wakeup`): change nothing.
//!
//! Nothing else of the engine can be reached. After each of them the caller works through what has piled up: the changed
//! [`Entry`]s of its [`Keyspace`], and the answers and messages ([`Engine::take_outputs`]). `outbox.rs` says in which order.
//!
//! Each part uses those above it only:
//!
//! | part | what is in it |
//! |---|---|
//! | `invariants`, `types`, `collections` | reporting of broken invariants; the words as types; containers that know nothing of locks |
//! | `lock` | what is durable of a lock, how it changes, its bytes; who may hold together; the token clock |
//! | `policy`, `counters`, `keyspace`, `refusal` | settings; what is counted; where locks are kept; why a request is refused |
//! | `queue` | wait queues: places, requests, deadlines; the watch over locks that have one |
//! | `outbox` | answers and messages, in order |
//! | `holds` | how holds begin and end, and how they are tied to connections |
//! | `state` | [`Engine`]: all of it |
//! | `deadlock` | the search for a circle of waiting owners |
//! | `rules` | what decides: requests, events, settlement |
//! | `view` | what there is to see |

#![forbid(unsafe_code)]

pub mod collections;
pub mod counters;
mod deadlock;
mod holds;
pub mod invariants;
mod keyspace;
pub mod lock;
mod outbox;
mod policy;
mod queue;
pub mod refusal;
mod rules;
mod state;
mod types;
mod view;

pub use holds::{KeepReply, Loss, LostHold, TieRequest, SHORTEST_AUTO_LEASE_MS};
pub use keyspace::{Entry, Event, Keyspace, Value};
pub use lock::change::{self, End};
pub use lock::{codec, Lock};
pub use outbox::{Message, Outcome, Output, Pending, Promise};
pub use policy::Policy;
pub use refusal::{NoAck, Refusal};
pub use rules::requests::acquire::{Answer, Ask, Wait};
pub use state::Engine;
pub use types::*;
pub use view::graph::Edge;
pub use view::inspect::{HoldView, LockState, PlaceKind, PlaceView, Row};
