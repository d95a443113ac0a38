//! The server's API as this module uses it: raw calls behind names, and nothing decided.
//!
//! The crate's own wrappers cover neither blocking with callbacks nor most events, and they copy every argument, which
//! costs a fifth of an uncontended command; so the raw calls are used throughout.

use redis_module::raw;
pub use redis_module::raw::{
    RedisModuleBlockedClient as Blocked, RedisModuleCtx as Ctx, RedisModuleKey as Key,
    RedisModuleString as Str,
};
use std::ffi::{c_char, c_int, c_long, c_longlong, c_ulonglong, c_void, CStr};
use std::ptr;
use std::time::Duration;

/// Calls a function of the server's API by name. To be used within `unsafe`: the arguments are the caller's promise.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(call) => call($($arg),*),
            None => $crate::ffi::api::missing(stringify!($name)),
        }
    };
}
pub(crate) use api;

/// The same for the functions that an uncontended command calls (see [`Hot`]).
macro_rules! hot {
    ($name:ident($($arg:expr),* $(,)?)) => {
        ($crate::ffi::api::HOT.$name)($($arg),*)
    };
}
pub(crate) use hot;

/// Lists the functions of [`Hot`], which are then filled in at load.
macro_rules! hot_functions {
    ($($name:ident($($arg:ty),*) -> $answer:ty;)*) => {
        /// What an uncontended command calls. Such a command is bound by how much code it runs through, more than a first
        /// level cache holds; a call of a pointer that is there for certain takes a third of one that has to be checked
        /// first. Filled in before anything of the module's is called; until then each of them ends the process.
        #[allow(non_snake_case)]
        pub struct Hot {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $answer,)*
        }

        /// The one table. Written once, by [`complete`], in the thread that the server calls its modules from.
        pub static mut HOT: Hot = Hot {
            $($name: {
                unsafe extern "C" fn absent($(_: $arg),*) -> $answer {
                    missing(stringify!($name))
                }
                absent
            },)*
        };

        impl Hot {
            fn of_server() -> Result<Hot, &'static str> {
                // SAFETY: pointers that the server has set before this and never changes.
                unsafe {
                    Ok(Hot { $($name: raw::$name.ok_or(stringify!($name))?,)* })
                }
            }
        }
    };
}

hot_functions! {
    RedisModule_CloseKey(*mut Key) -> ();
    RedisModule_DeleteKey(*mut Key) -> c_int;
    RedisModule_GetClientId(*mut Ctx) -> c_ulonglong;
    RedisModule_GetSelectedDb(*mut Ctx) -> c_int;
    RedisModule_KeyType(*mut Key) -> c_int;
    RedisModule_ModuleTypeGetType(*mut Key) -> *mut raw::RedisModuleType;
    RedisModule_ModuleTypeGetValue(*mut Key) -> *mut c_void;
    RedisModule_ModuleTypeSetValue(*mut Key, *mut raw::RedisModuleType, *mut c_void) -> c_int;
    RedisModule_OpenKey(*mut Ctx, *mut Str, c_int) -> *mut Key;
    RedisModule_ReplicateVerbatim(*mut Ctx) -> c_int;
    RedisModule_ReplyWithArray(*mut Ctx, c_long) -> c_int;
    RedisModule_ReplyWithLongLong(*mut Ctx, c_longlong) -> c_int;
    RedisModule_SetAbsExpire(*mut Key, c_longlong) -> c_int;
    RedisModule_SignalModifiedKey(*mut Ctx, *mut Str) -> c_int;
    RedisModule_StringPtrLen(*const Str, *mut usize) -> *const c_char;
}

/// A function that was seen at load is gone: cannot happen, and if it does the caller's door answers it.
#[cold]
pub fn missing(name: &str) -> ! {
    panic!("the server has no {name}")
}

/// The server's word for success.
pub const OK: c_int = raw::REDISMODULE_OK as c_int;
/// The server's word for failure.
pub const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Whether this server offers everything the module cannot do without. To be called at load, before anything else here.
pub fn complete() -> Result<(), &'static str> {
    macro_rules! need {
        ($($name:ident)*) => {
            $(
                // SAFETY: a pointer that the server has set before this and never changes.
                if unsafe { raw::$name }.is_none() {
                    return Err(stringify!($name));
                }
            )*
        };
    }
    need! {
        RedisModule_AvoidReplicaTraffic RedisModule_BlockClientOnKeys RedisModule_Call
        RedisModule_CreateCommand RedisModule_CreateString RedisModule_CreateTimer
        RedisModule_EventLoopAddOneShot RedisModule_GetAbsExpire RedisModule_GetContextFlags RedisModule_GetDbIdFromIO
        RedisModule_GetCurrentUserName
        RedisModule_GetDbIdFromOptCtx RedisModule_GetDetachedThreadSafeContext RedisModule_GetKeyNameFromOptCtx
        RedisModule_GetNotifyKeyspaceEvents
        RedisModule_NotifyKeyspaceEvent RedisModule_PublishMessage RedisModule_PublishMessageShard
        RedisModule_Replicate RedisModule_SetCommandInfo RedisModule_SubscribeToServerEvent
        RedisModule_UnblockClient RedisModule_RegisterNumericConfig
    }
    // SAFETY: nothing else runs at load.
    unsafe { HOT = Hot::of_server()? };
    Ok(())
}

