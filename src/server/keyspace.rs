//! The server's keyspace as the engine sees it: locks, opened on first use, written back when the event is worked off.

use super::api::{self, api, Ctx, Key, Str, Text};
use super::{gate, persist};
use crate::engine::lock::Lock;
use crate::engine::{Entry, Event, Keyspace, Name, NameRef, Now};
use redis_module::raw;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while the module itself deletes a key.
static DELETING: AtomicBool = AtomicBool::new(false);

/// Whether the key that is being unlinked is deleted by the module itself, to which that is no news.
pub fn deleting() -> bool {
    DELETING.load(Ordering::Relaxed)
}

/// What an event may do to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Look at them: nothing is opened for writing, so nothing expires or is deleted by it.
    Read,
    /// Change them.
    Write,
}

/// Something to tell observers, once it is so.
pub enum Told {
    /// Something of one lock.
    Lock(Name, Event),
    /// A database was emptied.
    Flush(u32),
}

/// The keys that an event has opened. Kept between events, so that their buffers are.
pub struct OpenKeys {
    ctx: *mut Ctx,
    mode: Mode,
    // The server's own string of the key that a command names: spares making one.
    named: *mut Str,
    open: Vec<Open>,
    used: usize,
    cluster: bool,
}

struct Open {
    db: u32,
    name: *mut Str,
    made: Option<Text>,
    key: *mut Key,
    stored: bool,
    entry: Entry,
}

impl OpenKeys {
    /// With no key open.
    pub fn new() -> OpenKeys {
        OpenKeys {
            ctx: ptr::null_mut(),
            mode: Mode::Read,
            named: ptr::null_mut(),
            open: Vec::new(),
            used: 0,
            cluster: false,
        }
    }

    /// Begins an event: in this context, with this freedom, and with the key that the command names, if one does.
    pub fn begin(&mut self, ctx: *mut Ctx, mode: Mode, named: Option<*mut Str>) {
        self.ctx = ctx;
        self.mode = mode;
        self.named = named.unwrap_or(ptr::null_mut());
    }

    /// Tells whether the server is a node of a cluster.
    pub fn set_cluster(&mut self, cluster: bool) {
        self.cluster = cluster;
    }

    /// Whether a TTL that was set from outside is to be put right. An earlier end of the key stands: it ends the holds
    /// then. A later one, or none, has no effect on the leases.
    pub fn mistimed(&mut self, name: NameRef, now: Now) -> bool {
        let lock = self.entry(name).lock.as_ref();
        let Some(last) = lock.and_then(|lock| lock.holds().map(|hold| hold.deadline).max()) else {
            return false;
        };
        let wanted = lock.and_then(|lock| lock.expires());
        let at = self.open.iter().take(self.used).find(|open| open.is(name));
        // SAFETY: the key was opened in this event.
        let left = at.map_or(-1, |open| unsafe { api!(RedisModule_GetExpire(open.key)) });
        match (u64::try_from(left), wanted) {
            (Ok(left), _) => now.ms().saturating_add(left) > last,
            (Err(_), wanted) => wanted.is_some(),
        }
    }

    fn open(&mut self, name: NameRef) {
        if self.used == self.open.len() {
            self.open.push(Open {
                db: 0,
                name: ptr::null_mut(),
                made: None,
                key: ptr::null_mut(),
                stored: false,
                entry: Entry::default(),
            });
        }
        let Some(open) = self.open.get_mut(self.used) else {
            return;
        };
        self.used += 1;
        open.db = name.db;
        // SAFETY: the context is the one of the event that is being worked off, the strings live until it is.
        unsafe {
            open.name = match self.named {
                named if !named.is_null() && api::bytes(named) == name.key => named,
                _ => open.made.insert(Text::new(name.key)).raw(),
            };
            if api::selected(self.ctx) != name.db {
                api::select(self.ctx, name.db);
            }
            let read = raw::REDISMODULE_READ as i32;
            let mode = if self.mode == Mode::Write {
                read | raw::REDISMODULE_WRITE as i32
            } else {
                read
            };
            open.key = api!(RedisModule_OpenKey(self.ctx, open.name, mode));
            open.stored = false;
            if open.key.is_null()
                || api!(RedisModule_KeyType(open.key)) == raw::REDISMODULE_KEYTYPE_EMPTY as i32
            {
                return;
            }
            if api!(RedisModule_ModuleTypeGetType(open.key)) != persist::lock_type() {
                open.entry.foreign = true;
                return;
            }
            let value = api!(RedisModule_ModuleTypeGetValue(open.key)).cast::<Lock>();
            // The box is lent to the engine and given back by `write`; the keyspace goes on pointing at it.
            open.entry.lock = (!value.is_null()).then(|| Box::from_raw(value));
            open.stored = open.entry.lock.is_some();
        }
    }

