//! Notes of callbacks. A disconnection, a removed key or a change of role may come in the middle of anything, at a moment when
//! nothing may be changed. A callback only posts a notice here, and the module's next event reads it.

use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::node::timer;
use crate::settings::config;
use dlock_engine::{
    ClientId, HoldRef, Lock, Lost, Name, NameRef, Promise, RequestId, Token, WallMs,
};
use redis_module::raw;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Something that has happened.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The connection of a waiting request has ended, or waits no longer.
    Gone(RequestId),
    /// This connection has ended, and its ties with it.
    Ended(ClientId),
    /// The answer that promised these holds was not delivered: its connection has ended before it got it, or before replicas had
    /// confirmed it.
    Undelivered(Vec<Promise>),
    /// A key that was a lock is gone from its name.
    Unlinked(Unlinked),
    /// A lock has arrived at this name.
    Brought(Name),
    /// A database was emptied, or all.
    Flushed(Option<u32>),
    /// Two databases were exchanged.
    Swapped(u32, u32),
    /// This server became a primary (or a replica).
    Role {
        /// Whether it is a primary now.
        primary: bool,
    },
    /// Loading has ended.
    Loaded,
    /// A key was evicted to free memory.
    Evicted,
}

/// A key that was a lock is gone from its name.
#[derive(Debug)]
pub(crate) struct Unlinked {
    /// The key.
    pub name: Name,
    /// Its holds.
    pub holds: Vec<Gone>,
    /// Whether the lock lives on under another name.
    pub moved: bool,
    /// Whether the module must watch the lock: no TTL ends it.
    pub watched: bool,
    /// Whether its value was serialized right before, as MIGRATE does.
    pub carried: bool,
}

/// A hold of a key that is gone from its name.
#[derive(Debug)]
pub(crate) struct Gone {
    /// The owner; empty if it is not logged.
    pub owner: Box<[u8]>,
    /// What the engine learns of it.
    pub lost: Lost,
    /// When its lease ends.
    pub deadline: WallMs,
}

impl Gone {
    /// Returns whose hold it was.
    pub(crate) fn whose<'a>(&'a self, name: &'a Name) -> HoldRef<'a> {
        HoldRef {
            name: name.as_ref(),
            owner: &self.owner,
        }
    }
}

/// The notices, in order.
static INBOX: MainThread<Vec<Notice>> = MainThread::new(Vec::new());

/// Whether there is any notice. Every event reads it twice.
static ANY: AtomicBool = AtomicBool::new(false);

/// The last value that was unlinked and not yet seen freed. A rename unlinks a value and keeps it; a removal frees it
/// right after, in the same thread and before the next.
static UNLINKED: AtomicPtr<Lock> = AtomicPtr::new(std::ptr::null_mut());

/// Values that this process has serialized since the event loop's last iteration, by their addresses. DUMP and MIGRATE do that, and
/// SAVE, of which no more than `WRITTEN_MOST` are kept.
static WRITTEN: MainThread<BTreeSet<usize>> = MainThread::new(BTreeSet::new());
const WRITTEN_MOST: usize = 65_536;

/// Set while the module itself deletes a key, for which it needs no notice.
static IGNORE_UNLINKS: AtomicBool = AtomicBool::new(false);

/// Returns true while the module itself deletes a key.
pub(crate) fn ignores_unlinks() -> bool {
    IGNORE_UNLINKS.load(Ordering::Relaxed)
}

/// Deletes a key of the module's own, without a notice.
#[inline(always)]
pub(crate) fn without_notice<T>(delete: impl FnOnce() -> T) -> T {
    IGNORE_UNLINKS.store(true, Ordering::Relaxed);
    let deleted = delete();
    IGNORE_UNLINKS.store(false, Ordering::Relaxed);
    deleted
}

/// The highest token, or ticket's number, in values that were loaded, until an event tells the engine.
static HIGHEST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Notes a token, or a ticket's number, in a loaded value.
pub(crate) fn post_number(number: u64) {
    HIGHEST_NUMBER.fetch_max(number, Ordering::Relaxed);
    ANY.store(true, Ordering::Relaxed);
}

/// Takes out the highest number that was noted.
pub(crate) fn take_highest_number() -> u64 {
    HIGHEST_NUMBER.swap(0, Ordering::Relaxed)
}

fn address(lock: &Lock) -> usize {
    std::ptr::from_ref(lock) as usize
}

/// Notes that a value is serialized. In a cluster MIGRATE does that to each of its keys, and removes them right after: nothing else
/// distinguishes it from a DEL by a user, neither the callbacks nor the keyspace event (`del`) nor the replicated command.
pub(crate) fn written(lock: &Lock) {
    let written = WRITTEN.borrow();
    if let Some(mut written) = written.filter(|written| written.len() < WRITTEN_MOST) {
        written.insert(address(lock));
    }
}

