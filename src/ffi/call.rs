//! Calls of the server's commands, and their replies.

use super::api::api;
use super::ctx::Ctx;
use super::text::{Str, Text};
use redis_module::raw::{self, RedisModuleCallReply};
use std::ffi::{c_int, CStr};
use std::marker::PhantomData;

/// The rules of a call, as the server's format. It ends with `v`: the arguments and their number.
#[derive(Clone, Copy)]
pub(crate) struct Rules(&'static CStr);

impl Rules {
    /// No rules.
    pub(crate) const NONE: Rules = Rules(c"v");
    /// `E` gives refusals as replies.
    pub(crate) const REFUSALS: Rules = Rules(c"Ev");
    /// `S`: the rules for scripts.
    pub(crate) const SCRIPT: Rules = Rules(c"SEv");
    /// `!` replicates the call as it would be by itself, `C` runs it as the caller, `M` refuses it when memory is out, `0` answers
    /// in the caller's protocol.
    pub(crate) const AS_CALLER: Rules = Rules(c"!CSME0v");
    /// `K` lets it be blocked: then the reply is a promise, which may be freed at any time.
    pub(crate) const MAY_BLOCK: Rules = Rules(c"Kv");
}

impl<'event> Ctx<'event> {
    /// Calls a command with these words; none if the server has no such command, or does not allow it here.
    pub(crate) fn call<const WORDS: usize>(
        self,
        command: &CStr,
        rules: Rules,
        words: [&[u8]; WORDS],
    ) -> Option<Answer<'event>> {
        let words = words.map(Text::new);
        self.call_strs(command, rules, &words.each_ref().map(Text::as_str))
    }

    /// Calls a command with strings of the server's own.
    pub(crate) fn call_strs(
        self,
        command: &CStr,
        rules: Rules,
        words: &[Str],
    ) -> Option<Answer<'event>> {
        // SAFETY: a valid context; the format takes the arguments, which the server does not change, and their number.
        let reply = unsafe {
            api!(RedisModule_Call(
                self.raw(),
                command.as_ptr(),
                rules.0.as_ptr(),
                words.as_ptr(),
                words.len()
            ))
        };
        (!reply.is_null()).then_some(Answer(reply, PhantomData))
    }

    /// Returns the reply to a command with one word, if it is one text.
    pub(crate) fn ask(self, command: &CStr, word: &[u8]) -> Option<String> {
        self.call(command, Rules::NONE, [word])?.value().text()
    }

    /// Returns the value of a server setting; none if the server has no such setting.
    pub(crate) fn setting(self, setting: &CStr) -> Option<String> {
        let words = [b"GET", setting.to_bytes()];
        let answer = self.call(c"CONFIG", Rules::NONE, words)?;
        answer.value().element(1).text()
    }

    /// Returns the line of CLIENT LIST for a connection.
    pub(crate) fn client_line(self, client: u64) -> Option<String> {
        let id = client.to_string();
        let words = [b"LIST".as_slice(), b"ID", id.as_bytes()];
        let line = self.call(c"CLIENT", Rules::NONE, words)?.value().text()?;
        (!line.is_empty()).then_some(line)
    }

    /// Passes a reply on as it is. Returns true if the server has written it.
    pub(crate) fn pass_on(self, answer: &Answer) -> bool {
        // SAFETY: a valid context and a valid reply.
        unsafe { api!(RedisModule_ReplyWithCallReply(self.raw(), answer.0)) == super::api::OK }
    }
}

/// A reply, freed on drop.
pub(crate) struct Answer<'event>(*mut RedisModuleCallReply, PhantomData<Ctx<'event>>);

impl Answer<'_> {
    /// Returns its value.
    pub(crate) fn value(&self) -> Value<'_> {
        Value(self.0, PhantomData)
    }

    /// Returns true if it has a text to pass on.
    pub(crate) fn has_text(&self) -> bool {
        let mut len = 0;
        // SAFETY: a valid reply.
        unsafe { api!(RedisModule_CallReplyProto(self.0, &mut len)) };
        len > 0
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // SAFETY: the server's reply, freed once.
        unsafe { api!(RedisModule_FreeCallReply(self.0)) }
    }
}

/// A reply, or an element of one. A missing one is null, and reads as empty.
#[derive(Clone, Copy)]
pub(crate) struct Value<'a>(*mut RedisModuleCallReply, PhantomData<&'a Answer<'a>>);

impl<'a> Value<'a> {
    fn kind(self) -> c_int {
        if self.0.is_null() {
            raw::REDISMODULE_REPLY_UNKNOWN as c_int
        } else {
            // SAFETY: a valid reply.
            unsafe { api!(RedisModule_CallReplyType(self.0)) }
        }
    }

    /// Returns true if it is missing.
    pub(crate) fn is_missing(self) -> bool {
        self.0.is_null()
    }

    /// Returns true if it is an error.
    pub(crate) fn is_error(self) -> bool {
        self.kind() == raw::REDISMODULE_REPLY_ERROR as c_int
    }

    /// Returns true if it is an array.
    pub(crate) fn is_array(self) -> bool {
        self.kind() == raw::REDISMODULE_REPLY_ARRAY as c_int
    }

    /// Returns its number; 0 if it is not one.
    pub(crate) fn integer(self) -> i64 {
        if self.kind() == raw::REDISMODULE_REPLY_INTEGER as c_int {
            // SAFETY: a valid reply, of this type.
            unsafe { api!(RedisModule_CallReplyInteger(self.0)) }
        } else {
            0
        }
    }

    /// Returns how many elements or bytes it has.
    pub(crate) fn len(self) -> usize {
        if self.0.is_null() {
            0
        } else {
            // SAFETY: a valid reply; the server answers 0 for one of another type.
            unsafe { api!(RedisModule_CallReplyLength(self.0)) }
        }
    }

    /// Returns an element of an array, or of a set, which RESP3 may make of it.
    pub(crate) fn element(self, index: usize) -> Value<'a> {
        let kind = self.kind();
        // SAFETY: a valid reply, of the type that each call is for; it owns its elements.
        let element = unsafe {
            if kind == raw::REDISMODULE_REPLY_SET as c_int {
                api!(RedisModule_CallReplySetElement(self.0, index))
            } else if kind == raw::REDISMODULE_REPLY_ARRAY as c_int {
                api!(RedisModule_CallReplyArrayElement(self.0, index))
            } else {
                std::ptr::null_mut()
            }
        };
        Value(element, PhantomData)
    }

    /// Returns the bytes of a string or an error; none if it is neither.
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        if self.0.is_null() {
            return None;
        }
        let mut len = 0;
        // SAFETY: the reply is valid; the bytes are its own, as many as it says.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0, &mut len));
            (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast(), len))
        }
    }

    /// Returns the reply as text.
    pub(crate) fn text(self) -> Option<String> {
        let bytes = self.bytes()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