    /// Works off the event's changes, in one fixed order for each lock: the value before the effect, since the key's
    /// deletion or TTL must be this server's own when replicas hear of it; the key is closed last, since a handle
    /// must not outlive a change of its value by somebody else. Observers are told later, when nothing is lent any
    /// more: what they do may come back here. Their list is appended to `told`.
    pub fn write(&mut self, told: &mut Vec<Told>) {
        let home = api::selected(self.ctx);
        for open in self.open.iter_mut().take(self.used) {
            if api::selected(self.ctx) != open.db {
                api::select(self.ctx, open.db);
            }
            open.write(self.ctx, told);
        }
        self.used = 0;
        self.named = ptr::null_mut();
        if api::selected(self.ctx) != home {
            api::select(self.ctx, home);
        }
    }
}

impl Open {
    fn is(&self, name: NameRef) -> bool {
        // SAFETY: the string lives until the event is worked off.
        self.db == name.db && unsafe { api::bytes(self.name) } == name.key
    }

    fn write(&mut self, ctx: *mut Ctx, told: &mut Vec<Told>) {
        let changed = !self.entry.effect.is_empty();
        let lock = self.entry.lock.take();
        // SAFETY: the key was opened in this event; `lock` is the value that it holds (`stored`) or a new one.
        unsafe {
            if let Some(lock) = lock {
                let (empty, expires) = (lock.is_empty(), lock.expires());
                let keep = !empty || self.stored;
                let value = if keep {
                    Box::into_raw(lock)
                } else {
                    ptr::null_mut()
                };
                if empty && self.stored {
                    DELETING.store(true, Ordering::Relaxed);
                    api!(RedisModule_DeleteKey(self.key));
                    DELETING.store(false, Ordering::Relaxed);
                } else if !empty && changed {
                    if !self.stored {
                        api!(RedisModule_ModuleTypeSetValue(
                            self.key,
                            persist::lock_type(),
                            value.cast()
                        ));
                    }
                    let at = expires.map_or(raw::REDISMODULE_NO_EXPIRE as i64, |at| at as i64);
                    if self.stored || expires.is_some() {
                        api!(RedisModule_SetAbsExpire(self.key, at));
                    }
                }
            }
            if changed {
                api!(RedisModule_SignalModifiedKey(ctx, self.name));
                let (effect, len) = (self.entry.effect.as_ptr(), self.entry.effect.len());
                api!(RedisModule_Replicate(
                    ctx,
                    c"DLOCK.APPLY".as_ptr(),
                    c"sb".as_ptr(),
                    self.name,
                    effect.cast::<std::ffi::c_char>(),
                    len
                ));
            }
            if !self.key.is_null() {
                api!(RedisModule_CloseKey(self.key));
                self.key = ptr::null_mut();
            }
            if !self.entry.events.is_empty() {
                let name = NameRef {
                    db: self.db,
                    key: api::bytes(self.name),
                }
                .keep();
                told.extend(
                    self.entry
                        .events
                        .drain(..)
                        .map(|event| Told::Lock(name.clone(), event)),
                );
            }
        }
        self.entry.effect.clear();
        self.entry.foreign = false;
        self.made = None;
    }
}

impl Keyspace for OpenKeys {
    fn entry(&mut self, name: NameRef) -> &mut Entry {
        let at = match self
            .open
            .iter()
            .take(self.used)
            .position(|open| open.is(name))
        {
            Some(at) => at,
            None => {
                self.open(name);
                self.used - 1
            }
        };
        &mut self.open[at].entry
    }

    fn accepts(&mut self, name: NameRef) -> bool {
        !self.cluster || gate::accepts_key(self.ctx, name)
    }
}
