//! Grants that are written to their connections and, for all that is known, not sent.
//!
//! The server sends replies at the end of an iteration of its event loop. A connection may end before that, by a command behind
//! another wait or because its output buffer overflows; or the server finds it broken when it sends. Then the engine revokes
//! its grant, unless the connection may have got it: two owners are worse than a lock that nobody has until a lease ends. CLIENT
//! LIST shows what a connection was sent, as long as it exists.
//!
//! Where the server sends in other threads (`io-threads`) it may learn of a broken connection only in a later iteration. By then a
//! pending reply may be that of a later command, and the grant stands.

use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::inbox::{self, Notice};
use crate::node::timer;
use crate::servers;
use dlock_engine::collections::ByNumber;
use dlock_engine::{ClientId, Promise};

/// The grants that are written to a connection and may not be sent.
struct Unsent {
    // The user of the connection.
    user: Vec<u8>,
    promises: Vec<Promise>,
}

lazy_static::lazy_static! {
    static ref UNSENT: MainThread<ByNumber<ClientId, Unsent>> = MainThread::new(ByNumber::default());
}

/// Notes that a grant is written to this connection.
pub(crate) fn add(client: ClientId, user: Vec<u8>, promises: Vec<Promise>) {
    if let Some(mut in_flight_grants) = UNSENT.borrow() {
        match in_flight_grants.get_mut(&client) {
            // The connection waited once more in this iteration.
            Some(first) => first.promises.extend(promises),
            None => drop(in_flight_grants.insert(client, Unsent { user, promises })),
        }
    }
}

/// Forgets the grants of an iteration of the event loop: they have been sent, as far as possible.
pub(crate) fn on_after_sleep() {
    if let Some(mut in_flight_grants) = UNSENT.borrow() {
        in_flight_grants.clear();
    }
}

/// Posts that the grants of this connection were certainly not sent.
pub(crate) fn not_sent(client: ClientId) {
    let in_flight_grants = UNSENT
        .borrow()
        .and_then(|mut in_flight_grants| in_flight_grants.remove(&client));
    if let Some(in_flight_grants) = in_flight_grants {
        inbox::post(Notice::Undelivered(in_flight_grants.promises));
    }
}

/// Checks whether the grants of a connection that ends may have been sent. It asks the server in the callback: a moment later the
/// connection is gone.
pub(crate) fn on_disconnect(ctx: Ctx, client: ClientId) {
    let user = UNSENT
        .borrow()
        .and_then(|in_flight_grants| Some(in_flight_grants.get(&client)?.user.clone()));
    let Some(user) = user else { return };
    // Without an answer the grant may have been sent.
    let output = ctx.client_line(client.0).map(|line| ClientLine::of(&line));
    if output.is_some_and(|output| !output.may_be_sent(&user)) {
        not_sent(client);
    }
}

/// The line of CLIENT LIST for a connection that ends in the iteration in which a grant was written to it.
struct ClientLine {
    // Something is not sent.
    pending: bool,
    // No command has run since the one that waited.
    nothing_behind: bool,
    user: Vec<u8>,
}

impl ClientLine {
    fn of(line: &str) -> ClientLine {
        let field = |name: &str| {
            let mut words = line.split(' ');
            words.find_map(|word| word.strip_prefix(name))
        };
        let any = |name| field(name).is_some_and(|number| number != "0");
        let waits = ["dlock.acquire", "dlock.fairacquire", "dlock.macquire"];
        ClientLine {
            pending: any("obl=") || any("oll="),
            nothing_behind: field("cmd=").is_some_and(|name| waits.contains(&name)),
            user: field("user=").unwrap_or_default().as_bytes().to_vec(),
        }
    }

    /// Returns true if the grant may have been sent; `user` is the connection's user when it began to wait.
    fn may_be_sent(&self, user: &[u8]) -> bool {
        // The server writes nothing more to a connection whose user was deleted.
        let deleted = self.nothing_behind && self.user != user;
        // What is pending may be the replies to later commands alone, unless nothing is sent yet.
        let sending = servers::before_sleep_precedes_unblocking() || timer::asleep();
        let in_flight_grants = self.pending && (self.nothing_behind || !sending);
        !in_flight_grants && !deleted
    }
}
