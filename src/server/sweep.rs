//! A slow search through the keyspace, for servers whose generic keyspace events cannot be listened to
//! (`quirks::generic_events_are_safe`): it finds the locks that were renamed or moved, or whose TTL was changed, behind the module's back.

use super::api::{self, api, hot, Ctx, Key, Str};
use super::{door, persist, stored};
use crate::engine::{Name, NameRef};
use redis_module::raw::RedisModuleScanCursor;
use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

/// How long one step may take. At a step a second this is a thousandth of the server's time.
const STEP: Duration = Duration::from_millis(1);

/// How far the sweep has come.
pub struct Sweep {
    db: u32,
    cursor: *mut RedisModuleScanCursor,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep {
            db: 0,
            cursor: ptr::null_mut(),
        }
    }
}

impl Sweep {
    /// Goes one step further through all databases; gives the locks that it came by. The context is left in another
    /// database.
    pub fn step(&mut self, ctx: *mut Ctx, databases: u32) -> Vec<Name> {
        let mut found = Vec::new();
        if !stored::any() {
            return found;
        }
        let begun = Instant::now();
        let start = self.db;
        // SAFETY: a live context; the cursor is made once and kept; the callback gets the list for the length of a call.
        unsafe {
            if self.cursor.is_null() {
                self.cursor = api!(RedisModule_ScanCursorCreate());
            }
            api::select(ctx, self.db);
            while begun.elapsed() < STEP {
                let list = ptr::from_mut(&mut found).cast::<c_void>();
                if api!(RedisModule_Scan(ctx, self.cursor, Some(see), list)) == 0 {
                    api!(RedisModule_ScanCursorRestart(self.cursor));
                    self.db = (self.db + 1) % databases.max(1);
                    api::select(ctx, self.db);
                    if self.db == start {
                        break;
                    }
                }
            }
        }
        found
    }
}

unsafe extern "C" fn see(ctx: *mut Ctx, name: *mut Str, key: *mut Key, list: *mut c_void) {
    // SAFETY: the server's own key, which may be left out, and the list of `step`.
    door(|| unsafe {
        if key.is_null() || hot!(RedisModule_ModuleTypeGetType(key)) != persist::lock_type() {
            return;
        }
        if let Some(found) = list.cast::<Vec<Name>>().as_mut() {
            let db = api::selected(ctx);
            let key = api::bytes(name);
            found.push(NameRef { db, key }.to_owned());
        }
    });
}
