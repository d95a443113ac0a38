//! The lock itself, and nothing else: no Redis, no clock, no randomness that a decision depends on, no I/O, no `unsafe`.
//!
//! Time is an argument everywhere; the same inputs give the same outputs. The methods of [`Engine`] fall into four kinds:
//!
//! * **requests** (`acquire`, `acquire_many`, `renew`, `release`, `force`, `cancel`, …): what a client asks; they bring the
//!   lock up to date, decide, and answer;
//! * **events** (`tick`, `leave`, `on_disconnect`, `on_undelivered`, `on_key_changed`, …): what happened outside a request;
//!   they only note what must be done, since they may come at a moment when nothing may be changed;
//! * **settlement** (`settle_dirty`, `bring_up_to_date`): does it, when the caller says that changes are possible;
//! * **getters** (`policy`, `counters`, `held`, `position`, `check`, `view`, `next_wakeup`): change nothing.
//!
//! Nothing else of the engine can be reached. After each of them the caller performs the outputs: the changed
//! [`Entry`]s of its [`Keyspace`], and the answers ([`Engine::take_outputs`]). `outbox.rs` says in which order.
//!
//! Each part uses those above it only:
//!
//! | part | what is in it |
//! |---|---|
//! | `invariants`, `types`, `collections` | reporting of broken invariants; the terms as types; containers that know nothing of locks |
//! | `lock` | the durable state of a lock, its changes, its bytes; the granting rule (`Lock::admits`); the token clock |
//! | `policy`, `counters`, `keyspace`, `refusal` | settings; counts and times; access to locks; why a request is refused |
//! | `queue` | wait queues: places, requests, deadlines; the watch over locks that have one |
//! | `outbox` | answers, in order |
//! | `log` | the flight recorder: what was not ordinary |
//! | `holds` | the begin and end of holds; their ties to connections and sessions; what the sessions' programs have not seen |
//! | `state` | [`Engine`]: its fields and getters |
//! | `deadlock` | the search for a circle of waiting owners |
//! | `rules` | the decisions: `requests`, events (`outside`), settlement; who may be granted (`grantable`) and who is next (`serve`) |
//! | `view` | views of locks and of waits |

#![forbid(unsafe_code)]

pub mod collections;
pub mod counters;
mod deadlock;
mod holds;
pub mod invariants;
mod keyspace;
pub mod lock;
pub mod log;
mod outbox;
mod policy;
mod queue;
pub mod refusal;
mod rules;
mod state;
mod types;
mod view;

pub use holds::sessions::{NewsRow, SessionRef, Word};
pub use holds::{Loss, TieId, TieRequest, SHORTEST_AUTO_LEASE_MS};
pub use keyspace::{Entry, Event, Keyspace, Value};
pub use lock::change::{self, End};
pub use lock::{codec, Lock};
pub use outbox::{News, Outcome, Output, Pending, Promise, Receiver};
pub use policy::Policy;
pub use refusal::{NoAck, Refusal};
pub use rules::outside::losses::Lost;
pub use rules::requests::acquire::{Answer, Ask, Wait};
pub use rules::requests::session::{Keep, Kept};
pub use state::Engine;
pub use types::*;
pub use view::graph::Edge;
pub use view::inspect::{HoldView, LockState, PlaceKind, PlaceView, Row, SessionView};
