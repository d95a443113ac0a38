//! Who calls, as the commands see it.

use crate::callbacks::events;
use crate::ffi::api::{self, api, Ctx, Str, Text};
use crate::node::census;
use crate::node::eviction;
use crate::node::gate;
use crate::node::user::User;
use crate::tell::blocking;
use dlock_commands::{Caller, Census, MayWait};
use redis_module::raw;
use std::ffi::CStr;
use std::ptr;

/// The caller of a command: its context.
pub struct Client(pub *mut Ctx);

impl Caller for Client {
    fn client(&self) -> u64 {
        blocking::client(self.0)
    }

    fn may_wait(&self) -> MayWait {
        blocking::may_wait(self.0)
    }

    fn is_followed(&self) -> bool {
        let followed = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
        api::flags(self.0) & followed != 0
    }

    fn own_connection(&self) -> bool {
        // A script, or another module's call, runs with a client that the server's list does not have.
        let own = self.connected(self.client()) && !api::in_script(self.0);
        if own {
            events::subscribe_disconnects(self.0);
        }
        own
    }

    fn may_publish(&self, channel: &[u8]) -> bool {
        User::calling(self.0).is_some_and(|user| user.may_publish(channel))
    }

    fn connected(&self, client: u64) -> bool {
        // A script's own client has no connection, and not every server can be asked for it.
        let script = client == self.client() && api::in_script(self.0);
        !script && api::connected(client)
    }

    fn fresh_owner(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    fn describe(&self, client: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        if !may_run(self.0, &[b"client", b"list"]) {
            return None;
        }
        // SAFETY: the structure is the server's, with the version that says which; the name is freed by `Text`-like use.
        unsafe {
            let mut info: raw::RedisModuleClientInfo = std::mem::zeroed();
            info.version = raw::REDISMODULE_CLIENTINFO_VERSION as u64;
            let found = api!(RedisModule_GetClientInfoById(
                ptr::from_mut(&mut info).cast(),
                client
            ));
            if found != api::OK {
                return None;
            }
            let host = CStr::from_ptr(info.addr.as_ptr())
                .to_string_lossy()
                .into_owned();
            let name = api!(RedisModule_GetClientNameById(self.0, client));
            let named = if name.is_null() {
                Vec::new()
            } else {
                api::bytes(name).to_vec()
            };
            if !name.is_null() {
                api!(RedisModule_FreeString(self.0, name));
            }
            // As CLIENT LIST writes it.
            let at = match host.contains(':') {
                true => format!("[{host}]:{}", info.port),
                false => format!("{host}:{}", info.port),
            };
            Some((at.into_bytes(), named))
        }
    }

    fn may_read(&self, keys: &[&[u8]]) -> Vec<bool> {
        let user = User::calling(self.0);
        let may = |key: &&[u8]| user.as_ref().is_some_and(|user| user.may_read(key));
        keys.iter().map(may).collect()
    }

    fn may_reset(&self) -> bool {
        may_run(self.0, &[b"config", b"resetstat"])
    }

    fn census(&self) -> Census {
        census()
    }
}

/// What there is now.
pub fn census() -> Census {
    Census {
        locks: census::locks(),
        stored_holds: census::holds(),
        connections_waiting: blocking::waiting() as u64,
        eviction_possible: eviction::possible(),
        primary: gate::primary(),
    }
}

/// Whether the calling user may run this command.
fn may_run(ctx: *mut Ctx, words: &[&[u8]]) -> bool {
    let words: Vec<Text> = words.iter().map(|word| Text::new(word)).collect();
    let mut argv: Vec<*mut Str> = words.iter().map(Text::raw).collect();
    User::calling(ctx).is_some_and(|user| !user.may_not(&mut argv))
}
