//! The server's keyspace for the engine: locks, opened on first use, written back at the end of the event.

// The places of open keys are given by `open` and `find` alone. A lookup that could fail would cost every command.
#![allow(clippy::indexing_slicing)]

use crate::callbacks::data_type;
use crate::ffi::api::hot;
use crate::ffi::callbacks::scan::Scan;
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MaybeOwned;
use crate::ffi::text::{Str, Text};
use crate::ffi::user::User;
use crate::inbox;
use crate::node::{gate, slots};
use crate::servers;
use crate::tell::observers::{self, Notifications};
use crate::tell::replicate;
use dlock_commands::words::slots::Own;
use dlock_engine::{Entry, Keyspace, Lock, NameRef};
use redis_module::raw::{self, RedisModuleKey};
use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::ptr::{self, NonNull};

/// The most open keys that are searched one by one: most events open one or two. More of them are found by their hashes, or an
/// event with many would compare each with all others.
const FEW: usize = 16;

/// The module's options.
pub(super) const OPTIONS: c_int = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS as c_int
    | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int
    | servers::ATOMIC_SLOT_MIGRATION;

/// The option in force except while a changed key is closed: a key that was opened for writing and stayed as it was concerns nobody who
/// watches it.
pub(super) const CLOSES_SILENTLY: c_int =
    raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int;

/// Room that the hashes of open keys keep from one event to the next.
const KEPT_HASHES: usize = 4096;

/// The access of an event to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It reads them: nothing is opened for writing, so nothing expires or is deleted.
    Read,
    /// It changes them.
    Write,
}

/// The origin of an event.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The module itself, or the server.
    Event,
    /// A command, and its words from the first key on: the keys' strings can be used to open them.
    Command(&'a [Str<'a>], &'a [&'a [u8]]),
}

/// The keys that an event has opened. One value serves all events, since its buffers are reused.
pub(super) struct OpenKeys {
    // The context of the event.
    ctx: Ctx<'static>,
    mode: Mode,
    // The database of the context when the event began, and the one it works in now.
    home: u32,
    selected: u32,
    // The server's own strings of a command's words from the first key on, and their bytes.
    named: (*const [Str<'static>], *const [&'static [u8]]),
    open: Vec<Open>,
    used: usize,
    // Their positions by the hashes of their names, once they are more than a few.
    by_hash: HashMap<u64, usize>,
    hash: RandomState,
    slots: slots::SlotCache,
    // Whether anybody reads effects; else changes are only counted.
    replicate: bool,
}

struct Open {
    db: u32,
    // Alive until the event is worked off.
    name: Str<'static>,
    // The bytes of `name`, for comparing.
    bytes: *const [u8],
    made: Option<Text>,
    key: *mut RedisModuleKey,
    stored: bool,
    entry: Entry<MaybeOwned<Lock>>,
}

impl OpenKeys {
    /// Makes a keyspace with no key open.
    pub(super) fn new() -> OpenKeys {
        OpenKeys {
            // SAFETY: `begin` puts another there before anything is opened.
            ctx: unsafe { Ctx::none() },
            mode: Mode::Read,
            home: 0,
            selected: 0,
            named: NAMELESS,
            open: Vec::new(),
            used: 0,
            by_hash: HashMap::new(),
            hash: RandomState::new(),
            slots: slots::SlotCache::default(),
            replicate: true,
        }
    }

    /// Begins an event in this context, with this access.
    pub(super) fn begin(&mut self, ctx: Ctx, mode: Mode, origin: Origin) {
        // SAFETY: used until the event is worked off, which it lives longer than.
        self.ctx = unsafe { ctx.outlive() };
        self.mode = mode;
        self.home = ctx.selected();
        self.selected = self.home;
        // Only a command has words of its own that can be counted; other events are rare enough. They live until it is
        // worked off.
        (self.named, self.replicate) = match origin {
            Origin::Event => (NAMELESS, true),
            Origin::Command(strings, words) => (
                // Used until the event is worked off, which they live longer than.
                (
                    ptr::slice_from_raw_parts(strings.as_ptr().cast(), strings.len()),
                    ptr::slice_from_raw_parts(words.as_ptr().cast(), words.len()),
                ),
                replicate::listening(),
            ),
        };
        if gate::in_cluster() {
            self.slots.forget();
        }
    }

