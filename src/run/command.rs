//! A command: words -> engine -> reply.

use super::caller::Client;
use super::keyspace::{Mode, OpenKeys, Origin};
use super::state::{State, STATE};
use super::{enter, guard, list};
use crate::callbacks::events;
use crate::ffi::callbacks::command::{access, Handler};
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::panic::poisoned;
use crate::ffi::text::Str;
use crate::inbox;
use crate::node::{clock, gate, slots, timer};
use crate::replicas;
use crate::servers;
use crate::tell::{blocking, reply};
use dlock_commands::error::Error;
use dlock_commands::look::list::Listing;
use dlock_commands::table::{Access, Spec};
use dlock_commands::{Call, Caller, Reply};
use dlock_engine::{NameRef, Now, Refusal, RequestId};
use redis_module::raw;
use std::ffi::c_int;

/// The most words after its name that a command may have without a list on the heap. Most commands have key, owner, lease, `IN
/// session` and `BLOCK ms` at most.
const FEW_WORDS: usize = 7;

/// Runs the commands of the table.
pub(super) struct Commands;

impl Handler for Commands {
    fn run(ctx: Ctx, spec: &'static Spec, argv: &[Str]) {
        if poisoned() {
            if spec.access == Access::Follow {
                replicas::abort_diverged_replica();
            }
            return reply::refuse(ctx, Error::Poisoned);
        }
        let given = argv.get(1..).unwrap_or_default();
        let (mut few, many): ([&[u8]; FEW_WORDS], Vec<&[u8]>);
        let words = if given.len() <= FEW_WORDS {
            few = [&[]; FEW_WORDS];
            for (word, given) in few.iter_mut().zip(given) {
                *word = given.bytes();
            }
            few.get(..given.len()).unwrap_or_default()
        } else {
            many = given.iter().map(|word| word.bytes()).collect();
            &many
        };
        let writes = match spec.access {
            Access::Write | Access::Follow => true,
            // The end of a session releases its holds.
            Access::Session => words.get(2).is_some_and(|ms| *ms == b"0"),
            _ => false,
        };
        let mode = if writes { Mode::Write } else { Mode::Read };
        if spec.access == Access::Follow && gate::probing() {
            return reply::pass(ctx);
        }
        if spec.access == Access::None && servers::is_own_call() {
            return servers::block_own_call(ctx);
        }
        let now = if mode == Mode::Read {
            let looks = matches!(spec.access, Access::Read | Access::Guard | Access::None);
            if looks && gate::primary() {
                catch_up(ctx, words.first().copied());
            }
            clock::of_read(ctx)
        } else {
            clock::of_command()
        };
        let from = usize::from(spec.many_keys());
        let origin = Origin::Command(
            given.get(from..).unwrap_or_default(),
            words.get(from..).unwrap_or_default(),
        );
        let next = enter::run(ctx, mode, origin, now, |state, now| {
            // Of these only the end of a session is no write to the server, which lets it in even where it accepts none.
            let decides = || spec.access == Access::Write || (writes && gate::open(ctx));
            if state.engine.has_undelivered() && gate::primary() && decides() {
                state.engine.revoke_undelivered(&mut state.keys, now);
            }
            let caller = Client(ctx);
            let mut call = state.call(&caller, now);
            if gate::in_cluster() {
                close_queues(&mut call, spec, words);
            }
            let answer = dlock_commands::execute(spec, &mut call, words);
            if spec.access == Access::Session && state.engine.unsettled() {
                // What its arrival makes possible is granted when writes are.
                timer::soon();
            }
            if gate::in_cluster() {
                state.note_slots(spec, words);
            }
            // Written from here, where it is: the server does not call back for a reply.
            match reply::write_usual(ctx, answer) {
                None => Next::Done,
                Some(answer) => state.finish(ctx, spec, words, answer, now),
            }
        });
        match next {
            Some(Next::Done) => {}
            Some(next) => go_on(ctx, argv, next),
            // Another module's callback has called from within an event of this module, which has the state borrowed.
            None => reply::refuse(ctx, Error::Busy),
        }
    }

    fn give_keys(ctx: Ctx, spec: &Spec, argv: &[Str]) {
        if !spec.many_keys() {
            return guard::give_keys(ctx, argv);
        }
        let words: Vec<&[u8]> = argv.iter().skip(1).map(|word| word.bytes()).collect();
        for index in spec.keys(&words) {
            ctx.give_key(index as c_int + 1, access(spec) as c_int);
        }
    }
}

