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
use dlock_commands::words::client_line;
use dlock_engine::collections::ByNumber;
use dlock_engine::{ClientId, Promise};

/// The unsent grants of a connection.
struct UnsentGrants {
    // The user of the connection when it began to wait.
    user: Vec<u8>,
    promises: Vec<Promise>,
}

lazy_static::lazy_static! {
    static ref UNSENT: MainThread<ByNumber<ClientId, UnsentGrants>> = MainThread::new(ByNumber::default());
}

/// Notes that a grant is written to this connection.
pub(crate) fn add(client: ClientId, user: Vec<u8>, promises: Vec<Promise>) {
    if let Some(mut unsent) = UNSENT.borrow() {
        match unsent.get_mut(&client) {
            // The connection waited once more in this iteration.
            Some(first) => first.promises.extend(promises),
            None => drop(unsent.insert(client, UnsentGrants { user, promises })),
        }
    }
}

/// Forgets the grants of an iteration of the event loop: they have been sent, as far as possible.
pub(crate) fn on_after_sleep() {
    if let Some(mut unsent) = UNSENT.borrow() {
        unsent.clear();
    }
}

/// Posts that the grants of this connection were certainly not sent.
pub(crate) fn on_not_sent(client: ClientId) {
    let grants = UNSENT
        .borrow()
        .and_then(|mut unsent| unsent.remove(&client));
    if let Some(grants) = grants {
        inbox::post(Notice::Undelivered(grants.promises));
    }
}

/// Checks whether the grants of a connection that ends may have been sent. It asks the server in the callback: a moment later the
/// connection is gone.
pub(crate) fn on_disconnect(ctx: Ctx, client: ClientId) {
    let unsent = UNSENT.borrow();
    let Some(user) = unsent.and_then(|unsent| Some(unsent.get(&client)?.user.clone())) else {
        return;
    };
    let sending = servers::before_sleep_precedes_unblocking() || timer::asleep();
    let is_unsent = |line: String| client_line::grant_is_unsent(&line, &user, sending);
    // Without a line the grants may have been sent.
    if ctx.client_line(client.0).is_some_and(is_unsent) {
        on_not_sent(client);
    }
}
