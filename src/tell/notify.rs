//! Telling those who wait by a channel.

use crate::ffi::ctx::Ctx;
use dlock_engine::{Message, Outcome, Refusal, RequestId};

/// Publishes the outcome of a waiting request: `word token keylen:key ownerlen:owner wait-id`. In a cluster every node's
/// subscribers hear it, since the channel is the client's and belongs to no slot.
pub(crate) fn publish(ctx: Ctx, id: RequestId, outcome: &Outcome, message: &Message) {
    let (word, token) = said(outcome);
    let (key, owner) = (&message.name.key, &message.owner);
    let mut text = format!("{word} {token} {}:", key.len()).into_bytes();
    text.extend_from_slice(key);
    text.extend_from_slice(format!(" {}:", owner.len()).as_bytes());
    text.extend_from_slice(owner);
    text.extend_from_slice(format!(" {}", id.0).as_bytes());
    ctx.publish(&message.channel, &text);
}

/// The word for an outcome, and the token: 0 for all but a grant.
fn said(outcome: &Outcome) -> (&'static str, u64) {
    match outcome {
        Outcome::Granted(grant) => ("granted", grant.token.0),
        // A request for many locks has no channel.
        Outcome::GrantedAll(_) | Outcome::TimedOut => ("timeout", 0),
        Outcome::Cancelled => ("cancelled", 0),
        Outcome::Replaced => ("replaced", 0),
        Outcome::Gone => ("gone", 0),
        // The slot has left, or another value has come: what was asked for is to be asked again.
        Outcome::Moved => ("moved", 0),
        Outcome::Refused(Refusal::WrongType) => ("wrongtype", 0),
        Outcome::Refused(Refusal::NotHeld) => ("notheld", 0),
        Outcome::Refused(Refusal::NoAck(_)) => ("noack", 0),
        // A renewal and a sign of life have no channel.
        Outcome::Refused(_) | Outcome::Renewed(_) | Outcome::Keeps { .. } | Outcome::Kept(_) => {
            ("refused", 0)
        }
    }
}
