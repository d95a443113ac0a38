//! The caller of a command.

use crate::callbacks::events;
use crate::departed;
use crate::ffi::ctx::Ctx;
use crate::ffi::server;
use crate::ffi::text::{Str, Text};
use crate::ffi::user::User;
use crate::node::{census, clock, gate};
use crate::replicas;
use crate::tell::{blocking, confirm};
use dlock_commands::{Caller, Census, MayWait};
use dlock_engine::log::Origin;
use dlock_engine::ClientId;
use redis_module::raw;

/// The caller of a command, by its context.
pub(super) struct Client<'event>(pub Ctx<'event>);

impl Caller for Client<'_> {
    fn client(&self) -> u64 {
        self.0.client()
    }

    fn may_wait(&self) -> MayWait {
        blocking::may_wait(self.0)
    }

    fn user(&self) -> Vec<u8> {
        self.0.user()
    }

    fn may_write(&self, key: &[u8]) -> bool {
        gate::open(self.0) && !(gate::in_cluster() && gate::is_barred(self.0, key))
    }

    fn unconfirmed(&self) -> usize {
        confirm::waiting()
    }

    fn is_followed(&self) -> bool {
        let followed = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
        self.0.flags() & followed != 0
    }

    fn own_connection(&self) -> bool {
        // A script, or another module's call, runs with a client that the server's list does not have.
        let own = self.connected(self.client());
        if own {
            events::subscribe_disconnects(self.0);
        }
        own
    }

    fn connected(&self, client: u64) -> bool {
        !self.0.is_scripts_own(client) && server::connected(client)
    }

    fn fresh_owner(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    fn describe(&self, client: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.may_list_clients() {
            return None;
        }
        departed::look(self.0, client)
    }

    fn may_list_clients(&self) -> bool {
        may_run(self.0, &[b"client", b"list"])
    }

    fn is_loading(&self) -> bool {
        self.0.flags() & raw::REDISMODULE_CTX_FLAGS_LOADING != 0
    }

    fn may_read(&self, keys: &[&[u8]]) -> Vec<bool> {
        let user = User::calling(self.0);
        let may = |key: &&[u8]| user.as_ref().is_some_and(|user| user.may_read(key));
        keys.iter().map(may).collect()
    }

    fn may_synchronize(&self) -> bool {
        may_run(self.0, &[b"psync", b"?", b"-1"])
    }

    fn may_reset(&self) -> bool {
        may_run(self.0, &[b"config", b"resetstat"])
    }

    fn census(&self) -> Census {
        census()
    }
}

/// Returns where a connection comes from, if it is there, or was a while ago.
#[cold]
pub(super) fn origin(ctx: Ctx, client: ClientId) -> Option<Origin> {
    let found = departed::look(ctx, client.0).or_else(|| departed::find(client.0));
    found.map(|(addr, name)| Origin {
        addr: addr.into(),
        name: name.into(),
    })
}

/// Returns the numbers that the engine does not have.
pub(super) fn census() -> Census {
    Census {
        locks: census::locks(),
        stored_holds: census::holds(),
        connections_waiting: blocking::waiting() as u64,
        eviction_possible: census::eviction_possible(),
        primary: gate::primary(),
        replicas: replicas::status(clock::read().steady()),
        confirmations_waiting: confirm::waiting() as u64,
    }
}

/// Returns true if the calling user may run this command.
fn may_run(ctx: Ctx, words: &[&[u8]]) -> bool {
    let words: Vec<Text> = words.iter().map(|word| Text::new(word)).collect();
    let argv: Vec<Str> = words.iter().map(Text::as_str).collect();
    User::calling(ctx).is_some_and(|user| !user.may_not(&argv))
}
