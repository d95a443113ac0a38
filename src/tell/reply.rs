//! Replies on the wire, in the caller's version of the protocol.

use crate::ffi::api::{self, api, hot, Ctx};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::Token;
use std::ffi::c_long;

/// Writes the answer to a command if it is a usual one; gives it back if not.
#[inline(always)]
pub fn write_usual(ctx: *mut Ctx, reply: Result<Reply, Error>) -> Option<Result<Reply, Error>> {
    match &reply {
        Ok(Reply::Integer(number)) => api::reply_integer(ctx, *number),
        Ok(Reply::Grant(token, holds, None)) => grant(ctx, *token, *holds, None),
        _ => return Some(reply),
    }
    // The usual answers own nothing; a drop would go through all that an answer may own.
    std::mem::forget(reply);
    None
}

/// Writes the answer to a command.
pub fn write(ctx: *mut Ctx, reply: Result<Reply, Error>) {
    match reply {
        Ok(reply) => value(ctx, &reply),
        Err(error) => api::reply_error(ctx, &error.to_string()),
    }
}

/// Answers with an error.
#[cold]
pub fn refuse(ctx: *mut Ctx, error: Error) {
    write(ctx, Err(error));
}

/// Answers that all is well.
#[cold]
pub fn pass(ctx: *mut Ctx) {
    write(ctx, Ok(Reply::Ok));
}

fn grant(ctx: *mut Ctx, token: Token, holds: u32, named: Option<&str>) {
    let len = if named.is_some() { 3 } else { 2 };
    // SAFETY: a live context; the length matches what follows.
    unsafe { hot!(RedisModule_ReplyWithArray(ctx, len)) };
    api::reply_integer(ctx, token.0);
    api::reply_integer(ctx, u64::from(holds));
    if let Some(owner) = named {
        api::reply_bulk(ctx, owner.as_bytes());
    }
}

fn value(ctx: *mut Ctx, reply: &Reply) {
    // SAFETY: a live context that is owed a reply; lengths match what follows; bytes are copied.
    unsafe {
        match reply {
            Reply::Grant(token, holds, named) => grant(ctx, *token, *holds, named.as_deref()),
            Reply::NullArray => {
                api!(RedisModule_ReplyWithNullArray(ctx));
            }
            // A request that waits is answered later, one that runs another command by that.
            Reply::Wait(..) | Reply::Run | Reply::List(_) | Reply::Null => {
                api!(RedisModule_ReplyWithNull(ctx));
            }
            Reply::Ok => {
                api!(RedisModule_ReplyWithSimpleString(ctx, c"OK".as_ptr()));
            }
            Reply::Integer(number) => api::reply_integer(ctx, *number),
            Reply::Text(text) => api::reply_bulk(ctx, text.as_bytes()),
            Reply::Bulk(bytes) => api::reply_bulk(ctx, bytes),
            Reply::Array(items) => {
                hot!(RedisModule_ReplyWithArray(ctx, items.len() as c_long));
                items.iter().for_each(|item| value(ctx, item));
            }
            Reply::Map(fields) => {
                api!(RedisModule_ReplyWithMap(ctx, fields.len() as c_long));
                for (name, field) in fields {
                    api::reply_bulk(ctx, name.as_bytes());
                    value(ctx, field);
                }
            }
        }
    }
}