/// Settles, before a read-only command, what the module's own event would settle in a moment: a client that knows of the end of a
/// connection finds neither its place nor its ephemeral hold, and a lock whose lease has ended belongs to the next in the queue.
/// A script sees the state from its beginning.
fn catch_up(ctx: Ctx, key: Option<&[u8]>) {
    let db = ctx.selected();
    let name = key.map(|key| NameRef { db, key });
    let state = || STATE.try_borrow_mut();
    let is_behind = || state().is_some_and(|state| state.engine.is_behind(name, clock::of_command));
    let scripted = || ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0;
    if !(inbox::has_something() || is_behind()) || scripted() || !gate::open(ctx) {
        return;
    }
    let now = clock::of_command();
    enter::run(ctx, Mode::Write, Origin::Event, now, |state, now| {
        state.engine.bring_up_to_date(&mut state.keys, now, name);
    });
}

/// Does the rest of a command after its event.
#[cold]
fn go_on(ctx: Ctx, argv: &[Str], next: Next) {
    match next {
        Next::Done => {}
        Next::List(listing) => reply::write(ctx, list::page(ctx, &listing)),
        Next::Run => guard::run(ctx, argv.get(guard::INNER..).unwrap_or_default()),
    }
}

/// Stops the queues of a command's keys in a slot that is migrating away: the lock's next holder is found at the other node.
#[cold]
fn close_queues(call: &mut Call<OpenKeys>, spec: &Spec, words: &[&[u8]]) {
    if spec.access != Access::Write {
        return;
    }
    for key in words.get(spec.keys(words)).unwrap_or_default() {
        let name = NameRef { db: call.db, key };
        call.engine.close_if_leaving(call.keys, name);
    }
}

/// The rest of a command after its event.
enum Next {
    /// Nothing: it is answered, or its connection waits.
    Done,
    /// Run the command that it guards.
    Run,
    /// Make the page that it asks for.
    List(Box<Listing>),
}

impl State {
    /// Notes the slots of a command's keys that have waiters now, or whose holds the command may have tied.
    #[cold]
    fn note_slots(&mut self, spec: &Spec, words: &[&[u8]]) {
        if self.engine.is_idle() {
            return;
        }
        let is_tying = |word: &&[u8]| {
            let words: [&[u8]; 3] = [b"AUTO", b"EPHEMERAL", b"IN"];
            words.iter().any(|tying| word.eq_ignore_ascii_case(tying))
        };
        let ties = spec.access == Access::Session || words.iter().any(is_tying);
        let db = self.keys.home();
        for key in words.get(spec.keys(words)).unwrap_or_default() {
            if ties || self.engine.watches(NameRef { db, key }) {
                self.awaited.note(key);
            }
        }
    }

    /// Writes an unusual reply to a command, or blocks its connection; returns the rest.
    #[cold]
    fn finish(
        &mut self,
        ctx: Ctx,
        spec: &Spec,
        words: &[&[u8]],
        answer: Result<Reply, Error>,
        now: Now,
    ) -> Next {
        match answer {
            Ok(Reply::Run) => return Next::Run,
            Ok(Reply::List(listing)) => return Next::List(listing),
            Ok(Reply::FullSyncNotice) => {
                replicas::on_full_sync();
                reply::pass(ctx);
            }
            Ok(Reply::Wait(id, named)) => {
                let key = words.get(spec.keys(words).start).copied();
                self.block(ctx, id, key, named, now);
            }
            answer => {
                if let Err(Error::Refused(refusal @ Refusal::NewerFormat { .. })) = &answer {
                    report_newer_effect(ctx, refusal);
                }
                let refused = spec.access == Access::Follow && answer.is_err();
                if refused && Client(ctx).is_followed() {
                    replicas::abort_diverged_replica();
                }
                if answer == Err(Error::ServesNone) && !gate::primary() {
                    replicas::on_refused();
                }
                reply::write(ctx, answer);
            }
        }
        Next::Done
    }

    /// Blocks the calling connection until its request is answered, or answers it if the server does not block it.
    /// The server blocks it on a name in the slot of the request's first key. `named` is the owner, if the server named it.
    fn block(
        &mut self,
        ctx: Ctx,
        id: RequestId,
        key: Option<&[u8]>,
        named: Option<String>,
        now: Now,
    ) {
        self.keys.restore_db();
        let key = key.map(slots::blocking_key);
        // The only report of the end of a connection whose grant is written.
        events::subscribe_disconnects(ctx);
        if !blocking::block(ctx, key.as_ref(), id, named) {
            // The server has a reason that `may_wait` does not know.
            self.engine.abandon(&mut self.keys, now, id);
            reply::refuse(ctx, Error::MayNotWait);
        }
    }
}

/// Reports an effect in a newer format, of a primary or in the AOF, and ends the process. Ignoring the effect would leave this
/// server with other locks than its primary's, and its own files would keep the difference. A server that ends resumes at this
/// very effect once it has been updated.
///
/// A primary gets such effects with a slot that moves here from a newer node; it only refuses them.
fn report_newer_effect(ctx: Ctx, refusal: &Refusal) {
    log::warning(&refusal.to_string());
    if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 || !gate::primary() {
        log::warning(
            "the server stops, because it would lose locks: update its module and start it again",
        );
        std::process::exit(1);
    }
}
