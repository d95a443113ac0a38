//! The calling user, and its permissions by the ACL.

use super::api::{api, OK};
use super::ctx::Ctx;
use super::text::{Str, Text};
use redis_module::raw::{self, RedisModuleUser};
use std::ffi::c_int;
use std::io;

/// A user of the server's.
pub(crate) struct User(*mut RedisModuleUser);

impl User {
    /// Returns the user of the calling connection, or of the connection that runs the calling script. None if there is neither:
    /// another module calls.
    pub(crate) fn calling(ctx: Ctx) -> Option<User> {
        // SAFETY: a valid context; names are the server's and freed here. Only a script's client is asked for its user
        // without a lookup: a module's may have none, which the server does not check.
        unsafe {
            let name = if ctx.in_script() {
                api!(RedisModule_GetCurrentUserName(ctx.raw()))
            } else {
                api!(RedisModule_GetClientUserNameById(ctx.raw(), ctx.client()))
            };
            if name.is_null() {
                return None;
            }
            let user = api!(RedisModule_GetModuleUserFromUserName(name));
            api!(RedisModule_FreeString(ctx.raw(), name));
            (!user.is_null()).then_some(User(user))
        }
    }

    /// Returns true if the ACL forbids the user this command on these keys. It forbids no unknown command.
    pub(crate) fn may_not(&self, argv: &[Str]) -> bool {
        // SAFETY: the user lives until the drop, the arguments, which the server does not change, until the call returns.
        unsafe {
            let checked = api!(RedisModule_ACLCheckCommandPermissions(
                self.0,
                argv.as_ptr().cast_mut().cast(),
                argv.len() as c_int
            ));
            checked != OK && io::Error::last_os_error().kind() == io::ErrorKind::PermissionDenied
        }
    }

    /// Returns true if the ACL lets the user read this key.
    pub(crate) fn may_read(&self, key: &[u8]) -> bool {
        let key = Text::new(key);
        let read = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
        // SAFETY: the user lives until the drop, the key until the call returns.
        unsafe {
            api!(RedisModule_ACLCheckKeyPermissions(
                self.0,
                key.as_str().raw(),
                read
            )) == OK
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: got by `calling` and freed once.
        unsafe { api!(RedisModule_FreeModuleUser(self.0)) }
    }
}