/// Forgets the serialized values at the end of an iteration of the event loop: those that are still there were not migrated.
pub(crate) fn on_before_sleep() {
    if let Some(mut written) = WRITTEN.borrow() {
        written.clear();
    }
}

/// Posts a notice and wakes the module's event, which reads it. After a panic nobody reads notices, so none is kept.
pub(crate) fn post(notice: Notice) {
    if crate::ffi::panic::poisoned() {
        return;
    }
    if let Some(mut inbox) = INBOX.borrow() {
        settle_unlinked(&mut inbox);
        if is_third_swap(&notice, &inbox) {
            inbox.pop();
        } else {
            inbox.push(notice);
        }
        ANY.store(true, Ordering::Relaxed);
    }
    timer::soon();
}

/// Returns true if the two notices before it are the same exchange of databases. Two bring the values back, so a third would only mark
/// the same locks again: one is left of three.
fn is_third_swap(notice: &Notice, before: &[Notice]) -> bool {
    let swapped = |notice: &Notice| match notice {
        Notice::Swapped(one, other) => Some((*one, *other)),
        _ => None,
    };
    let pair = swapped(notice);
    match before {
        [.., first, second] => pair.is_some() && swapped(first) == pair && swapped(second) == pair,
        _ => false,
    }
}

/// Posts that a value was unlinked from its name.
pub(crate) fn post_unlinked(name: Name, lock: &Lock) {
    let written = WRITTEN.borrow();
    let carried = written.is_some_and(|mut written| written.remove(&address(lock)));
    let beyond = lock.holders().saturating_sub(config::LOG_MAX_LEN.amount());
    // Of a mass, only the holds that are logged are looked up.
    let gone = |(index, (owner, token, deadline)): (usize, (&[u8], Token, WallMs))| {
        let logged = index >= beyond;
        let hold = if logged { lock.hold(owner) } else { None };
        Gone {
            owner: hold.map_or(Box::default(), |hold| hold.owner.into()),
            lost: Lost {
                token,
                client: hold.map_or(ClientId::NONE, |hold| hold.client),
                logged,
            },
            deadline,
        }
    };
    let holds = || lock.owned_leases().enumerate().map(gone).collect();
    post(Notice::Unlinked(Unlinked {
        name,
        // What a file repeats ended before: it is neither counted nor logged again.
        holds: if is_loading() { Vec::new() } else { holds() },
        moved: false,
        watched: lock.needs_watch(),
        carried,
    }));
    UNLINKED.store(std::ptr::from_ref(lock).cast_mut(), Ordering::Relaxed);
}

fn is_loading() -> bool {
    let loading = |own: Ctx| own.flags() & raw::REDISMODULE_CTX_FLAGS_LOADING != 0;
    Ctx::own().is_some_and(loading)
}

/// Notes that a value is freed, on any thread. It touches only the one atomic, and only reads it in the usual case: an exchange
/// costs as much as the rest of the freeing.
pub(crate) fn freed(lock: &Lock) {
    let value = std::ptr::from_ref(lock).cast_mut();
    if UNLINKED.load(Ordering::Relaxed) != value {
        return;
    }
    let _ = UNLINKED.compare_exchange(
        value,
        std::ptr::null_mut(),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Returns true if the last notice is that a lock has left this name.
pub(crate) fn just_unlinked(name: NameRef) -> bool {
    let inbox = INBOX.borrow();
    inbox.is_some_and(
        |inbox| matches!(inbox.last(), Some(Notice::Unlinked(last)) if last.name.as_ref() == name),
    )
}

/// Returns true if there is any notice.
pub(crate) fn has_something() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Takes out all notices, in order.
pub(crate) fn take() -> Vec<Notice> {
    let Some(mut inbox) = INBOX.borrow() else {
        return Vec::new();
    };
    settle_unlinked(&mut inbox);
    ANY.store(false, Ordering::Relaxed);
    std::mem::take(&mut inbox)
}

/// Settles the last unlinked value before a database is emptied, which frees values that were not unlinked one by one.
pub(crate) fn before_flush() {
    if let Some(mut inbox) = INBOX.borrow() {
        settle_unlinked(&mut inbox);
    }
}

/// Notes that the last unlinked value has only moved, if it has not been freed by now.
fn settle_unlinked(inbox: &mut [Notice]) {
    if UNLINKED
        .swap(std::ptr::null_mut(), Ordering::Relaxed)
        .is_null()
    {
        return;
    }
    let last = inbox.iter_mut().rev().find_map(|notice| match notice {
        Notice::Unlinked(last) => Some(&mut last.moved),
        _ => None,
    });
    if let Some(moved) = last {
        *moved = true;
    }
}
