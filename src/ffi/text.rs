//! The server's strings.

use super::api::{api, hot};
use redis_module::raw::RedisModuleString;
use std::marker::PhantomData;
use std::ptr;

/// A string of the server's, valid for `'a`: an argument of a command, the key of an event.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Str<'a>(*mut RedisModuleString, PhantomData<&'a RedisModuleString>);

impl<'a> Str<'a> {
    /// # Safety
    /// The string is valid for `'a`.
    pub(crate) unsafe fn of(string: *mut RedisModuleString) -> Str<'a> {
        Str(string, PhantomData)
    }

    /// Wraps the server's arguments, which may be none.
    ///
    /// # Safety
    /// `argc` strings, valid for `'a`.
    pub(super) unsafe fn all(argv: *const *mut RedisModuleString, argc: i32) -> &'a [Str<'a>] {
        if argv.is_null() {
            return &[];
        }
        // SAFETY: as the caller says; a `Str` is nothing but the pointer.
        unsafe { std::slice::from_raw_parts(argv.cast(), argc.max(0) as usize) }
    }

    /// Returns this string with a lifetime that the compiler cannot check.
    ///
    /// # Safety
    /// It must not be used after `'a`.
    pub(crate) unsafe fn outlive(self) -> Str<'static> {
        Str(self.0, PhantomData)
    }

    /// Returns the pointer, for calls.
    pub(crate) fn raw(self) -> *mut RedisModuleString {
        self.0
    }

    /// Returns its bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string is valid; the bytes are its own, as many as it says.
        unsafe {
            let start = hot!(RedisModule_StringPtrLen(self.0, &mut len));
            if start.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(start.cast(), len)
        }
    }
}

/// A string of one's own, freed on drop.
pub(crate) struct Text(*mut RedisModuleString);

impl Text {
    /// Copies these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Text {
        // SAFETY: the server copies the bytes; without a context the string is the caller's to free.
        Text(unsafe {
            api!(RedisModule_CreateString(
                ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        })
    }

    /// Passes the string to the server, which keeps it.
    pub(crate) fn into_raw(self) -> *mut RedisModuleString {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Returns the string, for calls.
    pub(crate) fn as_str(&self) -> Str<'_> {
        Str(self.0, PhantomData)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the caller's own, and freed once.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.0)) }
    }
}
