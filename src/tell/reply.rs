//! Answers on the wire: replies in the caller's version of the protocol, and outcomes of requests that wait by a channel.

use crate::ffi::ctx::Ctx;
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::{Message, Outcome, Refusal, RequestId, Token};

/// Writes the reply to a command if it is a usual one; returns it if not.
#[inline(always)]
pub(crate) fn write_usual(ctx: Ctx, reply: Result<Reply, Error>) -> Option<Result<Reply, Error>> {
    match &reply {
        Ok(Reply::Integer(number)) => ctx.reply_integer(*number),
        Ok(Reply::Grant(token, holds, None)) => grant(ctx, *token, *holds, None),
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

fn grant(ctx: Ctx, token: Token, holds: u32, named: Option<&str>) {
    ctx.reply_array(if named.is_some() { 3 } else { 2 });
    ctx.reply_integer(token.0);
    ctx.reply_integer(u64::from(holds));
    if let Some(owner) = named {
        ctx.reply_bulk(owner.as_bytes());
    }
}

fn value(ctx: Ctx, reply: &Reply) {
    match reply {
        Reply::Grant(token, holds, named) => grant(ctx, *token, *holds, named.as_deref()),
        Reply::NullArray => ctx.reply_null_array(),
        // A request that waits is answered later, and an inner command or a list has its own reply.
        Reply::Wait(..) | Reply::Run | Reply::List(_) | Reply::FullSyncNotice | Reply::Null => {
            ctx.reply_null()
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

/// Publishes the outcome of a waiting request: `word token keylen:key ownerlen:owner wait-id`. In a cluster it reaches the
/// subscribers of every node, since the channel is the client's and belongs to no slot.
pub(crate) fn publish(ctx: Ctx, id: RequestId, outcome: &Outcome, message: &Message) {
    let (word, token) = word_of(outcome);
    let (key, owner) = (&message.name.key, &message.owner);
    let mut text = format!("{word} {token} {}:", key.len()).into_bytes();
    text.extend_from_slice(key);
    text.extend_from_slice(format!(" {}:", owner.len()).as_bytes());
    text.extend_from_slice(owner);
    text.extend_from_slice(format!(" {}", id.0).as_bytes());
    ctx.publish(&message.channel, &text);
}

/// Returns the word for an outcome, and the token: 0 for all but a grant.
fn word_of(outcome: &Outcome) -> (&'static str, u64) {
    match outcome {
        Outcome::Granted(grant) => ("granted", grant.token.0),
        // A request for many locks has no channel.
        Outcome::GrantedAll(_) | Outcome::TimedOut => ("timeout", 0),
        Outcome::Cancelled => ("cancelled", 0),
        Outcome::Replaced => ("replaced", 0),
        Outcome::Gone => ("gone", 0),
        // The slot has left, or another value has arrived: the client must ask again.
        Outcome::Moved => ("moved", 0),
        Outcome::Refused(Refusal::WrongType) => ("wrongtype", 0),
        Outcome::Refused(Refusal::NotHeld) => ("notheld", 0),
        Outcome::Refused(Refusal::NoAck(_)) => ("noack", 0),
        // The others have no channel.
        Outcome::Refused(_)
        | Outcome::Renewed(..)
        | Outcome::Prolonged
        | Outcome::News(_)
        | Outcome::KeepPending { .. }
        | Outcome::KeepReply(_) => ("refused", 0),
    }
}
