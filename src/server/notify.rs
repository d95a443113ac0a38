//! Telling those who wait by a channel.

use super::api::{self, Ctx};
use crate::engine::{Message, Outcome, Token};
use crate::error::Error;

/// Publishes what a waiting request is told: `word token keylen:key ownerlen:owner`. In a cluster every node's subscribers
/// hear it, since the channel is the client's and belongs to no slot.
pub fn publish(ctx: *mut Ctx, message: &Message) {
    let (word, token) = said(&message.outcome);
    let (key, owner) = (&message.name.key, &message.owner);
    let mut text = format!("{word} {token} {}:", key.len()).into_bytes();
    text.extend_from_slice(key);
    text.extend_from_slice(format!(" {}:", owner.len()).as_bytes());
    text.extend_from_slice(owner);
    api::publish(ctx, &message.channel, &text, false);
}

/// The word for an outcome, and the token: 0 for all but a grant.
fn said(outcome: &Outcome) -> (&'static str, Token) {
    match outcome {
        Outcome::Granted(grant) => ("granted", grant.token),
        // A request for many locks has no channel.
        Outcome::GrantedAll(_) | Outcome::Null => ("timeout", 0),
        Outcome::Cancelled => ("cancelled", 0),
        Outcome::Moved => ("moved", 0),
        Outcome::Refused(Error::WrongType) => ("wrongtype", 0),
        Outcome::Refused(Error::Deadlock(_)) => ("deadlock", 0),
        Outcome::Refused(Error::NotHeld) => ("notheld", 0),
        Outcome::Refused(_) => ("refused", 0),
    }
}