/// The bytes of a server string.
///
/// # Safety
/// `string` is a live string of the server, and outlives the slice.
pub unsafe fn bytes<'a>(string: *const Str) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the string is live; the bytes are its own, as many as it says.
    unsafe {
        let start = hot!(RedisModule_StringPtrLen(string, &mut len));
        if start.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// A server string of one's own, freed on drop.
pub struct Text(*mut Str);

impl Text {
    /// A copy of these bytes.
    pub fn new(bytes: &[u8]) -> Text {
        // SAFETY: the server copies the bytes; without a context the string is the caller's to free.
        Text(unsafe {
            api!(RedisModule_CreateString(
                ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        })
    }

    /// The string, for calls; it stays this value's.
    pub fn raw(&self) -> *mut Str {
        self.0
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: made by `new` without a context and freed once.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.0)) }
    }
}

/// What the server says of itself and of the caller (`REDISMODULE_CTX_FLAGS_*`).
pub fn flags(ctx: *mut Ctx) -> u32 {
    // SAFETY: any context, or none, may be asked.
    unsafe { api!(RedisModule_GetContextFlags(ctx)) as u32 }
}

/// The database that a context works in.
pub fn selected(ctx: *mut Ctx) -> u32 {
    // SAFETY: a live context.
    unsafe { hot!(RedisModule_GetSelectedDb(ctx)) as u32 }
}

/// Makes a context work in a database.
pub fn select(ctx: *mut Ctx, db: u32) {
    // SAFETY: a live context; a database out of range is refused by the server.
    unsafe { api!(RedisModule_SelectDb(ctx, db as c_int)) };
}

/// Whether anything that would reach replicas must wait: the server is paused, fails over or shuts down.
pub fn must_hold_back() -> bool {
    // SAFETY: takes nothing.
    unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// Tells subscribers something; `shard` for the sharded kind.
pub fn publish(ctx: *mut Ctx, channel: &[u8], message: &[u8], shard: bool) {
    let (channel, message) = (Text::new(channel), Text::new(message));
    // SAFETY: the server keeps its own references to the strings where it needs them.
    unsafe {
        if shard {
            api!(RedisModule_PublishMessageShard(
                ctx,
                channel.raw(),
                message.raw()
            ));
        } else {
            api!(RedisModule_PublishMessage(
                ctx,
                channel.raw(),
                message.raw()
            ));
        }
    }
}

/// What the server answers to a question of two constant words, if that is one text.
pub fn ask(ctx: *mut Ctx, command: &CStr, word: &CStr) -> Option<String> {
    // SAFETY: a live context and constants; the reply is copied from and freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            command.as_ptr(),
            c"c".as_ptr(),
            word.as_ptr()
        ));
        if reply.is_null() {
            return None;
        }
        let text = text_of(reply);
        api!(RedisModule_FreeCallReply(reply));
        text
    }
}

/// The text of a reply, if it is one.
///
/// # Safety
/// `reply` is live, or null.
pub unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
    if reply.is_null() {
        return None;
    }
    let mut len = 0;
    // SAFETY: the reply is live; the bytes are its own, and copied.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
        (!start.is_null()).then(|| {
            let bytes = std::slice::from_raw_parts(start.cast::<u8>(), len);
            String::from_utf8_lossy(bytes).into_owned()
        })
    }
}

/// What a setting of the server is at; none if it does not have it.
pub fn setting(ctx: *mut Ctx, setting: &CStr) -> Option<String> {
    // SAFETY: a call of CONFIG with constant words; the value is copied from the reply, which is freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"CONFIG".as_ptr(),
            c"cc".as_ptr(),
            c"GET".as_ptr(),
            setting.as_ptr()
        ));
        if reply.is_null() {
            return None;
        }
        let text = text_of(api!(RedisModule_CallReplyArrayElement(reply, 1)));
        api!(RedisModule_FreeCallReply(reply));
        text
    }
}

