//! Replies on the wire, in the caller's version of the protocol.

use crate::ffi::ctx::Ctx;
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::broken;
use dlock_engine::Token;

/// Writes the reply to a command if it is a usual one; returns it if not.
#[inline(always)]
pub(crate) fn write_usual(ctx: Ctx, reply: Result<Reply, Error>) -> Option<Result<Reply, Error>> {
    match &reply {
        Ok(Reply::Integer(number)) => ctx.reply_integer(*number),
        Ok(Reply::Grant(token, holds, None)) => pair(ctx, *token, u64::from(*holds)),
        Ok(Reply::GrantIn(token, session)) => pair(ctx, *token, *session),
        _ => return Some(reply),
    }
    // The usual replies own nothing; a drop would check everything that a reply may own.
    std::mem::forget(reply);
    None
}

/// Writes the reply to a command.
pub(crate) fn write(ctx: Ctx, reply: Result<Reply, Error>) {
    match reply {
        Ok(reply) => value(ctx, &reply),
        Err(error) => ctx.reply_error(&error.to_string()),
    }
}

/// Replies with an error.
#[cold]
pub(crate) fn refuse(ctx: Ctx, error: Error) {
    write(ctx, Err(error));
}

/// Replies OK.
#[cold]
pub(crate) fn pass(ctx: Ctx) {
    write(ctx, Ok(Reply::Ok));
}

fn pair(ctx: Ctx, token: Token, number: u64) {
    ctx.reply_array(2);
    ctx.reply_integer(token.0);
    ctx.reply_integer(number);
}

fn value(ctx: Ctx, reply: &Reply) {
    match reply {
        Reply::Grant(token, holds, None) => pair(ctx, *token, u64::from(*holds)),
        Reply::Grant(token, holds, Some(owner)) => {
            ctx.reply_array(3);
            ctx.reply_integer(token.0);
            ctx.reply_integer(u64::from(*holds));
            ctx.reply_bulk(owner.as_bytes());
        }
        Reply::GrantIn(token, session) => pair(ctx, *token, *session),
        Reply::NullArray => ctx.reply_null_array(),
        Reply::Null => ctx.reply_null(),
        Reply::Wait(..) | Reply::Run | Reply::List(_) | Reply::FullSyncNotice => {
            broken!("what the server still has to do is no reply");
            ctx.reply_null();
        }
        Reply::Ok => ctx.reply_simple(c"OK"),
        Reply::Integer(number) => ctx.reply_integer(*number),
        Reply::Text(text) => ctx.reply_bulk(text.as_bytes()),
        Reply::Bulk(bytes) => ctx.reply_bulk(bytes),
        Reply::Array(items) => {
            ctx.reply_array(items.len());
            items.iter().for_each(|item| value(ctx, item));
        }
        Reply::Map(fields) => {
            ctx.reply_map(fields.len());
            for (name, field) in fields {
                ctx.reply_bulk(name.as_bytes());
                value(ctx, field);
            }
        }
    }
}
