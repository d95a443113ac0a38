//! The one way in: state, commands, the module's own event.
//!
//! [`run`] is the one way in for whatever happens: it takes the state once, reads the clock once, hands the inbox to the
//! engine, lets it decide, and then performs what was decided, in this order:
//!
//! 1. write the keys and replicate, lock by lock (`keyspace::write`): nobody may be told of what is not yet so;
//! 2. arm the timer for what is due next;
//! 3. with no borrow of the state held any more, answer the waiters (`blocking`): the server may call back from within;
//! 4. tell observers (`observers`), and waiters by a channel (`notify`): last, since what they hear must be so by then.

mod caller;
mod guard;
mod info;
pub mod keyspace;
mod list;
pub mod load;
pub mod notices;

use crate::callbacks::events;
use crate::callbacks::remains;
use crate::ffi::api::{self, Ctx, Str};
use crate::ffi::cell::MainThread;
use crate::ffi::panic::poisoned;
use crate::ffi::probe;
use crate::node::census;
use crate::node::clock;
use crate::node::config;
use crate::node::gate;
use crate::node::inbox;
use crate::node::newer_format;
use crate::node::own_slots;
use crate::node::timer;
use crate::servers::quirks;
use crate::servers::turn_end;
use crate::servers::wait_key;
use crate::tell::blocking;
use crate::tell::latency;
use crate::tell::notifications::Notifications;
use crate::tell::notify;
use crate::tell::observers;
use crate::tell::replicate;
use crate::tell::reply;
use crate::tell::subscribers;
use caller::Client;
use dlock_commands::error::Error;
use dlock_commands::list::Listing;
use dlock_commands::table::{Access, Spec};
use dlock_commands::{Call, Reply};
use dlock_engine::{Engine, Lock, Name, NameRef, Now, Refusal, RequestId, SteadyMs, Token, WallMs};
use keyspace::{Mode, OpenKeys, Origin};
use notices::Late;
use std::cell::RefMut;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Locks that one event settles beyond those it is about, so that a mass of them does not hold the server up.
const SETTLED_A_STEP: usize = 256;

/// How long one step of the look over what is waited for or tied takes, and how long after it the next one comes: less than 5 ms
/// of a second, however many names and ties there are.
const LOOK: Duration = Duration::from_micros(75);
const LOOK_MS: u64 = 25;

/// Names and ties that are looked at between two looks at the clock.
const LOOKED_AT_ONCE: usize = 16;

/// Words after its name that a command may have without a list being made for them: key, owner and lease are all that most
/// have.
const FEW_WORDS: usize = 3;

/// How long to wait before asking again whether changes are possible (the server tells when a pause begins or ends to
/// nobody).
const RETRY_MS: u64 = 10;

/// How often the module checks what nothing tells it of: a step of the clock, the end of the last replica.
const HEARTBEAT_MS: u64 = 1000;

/// How often a node of a cluster asks which slots are its own, while somebody waits or is tied to a hold: not every way in which
/// a slot leaves does anything to the keys that are waited for, and a waiter by a channel is to be told within a second.
const SLOTS: Duration = Duration::from_millis(500);

/// All that the module keeps between events.
pub struct State {
    engine: Engine,
    keys: OpenKeys,
    steps: clock::Steps,
    own_slots: own_slots::Own,
    slots_seen: Option<Instant>,
    settings: config::Settings,
    /// Since when this server decides, for the quarantine.
    since: SteadyMs,
    heartbeat: SteadyMs,
    /// When the look over what is waited for or tied may go on.
    next_look: SteadyMs,
    /// Whether the periodic check for deadlocks is under way: it takes several steps.
    checking_deadlocks: bool,
    /// What came with too much else to be worked off at once.
    late: VecDeque<Late>,
    /// How much of it this event has worked off.
    told: usize,
    // Reused buffers, swapped out while notifications are sent.
    notifications: Notifications,
    texts: observers::Texts,
}

lazy_static::lazy_static! {
    pub static ref STATE: MainThread<State> = MainThread::new(State {
        engine: Engine::default(),
        keys: OpenKeys::new(),
        steps: clock::Steps::default(),
        own_slots: own_slots::Own::default(),
        slots_seen: None,
        settings: config::Settings::default(),
        since: clock::read().steady(),
        heartbeat: SteadyMs(0),
        next_look: SteadyMs(0),
        checking_deadlocks: false,
        late: VecDeque::new(),
        told: 0,
        notifications: Notifications::default(),
        texts: observers::Texts::default(),
    });
}

