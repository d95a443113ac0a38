//! Raw calls of the server's API by their names, for this room, and for the keyspace (`run::keyspace`).
//!
//! The crate's own wrappers cover neither blocking with callbacks nor most events, and they copy every argument, which
//! costs a fifth of an uncontended command; so the raw calls are used throughout.

use redis_module::raw;
use redis_module::raw::{RedisModuleCtx as Ctx, RedisModuleKey as Key, RedisModuleString as Str};
use std::ffi::{c_char, c_int, c_long, c_longlong, c_ulonglong, c_void};

/// Calls a function of the server's API by name, within `unsafe`: the caller vouches for the arguments.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(call) => call($($arg),*),
            None => $crate::ffi::api::missing(stringify!($name)),
        }
    };
}
pub(crate) use api;

/// Calls a function of [`Hot`] by name, within `unsafe`: the caller vouches for the arguments.
macro_rules! hot {
    ($name:ident($($arg:expr),* $(,)?)) => {
        ($crate::ffi::api::HOT.$name)($($arg),*)
    };
}
pub(crate) use hot;

/// Lists the functions of [`Hot`], which are then filled in at load.
macro_rules! hot_functions {
    ($($name:ident($($arg:ty),*) -> $answer:ty;)*) => {
        /// The functions that an uncontended command calls. Such a command runs through more code than fits a first-level cache;
        /// a call of a pointer that is certainly set takes a third of one that is checked first. Filled in at load, before the
        /// server calls anything of the module's; until then each of them ends the process.
        #[allow(non_snake_case)]
        pub(crate) struct Hot {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $answer,)*
        }

        /// The one table. Written once, by [`complete`], in the thread that the server calls its modules from.
        pub(crate) static mut HOT: Hot = Hot {
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
    RedisModule_SetModuleOptions(*mut Ctx, c_int) -> ();
    RedisModule_StringPtrLen(*const Str, *mut usize) -> *const c_char;
}

/// Panics for a function that is not there, which [`complete`] has excluded. The panic ends at the callback; that of a function of
/// [`Hot`] ends the process.
#[cold]
pub(crate) fn missing(name: &str) -> ! {
    panic!("the server has no {name}")
}

/// The server's value for success.
pub(crate) const OK: c_int = raw::REDISMODULE_OK as c_int;

/// The server's value for failure.
pub(crate) const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Checks that the server has every function that the module calls; a test compares the list. Call it at load, before anything else here.
///
/// Errors with the name of a missing function.
pub(crate) fn complete() -> Result<(), &'static str> {
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
        RedisModule_ACLCheckCommandPermissions RedisModule_ACLCheckKeyPermissions RedisModule_AvoidReplicaTraffic
        RedisModule_BlockClient RedisModule_BlockClientOnKeys RedisModule_Call RedisModule_CallReplyArrayElement
        RedisModule_CallReplyInteger RedisModule_CallReplyLength RedisModule_CallReplyProto
        RedisModule_CallReplySetElement RedisModule_CallReplyStringPtr RedisModule_CallReplyType
        RedisModule_CommandFilterArgGet RedisModule_CommandFilterArgReplace RedisModule_CreateCommand
        RedisModule_CreateString RedisModule_CreateTimer RedisModule_DbSize RedisModule_DigestAddStringBuffer
        RedisModule_DigestEndSequence RedisModule_EmitAOF RedisModule_EventLoopAddOneShot RedisModule_Free
        RedisModule_FreeCallReply RedisModule_FreeModuleUser RedisModule_FreeServerInfo RedisModule_FreeString
        RedisModule_GetBlockedClientPrivateData RedisModule_GetClientInfoById RedisModule_GetClientNameById
        RedisModule_GetClientUserNameById RedisModule_GetCommand RedisModule_GetCommandKeysWithFlags
        RedisModule_GetContextFlags RedisModule_GetContextFromIO RedisModule_GetCurrentUserName
        RedisModule_GetDbIdFromIO RedisModule_GetDbIdFromOptCtx RedisModule_GetDetachedThreadSafeContext
        RedisModule_GetKeyNameFromIO RedisModule_GetKeyNameFromOptCtx RedisModule_GetModuleUserFromUserName
        RedisModule_GetNotifyKeyspaceEvents RedisModule_GetServerInfo RedisModule_InfoAddFieldULongLong
        RedisModule_InfoAddSection RedisModule_IsIOError RedisModule_IsKeysPositionRequest
        RedisModule_KeyAtPosWithFlags RedisModule_LatencyAddSample RedisModule_LoadConfigs RedisModule_LoadStringBuffer
        RedisModule_Log RedisModule_NotifyKeyspaceEvent RedisModule_PublishMessage RedisModule_PublishMessageShard
        RedisModule_RegisterCommandFilter RedisModule_RegisterInfoFunc RedisModule_RegisterNumericConfig
        RedisModule_Replicate RedisModule_ReplyWithCallReply RedisModule_ReplyWithError RedisModule_ReplyWithMap
        RedisModule_ReplyWithNull RedisModule_ReplyWithNullArray RedisModule_ReplyWithSimpleString
        RedisModule_ReplyWithStringBuffer RedisModule_SaveStringBuffer RedisModule_Scan RedisModule_ScanCursorCreate
        RedisModule_ScanCursorDestroy RedisModule_SelectDb RedisModule_ServerInfoGetFieldC RedisModule_SetCommandInfo
        RedisModule_SetDisconnectCallback RedisModule_StopTimer RedisModule_SubscribeToKeyspaceEvents
        RedisModule_SubscribeToServerEvent RedisModule_UnblockClient RedisModule_UnregisterCommandFilter
    }
    // SAFETY: nothing else runs at load.
    unsafe { HOT = Hot::of_server()? };
    Ok(())
}
