//! Server events. They are only noted here; the module's next event acts. Only the moment before the event loop sleeps is such an
//! event itself: it sends the answers that replicas have confirmed.

use super::HOOKS;
use crate::departed;
use crate::ffi::callbacks::server_events::{self, Listener};
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::text::Str;
use crate::inbox::{self, Notice};
use crate::node::{census, clock, gate, timer};
use crate::replicas;
use crate::tell::observers::{self, subscribers};
use crate::tell::{blocking, confirm, latency, replicate, unsent_grants};
use dlock_engine::{ClientId, NameRef};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Subscribes to everything that concerns locks, except for connections that end and evictions.
pub(crate) fn subscribe(ctx: Ctx) -> Result<(), &'static str> {
    server_events::subscribe::<Notes>(ctx)
}

/// Set once the module is subscribed to connections that end.
static DISCONNECTS_SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Subscribes to connections that end, when the first one waits or ties a hold. The server looks up the address of each
/// connection that it reports, a cost that a server without waits and ties is spared.
pub(crate) fn subscribe_disconnects(ctx: Ctx) {
    if DISCONNECTS_SUBSCRIBED.swap(true, Ordering::Relaxed) {
        return;
    }
    if !server_events::subscribe_disconnects::<Notes>(ctx) {
        log::warning(
            "the server does not report connections that end, so a hold with EPHEMERAL ends only with its lease",
        );
    }
}

/// Set once the module is subscribed to evictions.
static EVICTIONS_SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Reads the server's eviction policy. Subscribes to evictions when it first allows them: while anybody is subscribed, the server
/// reports every change of every key, a cost that a server that evicts nothing is spared.
pub(crate) fn refresh_eviction(ctx: Ctx) {
    let unheard = census::refresh_eviction(ctx)
        && !EVICTIONS_SUBSCRIBED.swap(true, Ordering::Relaxed)
        && !server_events::subscribe_evictions::<Notes>(ctx);
    if unheard {
        log::warning("the server does not report evictions, so that they are not counted");
    }
}

/// Takes notes of server events.
struct Notes;

impl Listener for Notes {
    fn flushing(ctx: Ctx, db: Option<u32>) {
        inbox::before_flush();
        let known = HOOKS.get().and_then(|hooks| (hooks.databases_and_holds)());
        if let Some((databases, held)) = known {
            census::flushing(ctx, db, databases, held);
        }
    }

    fn flushed(db: Option<u32>) {
        census::flushed();
        inbox::post(Notice::Flushed(db));
    }

    fn swapped(one: u32, other: u32) {
        inbox::post(Notice::Swapped(one, other));
    }

    fn role_changed(primary: bool) {
        gate::set_primary(primary);
        replicate::somebody_may_listen();
        replicas::on_role(primary);
        inbox::post(Notice::Role { primary });
    }

    fn loading() {
        replicas::begin();
    }

    fn loaded() {
        inbox::post(Notice::Loaded);
    }

    /// Notes that an AOF or a replica may read effects now.
    fn forked_or_followed() {
        replicate::somebody_may_listen();
        replicas::changed();
    }

    fn configured(ctx: Ctx, changed: &dyn Fn(&CStr) -> bool) {
        if changed(c"notify-keyspace-events") {
            observers::refresh();
        }
        if changed(c"io-threads") {
            timer::refresh(ctx);
        }
        if changed(c"latency-monitor-threshold") {
            latency::refresh(ctx);
        }
        if changed(c"maxmemory-policy") {
            refresh_eviction(ctx);
        }
    }

    fn sleeps(ctx: Ctx, asleep: bool) {
        timer::set_asleep(asleep);
        if asleep {
            timer::note_read();
            clock::on_before_sleep();
            subscribers::on_before_sleep();
            inbox::on_before_sleep();
            let confirms = replicas::on() || confirm::waiting() > 0;
            if let Some(hooks) = HOOKS.get().filter(|_| confirms) {
                (hooks.confirm)(ctx);
            }
            blocking::on_before_sleep();
        } else {
            unsent_grants::on_after_sleep();
        }
    }

    fn cron() {
        gate::on_beat(clock::read().steady());
        timer::catch_up();
        if replicas::on() {
            replicas::changed();
        }
    }

    fn disconnected(ctx: Ctx, client: u64) {
        departed::note(ctx, client);
        let client = ClientId(client);
        inbox::post(Notice::Ended(client));
        unsent_grants::on_disconnect(ctx, client);
    }

    fn keyspace_event(ctx: Ctx, event: &[u8], key: Str) {
        // The key has gone by now. The last notice says whether it was a lock.
        let name = NameRef {
            db: ctx.selected(),
            key: key.bytes(),
        };
        if event == b"evicted" && inbox::just_unlinked(name) {
            inbox::post(Notice::Evicted);
        }
    }
}
