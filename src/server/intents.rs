//! What commands are about to do to locks' keys, on the servers whose generic keyspace events cannot be listened to
//! (`quirks::generic_events_are_safe`).
//!
//! There a command filter sees RENAME, MOVE, EXPIRE and the like before they run, and leaves word of their keys: whatever comes
//! next from the module inspects them, when the command has run. A command that is put off runs later than that: one of a
//! transaction with its EXEC, one that comes during a pause with the pause's end. So the last ones are remembered, and
//! inspected again when their client says EXEC, and with each heartbeat for a minute. What a filter cannot see is found by
//! the sweep: commands that the operator has renamed, and other modules' direct calls.

use super::api::{self, api, hot, Ctx, Str};
use super::cell::MainThread;
use super::inbox::{self, Notice};
use super::{door, persist, quirks, stored};
use redis_module::raw::{self, RedisModuleCommandFilterCtx as Filter};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

/// How many keys are remembered; a newer one takes the place of the oldest.
const REMEMBERED: usize = 256;

/// For how many heartbeats.
const HEARTBEATS: u32 = 60;

/// A key that a command is about to do something to.
struct Intent {
    client: u64,
    key: Box<[u8]>,
    left: u32,
}

struct Intents {
    ctx: *mut Ctx,
    last: VecDeque<Intent>,
}

static INTENTS: MainThread<Intents> = MainThread::new(Intents {
    ctx: ptr::null_mut(),
    last: VecDeque::new(),
});

/// Has the server show its commands from now on. `own` is a context of the module's own, to inspect keys in.
pub fn watch(ctx: *mut Ctx, own: *mut Ctx) -> Result<(), &'static str> {
    if let Some(mut intents) = INTENTS.try_borrow_mut() {
        intents.ctx = own;
    }
    // SAFETY: the context of the load, and a callback that lives as long as the module, which is never unloaded.
    let filter = unsafe {
        let not_own = raw::REDISMODULE_CMDFILTER_NOSELF as c_int;
        api!(RedisModule_RegisterCommandFilter(ctx, Some(about), not_own))
    };
    match filter.is_null() {
        true => Err("its commands"),
        false => Ok(()),
    }
}

/// Has the last keys inspected once more.
pub fn heartbeat() {
    let Some(mut intents) = INTENTS.try_borrow_mut() else {
        return;
    };
    for intent in &mut intents.last {
        intent.left -= 1;
        inbox::post(Notice::Touched(intent.key.clone()));
    }
    intents.last.retain(|intent| intent.left > 0);
}

/// What a command that is of interest does.
enum Kind {
    /// It takes the value from its first key to its second.
    Renames,
    /// It takes the value from the database to the one that its second word says.
    Moves,
    /// It changes the end of its key.
    Retimes,
    /// It runs what its client has said since MULTI.
    Runs,
}

/// What a command of this name does, if that is of interest. Most are told by their length and first letter.
#[inline]
fn kind(name: &[u8]) -> Option<Kind> {
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    match (name.len(), name.first()?.to_ascii_lowercase()) {
        (4, b'e') if is(b"exec") => Some(Kind::Runs),
        (4, b'm') if is(b"move") => Some(Kind::Moves),
        (6, b'r') if is(b"rename") => Some(Kind::Renames),
        (8, b'r') if is(b"renamenx") => Some(Kind::Renames),
        (6, b'e') if is(b"expire") => Some(Kind::Retimes),
        (8, b'e') if is(b"expireat") => Some(Kind::Retimes),
        (7, b'p') if is(b"pexpire") || is(b"persist") => Some(Kind::Retimes),
        (9, b'p') if is(b"pexpireat") => Some(Kind::Retimes),
        _ => None,
    }
}

/// A command is about to run, or to be put off. Without any lock there is nothing that it could do to one.
unsafe extern "C" fn about(filter: *mut Filter) {
    if !stored::any() {
        return;
    }
    door(|| {
        // SAFETY: the server's own filter context, whose words live for the length of this call.
        let word = |at: c_int| unsafe {
            let word = api!(RedisModule_CommandFilterArgGet(filter, at));
            (!word.is_null()).then_some(word)
        };
        // SAFETY: as above.
        let bytes = |at| word(at).map(|word| unsafe { api::bytes(word) });
        let Some(kind) = bytes(0).and_then(kind) else {
            return;
        };
        // SAFETY: as above.
        let client = unsafe { api!(RedisModule_CommandFilterGetClientId(filter)) };
        let Some(mut intents) = INTENTS.try_borrow_mut() else {
            return;
        };
        match kind {
            Kind::Runs => intents.again(client),
            Kind::Renames => [1, 2]
                .into_iter()
                .filter_map(bytes)
                .for_each(|key| intents.add(client, key)),
            Kind::Moves => {
                let db = bytes(2).and_then(|word| std::str::from_utf8(word).ok());
                if let Some(db) = db.and_then(|db| db.parse().ok()) {
                    stored::found_in(db);
                }
                if let Some(key) = bytes(1) {
                    intents.add(client, key);
                }
            }
            Kind::Retimes => {
                // Such commands may be as many as writes: only locks are of interest.
                if let Some(key) = word(1).filter(|key| intents.is_lock(*key)) {
                    // SAFETY: as above.
                    intents.add(client, unsafe { api::bytes(key) });
                }
            }
        }
    });
}

impl Intents {
    fn add(&mut self, client: u64, key: &[u8]) {
        self.last.truncate(REMEMBERED - 1);
        let key: Box<[u8]> = Box::from(key);
        inbox::post(Notice::Touched(key.clone()));
        self.last.push_front(Intent {
            client,
            key,
            left: HEARTBEATS,
        });
    }

    /// This client's last keys are to be inspected once more.
    fn again(&self, client: u64) {
        let own = self.last.iter().filter(|intent| intent.client == client);
        own.for_each(|intent| inbox::post(Notice::Touched(intent.key.clone())));
    }

    /// Whether a lock is at this key, in whatever database. Leaves no trace.
    fn is_lock(&self, key: *mut Str) -> bool {
        stored::databases().into_iter().any(|db| {
            api::select(self.ctx, db);
            // SAFETY: the module's own context; opened for reading and closed.
            unsafe {
                let opened = hot!(RedisModule_OpenKey(self.ctx, key, quirks::TRACELESS));
                if opened.is_null() {
                    return false;
                }
                let is = hot!(RedisModule_ModuleTypeGetType(opened)) == persist::lock_type();
                hot!(RedisModule_CloseKey(opened));
                is
            }
        })
    }
}
