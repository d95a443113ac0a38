//! The context of a callback, by which the module calls the server.

use super::api::{api, hot, OK};
use super::text::{Str, Text};
use redis_module::{raw, Context};
use std::ffi::{c_char, c_int, c_long, c_longlong, CStr, CString};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The module's own context.
static OWN: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// A context, valid for the length of the server's callback. It is made once, where the callback comes in (`ffi::callbacks`), and
/// passed on from there; so code that has one may use it. It stays in the main thread.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ctx<'event>(
    *mut raw::RedisModuleCtx,
    PhantomData<&'event raw::RedisModuleCtx>,
);

impl<'event> Ctx<'event> {
    /// # Safety
    /// The context is valid for `'event`.
    pub(super) unsafe fn of(ctx: *mut raw::RedisModuleCtx) -> Ctx<'event> {
        Ctx(ctx, PhantomData)
    }

    /// Returns no context.
    ///
    /// # Safety
    /// It must not be used.
    pub(crate) unsafe fn none() -> Ctx<'static> {
        Ctx(ptr::null_mut(), PhantomData)
    }

    /// Returns this context with a lifetime that the compiler cannot check.
    ///
    /// # Safety
    /// It must not be used after the event.
    pub(crate) unsafe fn outlive(self) -> Ctx<'static> {
        Ctx(self.0, PhantomData)
    }

    /// Returns the context of the load.
    pub(crate) fn of_load(context: &'event Context) -> Ctx<'event> {
        Ctx(context.ctx.cast(), PhantomData)
    }

    /// Returns the pointer, for calls.
    pub(crate) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    /// Makes the module's own context, which lives as long as the module does.
    pub(crate) fn make_own(self) {
        // SAFETY: a valid context. What the call gives is never freed.
        let own = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(self.0)) };
        OWN.store(own, Ordering::Relaxed);
    }

    /// Returns the module's own context, where a callback may have none; none before the load has made it.
    pub(crate) fn own() -> Option<Ctx<'static>> {
        let own = OWN.load(Ordering::Relaxed);
        (!own.is_null()).then_some(Ctx(own, PhantomData))
    }

    /// Returns the flags of the server and of the caller (`REDISMODULE_CTX_FLAGS_*`).
    pub(crate) fn flags(self) -> u32 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetContextFlags(self.0)) as u32 }
    }

    /// Returns true if a script calls.
    pub(crate) fn in_script(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0
    }

    /// Returns true if this is the client that a script runs with. It has no connection, and not every server may be asked for it.
    pub(crate) fn is_scripts_own(self, client: u64) -> bool {
        self.in_script() && client == self.client()
    }

    /// Returns the client id of the context's connection.
    pub(crate) fn client(self) -> u64 {
        // SAFETY: a valid context.
        unsafe { hot!(RedisModule_GetClientId(self.0)) }
    }

    /// Returns the database that the context works in.
    pub(crate) fn selected(self) -> u32 {
        // SAFETY: a valid context.
        unsafe { hot!(RedisModule_GetSelectedDb(self.0)) as u32 }
    }

    /// Selects a database.
    pub(crate) fn select(self, db: u32) {
        // SAFETY: a valid context; a database out of range is refused by the server.
        unsafe { api!(RedisModule_SelectDb(self.0, db as c_int)) };
    }

    /// Returns how many keys the selected database has.
    pub(crate) fn db_size(self) -> u64 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_DbSize(self.0)) }
    }

    /// Returns one field of a section of INFO, as text; none if the server has no such field.
    pub(crate) fn server_info(self, section: &CStr, field: &CStr) -> Option<String> {
        self.server_fields(section, |text| text(field).map(str::to_string))
    }

    /// Reads fields of a section of INFO: `read` gets a function that returns a field's text, none if the server has no such field.
    pub(crate) fn server_fields<T>(
        self,
        section: &CStr,
        read: impl for<'data> FnOnce(&'data dyn Fn(&CStr) -> Option<&'data str>) -> T,
    ) -> T {
        // SAFETY: the data is freed below; what is read of it is not used after that, since `read` gives nothing away but what it
        // makes of it.
        unsafe {
            let data = api!(RedisModule_GetServerInfo(self.0, section.as_ptr()));
            let answer = read(&|field| {
                let value = api!(RedisModule_ServerInfoGetFieldC(data, field.as_ptr()));
                (!value.is_null())
                    .then(|| CStr::from_ptr(value).to_str().ok())
                    .flatten()
            });
            api!(RedisModule_FreeServerInfo(self.0, data));
            answer
        }
    }

    /// Copies a string that a call has returned with this context, and frees it.
    ///
    /// # Safety
    /// The string is the caller's to free, or null.
    unsafe fn taken(self, string: *mut raw::RedisModuleString) -> Option<Vec<u8>> {
        if string.is_null() {
            return None;
        }
        // SAFETY: as the caller says.
        unsafe {
            let bytes = Str::of(string).bytes().to_vec();
            api!(RedisModule_FreeString(self.0, string));
            Some(bytes)
        }
    }

    /// Returns the name of the calling user.
    pub(crate) fn user(self) -> Vec<u8> {
        // SAFETY: a valid context; the string is the caller's.
        let name = unsafe { self.taken(api!(RedisModule_GetCurrentUserName(self.0))) };
        name.unwrap_or_default()
    }

    /// Returns the name that a connection has given itself.
    pub(crate) fn client_name(self, client: u64) -> Option<Vec<u8>> {
        // SAFETY: as above.
        unsafe { self.taken(api!(RedisModule_GetClientNameById(self.0, client))) }
    }

    /// Publishes a message on a channel, which is `sharded` or plain.
    pub(crate) fn publish(self, sharded: bool, channel: &[u8], message: &[u8]) {
        let (channel, message) = (Text::new(channel), Text::new(message));
        let (to, what) = (channel.as_str().raw(), message.as_str().raw());
        // SAFETY: the server keeps its own references to the strings where it needs them.
        unsafe {
            if sharded {
                api!(RedisModule_PublishMessageShard(self.0, to, what))
            } else {
                api!(RedisModule_PublishMessage(self.0, to, what))
            }
        };
    }

    /// Raises a keyspace event of the module class.
    pub(crate) fn notify(self, event: &CStr, key: Str) {
        // SAFETY: a valid context and string; the event's name is copied.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.0,
                raw::REDISMODULE_NOTIFY_MODULE as c_int,
                event.as_ptr(),
                key.raw()
            ))
        };
    }

    /// Propagates a command with a key, and with more bytes where there are any.
    pub(crate) fn replicate(self, command: &CStr, key: Str, bytes: Option<&[u8]>) {
        let words = if bytes.is_some() { c"sb" } else { c"s" };
        let bytes = bytes.unwrap_or_default();
        // SAFETY: the key and the bytes are copied or counted by the server, and of what it is given it takes as many as there
        // are words.
        unsafe {
            api!(RedisModule_Replicate(
                self.0,
                command.as_ptr(),
                words.as_ptr(),
                key.raw(),
                bytes.as_ptr().cast::<c_char>(),
                bytes.len()
            ));
        }
    }

    /// Propagates a command without a key to replicas, not to the AOF.
    pub(crate) fn tell_replicas(self, command: &CStr) {
        // SAFETY: a valid context; the format takes no words.
        unsafe {
            api!(RedisModule_Replicate(
                self.0,
                command.as_ptr(),
                c"A".as_ptr()
            ))
        };
    }

    /// Asks every replica to acknowledge its offset at once.
    pub(crate) fn ask_replicas(self) {
        // SAFETY: a valid context; the format takes two C strings.
        unsafe {
            api!(RedisModule_Replicate(
                self.0,
                c"REPLCONF".as_ptr(),
                c"Acc".as_ptr(),
                c"GETACK".as_ptr(),
                c"*".as_ptr()
            ))
        };
    }

    /// Propagates the command that runs, as it came.
    pub(crate) fn replicate_verbatim(self) {
        // SAFETY: a valid context.
        unsafe { hot!(RedisModule_ReplicateVerbatim(self.0)) };
    }

    /// Replies with an integer.
    pub(crate) fn reply_integer(self, value: u64) {
        // SAFETY: a valid context; where no reply is owed the server drops it.
        unsafe { hot!(RedisModule_ReplyWithLongLong(self.0, value as c_longlong)) };
    }

    /// Replies with a bulk string.
    pub(crate) fn reply_bulk(self, value: &[u8]) {
        // SAFETY: as above; the bytes are copied.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(
                self.0,
                value.as_ptr().cast(),
                value.len()
            ))
        };
    }

    /// Begins an array; as many replies follow.
    pub(crate) fn reply_array(self, len: usize) {
        // SAFETY: as above.
        unsafe { hot!(RedisModule_ReplyWithArray(self.0, len as c_long)) };
    }

    /// Begins a map; twice as many replies follow.
    pub(crate) fn reply_map(self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap(self.0, len as c_long)) };
    }

    /// Replies with null.
    pub(crate) fn reply_null(self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNull(self.0)) };
    }

    /// Replies with a null array.
    pub(crate) fn reply_null_array(self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNullArray(self.0)) };
    }

    /// Replies with a simple string, a constant.
    pub(crate) fn reply_simple(self, text: &CStr) {
        // SAFETY: as above; the text is copied.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.0, text.as_ptr())) };
    }

    /// Replies with an error. The text begins with its code.
    pub(crate) fn reply_error(self, text: &str) {
        // Error texts are the module's own, with client bytes escaped; a NUL or line break would still break the protocol.
        let clean: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let text = CString::new(clean).unwrap_or_default();
        // SAFETY: as above; the text is copied.
        unsafe { api!(RedisModule_ReplyWithError(self.0, text.as_ptr())) };
    }

    /// Reads the registered settings from the configuration file and the load. Returns true if all are valid.
    pub(crate) fn load_configs(self) -> bool {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_LoadConfigs(self.0)) == OK }
    }

    /// Sets the module's options (`REDISMODULE_OPTIONS_*`).
    pub(crate) fn set_options(self, options: c_int) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_SetModuleOptions(self.0, options)) };
    }

    /// Returns the positions and the access flags of a command's keys.
    pub(crate) fn keys_of(self, argv: &[Str]) -> Vec<(c_int, c_int)> {
        let (mut count, mut flags) = (0, ptr::null_mut());
        // SAFETY: the server does not change the arguments; the lists are as long as it says, and freed.
        unsafe {
            let keys = api!(RedisModule_GetCommandKeysWithFlags(
                self.0,
                argv.as_ptr().cast_mut().cast(),
                argv.len() as c_int,
                &mut count,
                &mut flags
            ));
            if keys.is_null() {
                return Vec::new();
            }
            let all = (0..count.max(0) as usize)
                .map(|index| (*keys.add(index), *flags.add(index)))
                .collect();
            api!(RedisModule_Free(keys.cast()));
            api!(RedisModule_Free(flags.cast()));
            all
        }
    }

    /// Reports one key of a command whose keys the server asks for.
    pub(crate) fn give_key(self, position: c_int, flags: c_int) {
        // SAFETY: a valid context; where no keys are asked for the server does nothing.
        unsafe { api!(RedisModule_KeyAtPosWithFlags(self.0, position, flags)) };
    }
}