    /// Returns the database that the event began in.
    pub(super) fn home(&self) -> u32 {
        self.home
    }

    /// Selects the database again that the event began in: a connection must be blocked in its own.
    pub(super) fn restore_db(&mut self) {
        self.select(self.home);
    }

    /// Selects a database, unless the context works in it already.
    fn select(&mut self, db: u32) {
        if self.selected != db {
            self.ctx.select(db);
            self.selected = db;
        }
    }

    /// Returns true if a key that was removed has left with its slot (see `node::slots`).
    pub(super) fn left_with_slot(&mut self, name: NameRef, carried: bool) -> bool {
        gate::in_cluster() && self.slots.left_with_slot(self.ctx, name, carried)
    }

    /// Returns the node's slots.
    pub(super) fn own_slots(&mut self) -> &Own {
        self.slots.own(self.ctx)
    }

    /// Passes the next few locks of a database to `see`. Returns true if there are more.
    pub(super) fn scan(
        &mut self,
        db: u32,
        scan: &mut Scan,
        see: &mut dyn FnMut(NameRef, &Lock),
    ) -> bool {
        self.select(db);
        let see = &mut |key: &[u8], lock: &Lock| see(NameRef { db, key }, lock);
        scan.step(self.ctx, data_type::lock_type(), see)
    }

    /// Returns a lock's position among the open ones; opens its key if necessary.
    #[inline(never)]
    fn find(&mut self, name: NameRef) -> usize {
        match self.opened_index(name) {
            Some(index) => index,
            None => {
                let index = self.open(name);
                if self.used > FEW {
                    self.note_hashes();
                }
                index
            }
        }
    }

    /// Returns a lock's position among the open ones, if its key is open.
    fn opened_index(&self, name: NameRef) -> Option<usize> {
        let opened = self.open.get(..self.used).unwrap_or_default();
        if opened.len() > FEW {
            let index = *self.by_hash.get(&self.hash.hash_one(name))?;
            if opened.get(index).is_some_and(|open| open.is(name)) {
                return Some(index);
            }
            // Another name has the same hash.
        }
        // The very same bytes, in the usual case.
        let same = opened
            .iter()
            .position(|open| ptr::eq(open.bytes, name.key) && open.db == name.db);
        same.or_else(|| opened.iter().position(|open| open.is(name)))
    }

    /// Notes the hash of the key that was opened last, and of those before it if they were few until then.
    fn note_hashes(&mut self) {
        let noted = self.by_hash.len();
        for index in noted..self.used {
            if let Some(open) = self.open.get(index) {
                // SAFETY: the string lives until the event is worked off.
                let key = unsafe { &*open.bytes };
                let hash = self.hash.hash_one(NameRef { db: open.db, key });
                self.by_hash.entry(hash).or_insert(index);
            }
        }
    }