/// Tells the server's latency monitor.
pub fn latency(event: &CStr, took: Duration) {
    // SAFETY: the server copies the name.
    unsafe {
        api!(RedisModule_LatencyAddSample(
            event.as_ptr(),
            took.as_millis() as i64
        ))
    };
}

/// Whether the connection with this client id is there.
pub fn connected(client: u64) -> bool {
    // SAFETY: without a structure to fill in, the server only looks the id up.
    unsafe { api!(RedisModule_GetClientInfoById(ptr::null_mut(), client)) == OK }
}

/// Whether the connection with this client id has subscriptions.
pub fn subscribes(client: u64) -> bool {
    // SAFETY: the structure is the server's, with the version that says which.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = std::mem::zeroed();
        info.version = raw::REDISMODULE_CLIENTINFO_VERSION as u64;
        let found = api!(RedisModule_GetClientInfoById(
            ptr::from_mut(&mut info).cast(),
            client
        ));
        found == OK && info.flags & u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_PUBSUB) != 0
    }
}

/// What CLIENT LIST says of a connection.
pub fn client_line(ctx: *mut Ctx, client: u64) -> Option<String> {
    // SAFETY: a live context, constants and a number; the reply is copied from and freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"CLIENT".as_ptr(),
            c"ccl".as_ptr(),
            c"LIST".as_ptr(),
            c"ID".as_ptr(),
            client as c_longlong
        ));
        if reply.is_null() {
            return None;
        }
        let line = text_of(reply);
        api!(RedisModule_FreeCallReply(reply));
        line.filter(|line| !line.is_empty())
    }
}

/// The name of the calling user.
pub fn user(ctx: *mut Ctx) -> Vec<u8> {
    // SAFETY: a live context; the string is copied from and freed.
    unsafe {
        let name = api!(RedisModule_GetCurrentUserName(ctx));
        if name.is_null() {
            return Vec::new();
        }
        let user = bytes(name).to_vec();
        api!(RedisModule_FreeString(ctx, name));
        user
    }
}

/// Whether a script calls.
pub fn in_script(ctx: *mut Ctx) -> bool {
    flags(ctx) & raw::REDISMODULE_CTX_FLAGS_LUA != 0
}

/// Whether the server passes keyspace events of the module class on (`notify-keyspace-events` has a `d`).
pub fn notifies_of_modules() -> bool {
    // SAFETY: takes nothing.
    let classes = unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) };
    classes & raw::REDISMODULE_NOTIFY_MODULE as c_int != 0
}

/// Raises a keyspace event of the module class.
pub fn notify(ctx: *mut Ctx, event: &CStr, key: *mut Str) {
    // SAFETY: a live context and string; the event's name is copied.
    unsafe {
        api!(RedisModule_NotifyKeyspaceEvent(
            ctx,
            raw::REDISMODULE_NOTIFY_MODULE as c_int,
            event.as_ptr(),
            key
        ))
    };
}

/// One field of a section of INFO, as text; none if the server does not have it.
pub fn server_info(ctx: *mut Ctx, section: &CStr, field: &CStr) -> Option<String> {
    // SAFETY: the data is freed below, after the field has been copied out of it.
    unsafe {
        let data = api!(RedisModule_GetServerInfo(ctx, section.as_ptr()));
        let value = api!(RedisModule_ServerInfoGetFieldC(data, field.as_ptr()));
        let text = (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned());
        api!(RedisModule_FreeServerInfo(ctx, data));
        text
    }
}

/// Integer reply.
pub fn reply_integer(ctx: *mut Ctx, value: u64) {
    // SAFETY: a live context that is owed a reply.
    unsafe { hot!(RedisModule_ReplyWithLongLong(ctx, value as c_longlong)) };
}

/// Bulk reply.
pub fn reply_bulk(ctx: *mut Ctx, value: &[u8]) {
    // SAFETY: as above; the bytes are copied.
    unsafe {
        api!(RedisModule_ReplyWithStringBuffer(
            ctx,
            value.as_ptr().cast(),
            value.len()
        ))
    };
}

/// Error reply. The text begins with its code.
pub fn reply_error(ctx: *mut Ctx, text: &str) {
    // Error texts are the module's own, with client bytes escaped; a NUL or line break would still break the protocol.
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let text = std::ffi::CString::new(clean).unwrap_or_default();
    // SAFETY: as above; the text is copied.
    unsafe { api!(RedisModule_ReplyWithError(ctx, text.as_ptr())) };
}

/// Frees what the server's allocator made.
pub fn free(memory: *mut c_void) {
    // SAFETY: memory of the server's allocator, given up by its owner.
    unsafe { api!(RedisModule_Free(memory)) }
}
