//! The line of CLIENT LIST for a connection that ends in the iteration of the event loop in which a grant was written to it.

/// The commands that wait for a grant.
const WAITS: [&str; 3] = ["dlock.acquire", "dlock.fairacquire", "dlock.macquire"];

/// Returns true if the line shows that the grant was certainly not sent. `user` is the connection's user when it began to wait;
/// `sending` says whether the server may have begun to send.
pub fn grant_is_unsent(line: &str, user: &[u8], sending: bool) -> bool {
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
    let is_pending = |buffer| field(buffer).is_some_and(|length| length != "0");
    let pending = is_pending("obl=") || is_pending("oll=");
    // The last command is one that waits. As a rule it is the one that was granted, and no other has run since.
    let nothing_behind = field("cmd=").is_some_and(|name| WAITS.contains(&name));
    // So no AUTH has changed the user: it was deleted, and the server writes nothing more to the connection.
    let deleted = nothing_behind && field("user=").unwrap_or_default().as_bytes() != user;
    // What is pending may be the replies to later commands alone, unless nothing is sent yet.
    deleted || pending && (nothing_behind || !sending)
}