    /// Opens a lock's key; returns its position among the open ones.
    #[inline(never)]
    fn open(&mut self, name: NameRef) -> usize {
        self.select(name.db);
        let index = self.used;
        if index == self.open.len() {
            self.open.push(Open::default());
        }
        let open = &mut self.open[index];
        self.used += 1;
        open.db = name.db;
        open.entry.replicate = self.replicate;
        // SAFETY: the context is the one of the event that is being worked off, the strings live until it is.
        unsafe {
            // A command names its keys in the order in which they are opened.
            let (strings, words) = (&*self.named.0, &*self.named.1);
            match (strings.get(index), words.get(index)) {
                (Some(key), Some(bytes)) if ptr::eq(*bytes, name.key) || **bytes == *name.key => {
                    (open.name, open.bytes) = (*key, *bytes);
                }
                _ => {
                    open.name = open.made.insert(Text::new(name.key)).as_str().outlive();
                    open.bytes = open.name.bytes();
                }
            }
            let mode = match self.mode {
                Mode::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
                Mode::Read => raw::REDISMODULE_READ,
            } as i32;
            open.key = hot!(RedisModule_OpenKey(self.ctx.raw(), open.name.raw(), mode));
            open.stored = false;
            if open.key.is_null()
                || hot!(RedisModule_KeyType(open.key)) == raw::REDISMODULE_KEYTYPE_EMPTY as i32
            {
                return index;
            }
            if hot!(RedisModule_ModuleTypeGetType(open.key)) != data_type::lock_type() {
                open.entry.foreign = true;
                return index;
            }
            let value = hot!(RedisModule_ModuleTypeGetValue(open.key)).cast::<Lock>();
            // Nobody else touches it until `write`, which lets go of it before the server may free it.
            open.entry.lock = NonNull::new(value).map(|value| MaybeOwned::borrowed(value));
            open.stored = open.entry.lock.is_some();
            open.entry.unseen = open.stored;
        }
        index
    }

    /// Writes the event's changes, in one fixed order for each lock: the value before the effect, since the key's deletion or TTL
    /// must be this server's own when replicas get it; the key is closed last, since a handle must not outlive a change of its
    /// value from elsewhere. Adds the events for observers to `notifications`; they are sent later, when no borrow is left,
    /// since an observer may call the module.
    #[inline(always)]
    pub(super) fn write(&mut self, notifications: &mut Notifications) {
        for open in self.open.get_mut(..self.used).unwrap_or_default() {
            if self.selected != open.db {
                self.ctx.select(open.db);
                self.selected = open.db;
            }
            open.write(self.ctx, self.replicate, notifications);
        }
        if self.used > FEW {
            self.by_hash.clear();
            self.by_hash.shrink_to(KEPT_HASHES);
        }
        self.used = 0;
        self.named = NAMELESS;
        self.restore_db();
    }
}

/// The words of an event that is no command.
const NAMELESS: (*const [Str<'static>], *const [&'static [u8]]) = (&[], &[]);

impl Default for Open {
    /// Makes a key that is not open.
    fn default() -> Open {
        Open {
            db: 0,
            // SAFETY: `open` puts another there before it is used.
            name: unsafe { Str::of(ptr::null_mut()) },
            bytes: &[],
            made: None,
            key: ptr::null_mut(),
            stored: false,
            entry: Entry::default(),
        }
    }
}

impl Open {
    fn is(&self, name: NameRef) -> bool {
        // SAFETY: the string lives until the event is worked off.
        let bytes = unsafe { &*self.bytes };
        bytes == name.key && self.db == name.db
    }