/// Tickets that users have brought by RESTORE and that are not counted as places yet.
static RESTORED: AtomicUsize = AtomicUsize::new(0);

/// A command of a client, of the primary, or of the AOF. `argv` begins with the command's name.
fn command(ctx: *mut Ctx, spec: &'static Spec, argv: &mut [*mut Str]) {
    if poisoned() {
        return reply::refuse(ctx, Error::Poisoned);
    }
    let given = argv.get(1..).unwrap_or_default();
    let (mut few, many): ([&[u8]; FEW_WORDS], Vec<&[u8]>);
    let words = if given.len() <= FEW_WORDS {
        few = [&[]; FEW_WORDS];
        for (word, given) in few.iter_mut().zip(given) {
            // SAFETY: the server's arguments live as long as the command.
            *word = unsafe { api::bytes(*given) };
        }
        few.get(..given.len()).unwrap_or_default()
    } else {
        many = read_all(given);
        &many
    };
    let key = given.first().copied().zip(words.first().copied());
    let mode = if matches!(spec.access, Access::Write | Access::Follow) {
        Mode::Write
    } else {
        Mode::Read
    };
    if spec.access == Access::Follow && probe::probing() {
        quirks::trial(ctx);
        return reply::pass(ctx);
    }
    if spec.access == Access::None && turn_end::calling() {
        return turn_end::block(ctx);
    }
    let now = if mode == Mode::Read {
        clock::of_read(ctx)
    } else {
        clock::of_command()
    };
    let next = run(ctx, mode, Origin::Command(key), now, |state, now| {
        if spec.access == Access::Write && state.engine.has_undelivered() {
            state.take_back(now);
        }
        let caller = Client(ctx);
        let mut call = state.call(&caller, now);
        if call.keys.in_cluster() {
            close_queues(ctx, &mut call, spec, words);
        }
        let answer = dlock_commands::execute(spec, &mut call, words);
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

/// Does what is left to do for a command once its event has been worked off.
#[cold]
fn go_on(ctx: *mut Ctx, argv: &mut [*mut Str], next: Next) {
    match next {
        Next::Done => {}
        Next::List(listing) => list::run(ctx, &listing),
        Next::Run => guard::run(ctx, argv.get_mut(guard::INNER..).unwrap_or_default()),
    }
}

#[cold]
fn read_all<'w>(given: &[*mut Str]) -> Vec<&'w [u8]> {
    // SAFETY: as above.
    given
        .iter()
        .map(|word| unsafe { api::bytes(*word) })
        .collect()
}

/// A queue does not move in a slot that is migrating away: the lock's next holder is found where it goes.
#[cold]
fn close_queues(ctx: *mut Ctx, call: &mut Call<OpenKeys>, spec: &Spec, words: &[&[u8]]) {
    let changed = match spec.access {
        Access::Write => spec.keys(words),
        _ => return,
    };
    for key in words.get(changed).unwrap_or_default() {
        let name = NameRef { db: call.db, key };
        if call.engine.watches(name) {
            call.engine.close(name, !gate::accepts_key(ctx, name));
        }
    }
}

/// A request that has to wait.
struct Wait<'w> {
    id: RequestId,
    // Its first key.
    key: &'w [u8],
    // The owner, where the server named it.
    named: Option<String>,
}

/// What is left to do for a command once its event has been worked off.
enum Next {
    /// Nothing: it is answered, or its connection waits.
    Done,
    /// To run the command that it guards.
    Run,
    /// To make the page that it asks for.
    List(Box<Listing>),
}

/// The module's own event: time has come, or a callback has left something in the inbox.
pub fn event(ctx: *mut Ctx) {
    if poisoned() {
        return;
    }
    gate::wake(ctx, clock::read().steady());
    let open = gate::open(ctx);
    let mode = if open { Mode::Write } else { Mode::Read };
    let (began, used) = (Instant::now(), latency::processor_time());
    run(ctx, mode, Origin::Event, clock::read(), |state, now| {
        // A lease or a wait whose time came while the server was busy: the next in the queue had to wait for that.
        let late = state.engine.overdue(now);
        if late > 0 {
            latency::sample(c"dlock-late", Duration::from_millis(late));
        }
        let due = state.engine.tick(now);
        let beats = now.steady() >= state.heartbeat;
        if beats {
            state.heartbeat = now.steady().after(HEARTBEAT_MS);
            let steps = state.steps.count;
            state.steps.observe(now);
            state.engine.ledger.counters.clock_steps += state.steps.count - steps;
            replicate::refresh(ctx);
            subscribers::heartbeat(ctx);
            state.checking_deadlocks = true;
            state.engine.begin_look();
        }
        timer::arm(state.heartbeat, now.steady());
        if state.keys.in_cluster() {
            if state.slots_seen.map_or(true, |seen| seen + SLOTS <= began) {
                state.slots_seen = Some(began);
                state.refresh_slots();
            }
            let next = now.steady().after(SLOTS.as_millis() as u64);
            timer::arm(next, now.steady());
        }
        if open && state.checking_deadlocks {
            state.checking_deadlocks = state.engine.break_circles(&mut state.keys, now);
            if state.checking_deadlocks {
                timer::arm(now.steady().after(RETRY_MS), now.steady());
            }
        }
        if open && now.steady() >= state.next_look {
            state.next_look = now.steady().after(LOOK_MS);
            if state.look(now) {
                timer::arm(state.next_look, now.steady());
            }
        }
        let left = open
            && state
                .engine
                .settle_dirty(&mut state.keys, now, SETTLED_A_STEP);
        if !state.engine.unsettled() {
            RESTORED.store(0, Ordering::Relaxed);
        }
        let follows = state.review();
        let late = state.catch_up(now);
        let buried = remains::step();
        if due || left || follows || late || buried {
            timer::arm(now.steady(), now.steady());
        }
    });
    // Commands have their own samples; what the module does by itself nobody else could tell of.
    latency::sample_since(c"dlock-event", used);
}

/// Which of these holds of a lock end by what its key was given from outside. Only asks; none if it cannot be asked now.
#[cold]
pub fn cut(name: &Name, holds: &[(Token, WallMs)]) -> Option<Vec<Token>> {
    Some(STATE.try_borrow_mut()?.cut(name, holds))
}

/// How many databases the server has, and how many holds there are in all of them; none while the state is borrowed.
pub fn databases_and_holds() -> Option<(u32, i64)> {
    let state = STATE.try_borrow_mut()?;
    let held = census::holds() + state.engine.ledger.counters.held;
    Some((state.settings.databases, held))
}

/// Whether a lock that a user brings is within the caps of this server. Only asks, and counts.
pub fn has_room_for(lock: &Lock) -> bool {
    let Some(places) = STATE.try_borrow_mut().map(|state| state.engine.places()) else {
        return false;
    };
    let (holders, queued) = (lock.holders(), lock.queued());
    let places = places + RESTORED.load(Ordering::Relaxed) + queued;
    let fits = holders <= config::MAX_HOLDERS.amount()
        && queued <= config::MAX_QUEUE.amount()
        && (queued == 0 || places <= config::MAX_PLACES.amount());
    if fits {
        RESTORED.fetch_add(queued, Ordering::Relaxed);
    }
    fits
}

/// The one way in. Takes the state, lets `work` decide, performs what was decided. None if the state is borrowed already.
fn run<T>(
    ctx: *mut Ctx,
    mode: Mode,
    origin: Origin,
    now: Now,
    work: impl FnOnce(&mut State, Now) -> T,
) -> Option<T> {
    let mut guard = STATE.try_borrow_mut()?;
    let state = &mut *guard;
    state.refresh_settings();
    state.told = 0;
    state.keys.begin(ctx, mode, origin);
    if inbox::has_something() {
        state.read_inbox(now);
    }
    let result = work(state, now);
    // A key that the event has opened may have been removed by that, since its time was over: this ended what stood there before
    // what the event has put there began, and is told first (see `notifications`).
    while inbox::has_something() {
        state.read_inbox(now);
    }
    let own = state.notifications.len();
    state.keys.write(&mut state.notifications);
    if !state.late.is_empty() {
        state
            .late
            .extend(state.notifications.put_off(own).map(Late::from));
    }
    state.arm(now);
    let ledger = &state.engine.ledger;
    if !(ledger.wakes.is_empty() && ledger.messages.is_empty() && state.notifications.is_empty()) {
        tell(ctx, guard);
    }
    Some(result)
}

/// Answers the waiters and tells observers, with no borrow held: the server may call back from within.
#[cold]
fn tell(ctx: *mut Ctx, mut state: RefMut<State>) {
    let answered = !state.engine.ledger.wakes.is_empty();
    if answered {
        blocking::answer(&mut state.engine.ledger.wakes);
    }
    let (channel, home) = (state.settings.channel, state.keys.home());
    let mut notifications = std::mem::take(&mut state.notifications);
    let mut texts = std::mem::take(&mut state.texts);
    let mut messages = std::mem::take(&mut state.engine.ledger.messages);
    drop(state);
    if answered {
        blocking::deliver(ctx);
    }
    observers::tell(ctx, home, channel, &mut notifications, &mut texts);
    for message in messages.drain(..) {
        notify::publish(ctx, &message);
    }
    if let Some(mut state) = STATE.try_borrow_mut() {
        (state.notifications, state.texts) = (notifications, texts);
    }
}

impl State {
    /// A call of a command in this event.
    fn call<'c>(&'c mut self, caller: &'c Client, now: Now) -> Call<'c, OpenKeys> {
        Call {
            db: self.keys.home(),
            engine: &mut self.engine,
            keys: &mut self.keys,
            now,
            caller,
            defaults: &self.settings.defaults,
            primary: gate::primary(),
        }
    }

    /// Takes back what has not reached its connection: a command that decides finds the locks as if it had not been granted.
    #[cold]
    fn take_back(&mut self, now: Now) {
        if gate::primary() {
            self.engine.take_back(&mut self.keys, now);
        }
    }

    /// Brings itself up to date with what the operator has configured.
    #[inline(always)]
    fn refresh_settings(&mut self) {
        if self.settings.refresh(&mut self.engine.policy, self.since) {
            self.policy_changed();
        }
    }

    /// Goes on with the look over what is waited for or tied. Gives whether something is left.
    fn look(&mut self, now: Now) -> bool {
        let begun = Instant::now();
        while self.engine.look(&mut self.keys, now, LOOKED_AT_ONCE) {
            if begun.elapsed() > LOOK {
                return true;
            }
        }
        false
    }

    /// More may be granted now than before, and a circle may matter that did not.
    #[cold]
    fn policy_changed(&mut self) {
        self.engine.mark_all();
        self.engine.suspect_all();
    }

    /// Gives an unusual answer to a command, or has its connection wait for one.
    #[cold]
    fn finish(
        &mut self,
        ctx: *mut Ctx,
        spec: &Spec,
        words: &[&[u8]],
        answer: Result<Reply, Error>,
        now: Now,
    ) -> Next {
        match answer {
            Ok(Reply::Run) => return Next::Run,
            Ok(Reply::List(listing)) => return Next::List(listing),
            Ok(Reply::Wait(id, named)) => {
                let keys = spec.keys(words);
                let key = words.get(keys.start).copied().unwrap_or_default();
                let wait = Wait { id, key, named };
                self.block(ctx, wait, now);
            }
            answer => {
                if let Err(Error::Refused(refusal @ Refusal::NewerFormat { .. })) = &answer {
                    newer_format::effect(ctx, refusal);
                }
                reply::write(ctx, answer);
            }
        }
        Next::Done
    }

    /// Has the calling connection wait for its request, or answers it if the server does not let it.
    fn block(&mut self, ctx: *mut Ctx, wait: Wait, now: Now) {
        let Wait { id, key, named } = wait;
        self.keys.go_home();
        let key = wait_key::beside(key, self.keys.in_cluster());
        // Only that tells of the end of a connection whose grant is written.
        events::subscribe_disconnects(ctx);
        if !blocking::block(ctx, &key, id, named) {
            // The server has another reason than those that `may_wait` knows of.
            self.engine.abandon(&mut self.keys, now, id);
            reply::refuse(ctx, Error::MayNotWait);
        }
    }

    /// Sees to it that the module's event comes when something is due.
    #[inline]
    fn arm(&mut self, now: Now) {
        if !self.engine.is_idle() {
            self.arm_timer(now);
        }
    }

    #[cold]
    fn arm_timer(&mut self, now: Now) {
        if let Some(wait) = self.engine.next_wakeup(now) {
            timer::arm(now.steady().after(wait), now.steady());
        }
        // A replica has nothing to settle until it is promoted, of which it is told.
        if self.engine.unsettled() && gate::primary() {
            timer::arm(now.steady().after(RETRY_MS), now.steady());
        }
    }
}
