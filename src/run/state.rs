//! The module's state between events.

use super::caller::Client;
use super::keyspace::OpenKeys;
use super::search::Search;
use crate::ffi::memory::MainThread;
use crate::node::{census, clock, gate};
use crate::replicas;
use crate::settings::{config, Settings, Situation};
use crate::tell::observers::{self, Notifications};
use dlock_commands::words::slots::Awaited;
use dlock_commands::Call;
use dlock_engine::{Engine, Lock, News, Now, RequestId, SteadyMs};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The module's state between events.
pub(super) struct State {
    pub(super) engine: Engine,
    pub(super) keys: OpenKeys,
    pub(super) awaited: Awaited,
    /// When a node of a cluster asks for its slots again.
    pub(super) next_slots: SteadyMs,
    pub(super) settings: Settings,
    /// Since when this server is a primary, for the quarantine.
    pub(super) since: SteadyMs,
    pub(super) next_check: SteadyMs,
    /// When the next step of the scan may run.
    pub(super) next_scan: SteadyMs,
    /// The search for locks that have moved to another name.
    pub(super) search: Search,
    // Reused buffers, swapped out while notifications are sent.
    pub(super) notifications: Notifications,
    pub(super) texts: observers::Texts,
}

lazy_static::lazy_static! {
    pub(super) static ref STATE: MainThread<State> = MainThread::new(State {
        engine: Engine::default(),
        keys: OpenKeys::new(),
        awaited: Awaited::default(),
        next_slots: SteadyMs(0),
        settings: Settings::default(),
        since: clock::read().steady(),
        next_check: SteadyMs(0),
        next_scan: SteadyMs(0),
        search: Search::default(),
        notifications: Notifications::default(),
        texts: observers::Texts::default(),
    });
}

/// Tickets that users have brought by RESTORE and that are not counted as places yet.
pub(super) static RESTORED: AtomicUsize = AtomicUsize::new(0);

impl State {
    /// Makes a call of a command in this event.
    pub(super) fn call<'c>(&'c mut self, caller: &'c Client<'c>, now: Now) -> Call<'c, OpenKeys> {
        Call {
            db: self.keys.home(),
            engine: &mut self.engine,
            keys: &mut self.keys,
            now,
            caller,
            default_lease_ms: self.settings.default_lease_ms,
            primary: gate::primary(),
        }
    }

    /// Reads the settings again if the operator has changed any.
    #[inline(always)]
    pub(super) fn refresh_settings(&mut self) {
        if self.settings.are_outdated() {
            self.read_settings();
        }
    }

    #[cold]
    fn read_settings(&mut self) {
        replicas::read_setting();
        let now = clock::read().steady();
        let policy = self.settings.read(Situation {
            since: self.since,
            quarantine_until: self.engine.policy().quarantine_until,
            gate: replicas::with(|links, terms| links.standing.gate(terms, now.0)),
            replicas: replicas::status(now),
        });
        self.engine.set_policy(policy);
    }
}

/// Returns what a SESSION command that waits would be answered now; none if it is not one, or while the state is borrowed.
pub(super) fn news_for(id: RequestId) -> Option<News> {
    STATE.try_borrow_mut()?.engine.news_for(id, clock::read())
}

/// Returns how many databases the server has, and how many holds there are in all of them; none while the state is borrowed.
pub(super) fn databases_and_holds() -> Option<(u32, i64)> {
    let state = STATE.try_borrow_mut()?;
    let held = census::holds() + state.engine.counters().held;
    Some((state.settings.databases, held))
}

/// Returns true if a lock that a user brings by RESTORE is within the caps of this server. Counts its tickets.
pub(super) fn has_room_for(lock: &Lock) -> bool {
    let Some(places) = STATE.try_borrow_mut().map(|state| state.engine.places()) else {
        return false;
    };
    let (holders, queued) = (lock.holders(), lock.tickets_len());
    let places = places + RESTORED.load(Ordering::Relaxed) + queued;
    let fits = holders <= config::MAX_HOLDERS.amount()
        && queued <= config::MAX_QUEUE.amount()
        && (queued == 0 || places <= config::MAX_PLACES.amount());
    if fits {
        RESTORED.fetch_add(queued, Ordering::Relaxed);
    }
    fits
}