    #[inline(always)]
    fn write(&mut self, ctx: Ctx, replicate: bool, notifications: &mut Notifications) {
        let changed = std::mem::take(&mut self.entry.changed);
        // SAFETY: the key was opened in this event. Its value is let go of before anything is done to the key.
        unsafe {
            if let Some(lock) = self.entry.lock.take() {
                let left = (!lock.is_empty()).then(|| lock.key_expiry());
                match lock.into_owned() {
                    None if left.is_none() => {
                        inbox::without_notice(|| hot!(RedisModule_DeleteKey(self.key)));
                    }
                    Some(lock) if changed && left.is_some() => {
                        let value = data_type::into_raw(lock);
                        hot!(RedisModule_ModuleTypeSetValue(
                            self.key,
                            data_type::lock_type(),
                            value
                        ));
                    }
                    _ => {}
                }
                if let Some(expires) = left.filter(|_| changed) {
                    // A key that has just been made has no TTL to take away.
                    if self.stored || expires.is_some() {
                        let at =
                            expires.map_or(raw::REDISMODULE_NO_EXPIRE as i64, |at| at.0 as i64);
                        hot!(RedisModule_SetAbsExpire(self.key, at));
                    }
                }
            }
            if changed {
                if replicate {
                    replicate::effect(ctx, self.name, &self.entry.effect);
                } else {
                    replicate::nothing(ctx);
                }
            }
            if !self.key.is_null() {
                if changed {
                    // So it reports the change to those who watch the key. To ask for the report alone takes one more lookup on
                    // Redis 8.6.
                    hot!(RedisModule_SetModuleOptions(ctx.raw(), OPTIONS));
                }
                hot!(RedisModule_CloseKey(self.key));
                if changed {
                    hot!(RedisModule_SetModuleOptions(
                        ctx.raw(),
                        OPTIONS | CLOSES_SILENTLY
                    ));
                }
                self.key = ptr::null_mut();
            }
        }
        if !self.entry.events.is_empty() {
            let key = match self.made.take() {
                Some(made) => notifications.own_key(made),
                None => observers::Key::Argument(self.name),
            };
            for event in &self.entry.events {
                notifications.add(self.db, key, event);
            }
            self.entry.events.clear();
        }
        self.entry.effect.clear();
        self.entry.foreign = false;
        self.entry.unseen = false;
        self.made = None;
    }
}

impl Keyspace for OpenKeys {
    type Value = MaybeOwned<Lock>;

    #[inline(always)]
    fn entry(&mut self, name: NameRef) -> &mut Entry<MaybeOwned<Lock>> {
        // The first is usually the only one.
        let index = match self.used {
            0 => self.open(name),
            _ => self.find(name),
        };
        &mut self.open[index].entry
    }

    fn can_grant(&mut self, name: NameRef) -> bool {
        !gate::in_cluster() || self.slots.can_grant(self.ctx, name)
    }

    fn can_write(&mut self, name: NameRef) -> bool {
        if self.can_grant(name) {
            return true;
        }
        let mut here = false;
        self.inspect(name, &mut |_| here = true);
        here && self.slots.can_write(self.ctx, name)
    }

    fn moved(&mut self, name: NameRef) -> bool {
        gate::in_cluster() && !self.slots.served_here(self.ctx, name.key)
    }

    /// Opens the key for this call only: a search through many locks leaves none open behind it.
    fn inspect(&mut self, name: NameRef, see: &mut dyn FnMut(&Lock)) -> bool {
        if let Some(open) = self
            .opened_index(name)
            .and_then(|index| self.open.get(index))
        {
            if let Some(lock) = &open.entry.lock {
                see(lock);
            }
            return open.entry.foreign || !open.entry.value().is_empty();
        }
        self.select(name.db);
        let key = Text::new(name.key);
        let mode = match self.mode {
            Mode::Write => servers::TRACELESS_IF_ABSENT,
            Mode::Read => servers::TRACELESS,
        };
        // SAFETY: the context is the one of the event that is being worked off; the value is read while the key is
        // open, and nothing is called meanwhile that could change it.
        unsafe {
            let open = hot!(RedisModule_OpenKey(
                self.ctx.raw(),
                key.as_str().raw(),
                mode
            ));
            if open.is_null() {
                return false;
            }
            if hot!(RedisModule_ModuleTypeGetType(open)) == data_type::lock_type() {
                let value = hot!(RedisModule_ModuleTypeGetValue(open)).cast::<Lock>();
                if let Some(lock) = value.as_ref() {
                    see(lock);
                }
            }
            let there = hot!(RedisModule_KeyType(open)) != raw::REDISMODULE_KEYTYPE_EMPTY as i32;
            hot!(RedisModule_CloseKey(open));
            there
        }
    }

    fn readable(&mut self, name: NameRef) -> bool {
        User::calling(self.ctx).is_some_and(|user| user.may_read(name.key))
    }
}
