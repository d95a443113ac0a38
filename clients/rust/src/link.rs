// SPDX-License-Identifier: MIT
//! The one connection to a node that everybody shares: the redis crate's multiplexed one. Whoever sends a command hands it
//! to the library, and the library's reader applies what the reply changes, in the order of the commands, before it wakes the
//! caller: no task of ours is between the two.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::{mpsc, oneshot, Notify};
use tokio::task::unconstrained;
use tokio::time::timeout;

use crate::core::Core;
use crate::error::{is_broken, Error, Result};
use crate::settings::{now, Settings};
use crate::state::{Notification, State, Who};

/// A connect or a reply that takes longer may be that of a former primary.
pub(crate) const ANOTHER: Duration = Duration::from_secs(1);
/// A link outlives the time for a reply by this: a caller that has given up leaves behind what was sent, in case the server
/// only hangs.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// A timer that is later than this by itself: the process was stopped. What has come meanwhile is read before it is judged.
pub(crate) const HUNG: Duration = Duration::from_millis(250);

pub(crate) type Reply = Result<Value, RedisError>;

pub(crate) fn is_not_held(reply: &Reply) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("NOTHELD"))
}

/// Where and when something was asked.
pub(crate) struct At<'a> {
    pub(crate) node: &'a str,
    pub(crate) link: u64,
    pub(crate) sent: Duration,
}

impl At<'_> {
    /// Returns the believed end of what lasts for this lease from when it was asked.
    pub(crate) fn ends(&self, lease: i64, settings: &Settings) -> Duration {
        let lease = Duration::from_millis(u64::try_from(lease).unwrap_or_default());
        (self.sent + lease).saturating_sub(settings.clock_margin + Duration::from_millis(2))
    }
}

/// What a reply changes.
pub(crate) type Then = Arc<dyn Fn(&mut State, &At<'_>, &Reply) + Send + Sync>;

/// A command whose reply is to come.
struct Entry {
    sent: Duration,
    then: Option<Then>,
    caller: oneshot::Sender<Reply>,
}

type Replies = Result<Vec<Value>, RedisError>;
type Sending = Pin<Box<dyn Future<Output = Replies> + Send>>;

/// Commands that were handed to the library together.
struct Flight {
    sending: Sending,
    /// Known before anybody has looked: nobody would be woken for it.
    replies: Option<Replies>,
    entries: Vec<Entry>,
}

/// Limits the flights of a link. The library queues 50 of them; beyond that, a later one may overtake an earlier one.
const FLYING: usize = 48;
const BATCH: usize = 1000;

/// What is under way, in the order of the commands.
struct Lines {
    /// None: the link is dead.
    connection: Option<MultiplexedConnection>,
    flying: VecDeque<Flight>,
    /// What finds no room among them.
    backlog: VecDeque<(Cmd, bool, Entry)>,
    /// The watcher knows that something is under way.
    watched: bool,
}

struct Wire {
    id: u64,
    node: String,
    core: Weak<Core>,
    /// Held only for moments, also by who has locked the state; `reading` is locked before the state.
    lines: Mutex<Lines>,
    reading: Mutex<()>,
    waker: Waker,
    kick: Arc<Notify>,
    dead: AtomicBool,
    /// Nobody can ask any more.
    left: AtomicBool,
}

/// Is woken by the library's reader when a reply has come.
struct Reader(Weak<Wire>);

impl Wake for Reader {
    fn wake(self: Arc<Reader>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Reader>) {
        if let Some(wire) = self.0.upgrade() {
            // Somebody else reads, or sends: it may have looked before this reply came.
            let read = wire.reading.try_lock().is_ok_and(|_reading| wire.read(|wire| wire.lines.try_lock().ok()));
            if !read {
                wire.kick.notify_one();
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the connection is lost").into()
}

/// Sends these commands, each of them after `ASKING` or not. (Not by `query_async`: its errors have no code.)
fn send(mut connection: MultiplexedConnection, mut commands: Vec<(Cmd, bool)>) -> Sending {
    // Without tokio's budget, which could have a later message overtake it.
    if commands.len() == 1 && commands.iter().all(|(_, asking)| !asking) {
        let command = commands.pop().map(|(command, _)| command).unwrap_or_default();
        return Box::pin(unconstrained(async move { Ok(vec![connection.send_packed_command(&command).await?]) }));
    }
    Box::pin(unconstrained(async move {
        let (mut pipe, mut asking) = (redis::pipe(), Vec::new());
        for (command, asks) in commands {
            if asks {
                pipe.cmd("ASKING");
                asking.push(true);
            }
            pipe.add_command(command);
            asking.push(false);
        }
        let replies = connection.send_packed_commands(&pipe, 0, asking.len()).await?;
        Ok(replies.into_iter().zip(asking).filter(|(_, asking)| !asking).map(|(reply, _)| reply).collect())
    }))
}

impl Lines {
    fn launch(&mut self, commands: Vec<(Cmd, bool)>, entries: Vec<Entry>, wire: &Wire) {
        let Some(connection) = self.connection.clone() else { return };
        let mut flight = Flight { sending: send(connection, commands), replies: None, entries };
        // The library has it now, in this order.
        if let Poll::Ready(replies) = flight.sending.as_mut().poll(&mut Context::from_waker(&wire.waker)) {
            flight.replies = Some(replies);
            wire.kick.notify_one();
        }
        self.flying.push_back(flight);
    }

    /// Returns the first flight, if it has its replies.
    fn landed(&mut self, wire: &Wire) -> Option<(Vec<Entry>, Replies)> {
        let first = self.flying.front_mut()?;
        let replies = match first.replies.take() {
            Some(replies) => replies,
            None => match first.sending.as_mut().poll(&mut Context::from_waker(&wire.waker)) {
                Poll::Ready(replies) => replies,
                Poll::Pending => return None,
            },
        };
        let entries = self.flying.pop_front().map(|flight| flight.entries).unwrap_or_default();
        if !self.backlog.is_empty() {
            let waiting = self.backlog.len().min(BATCH);
            let (commands, waiting) =
                self.backlog.drain(..waiting).map(|(command, asking, entry)| ((command, asking), entry)).unzip();
            self.launch(commands, waiting, wire);
        }
        Some((entries, replies))
    }
}

impl Wire {
    /// Applies all replies that have come. False if somebody else has the lines. Whoever calls it has locked `reading`.
    fn read<'a>(&'a self, lines: impl Fn(&'a Wire) -> Option<MutexGuard<'a, Lines>>) -> bool {
        loop {
            let Some(mut lines) = lines(self) else { return false };
            let Some((entries, replies)) = lines.landed(self) else { return true };
            drop(lines);
            match replies {
                Ok(replies) => {
                    for (one, reply) in entries.into_iter().zip(replies) {
                        self.answer(one, reply.extract_error());
                    }
                }
                Err(error) => {
                    for one in entries {
                        self.answer(one, Err(error.clone()));
                    }
                    self.fail(&error);
                    return true;
                }
            }
        }
    }

    fn answer(&self, Entry { sent, then, caller }: Entry, reply: Reply) {
        if let (Some(then), Some(core)) = (then, self.core.upgrade()) {
            let at = At { node: &self.node, link: self.id, sent };
            core.shelf.with(|state| then(state, &at, &reply));
        }
        let _ = caller.send(reply);
    }

    /// Ends the link: all that is under way has failed. Whoever calls it has locked `reading`.
    fn fail(&self, error: &RedisError) {
        self.dead.store(true, Ordering::SeqCst);
        let (connection, flying, backlog) = {
            let mut lines = locked(&self.lines);
            let connection = lines.connection.take();
            (connection, std::mem::take(&mut lines.flying), std::mem::take(&mut lines.backlog))
        };
        if connection.is_none() {
            return;
        }
        let entries: Vec<Entry> = flying.into_iter().flat_map(|flight| flight.entries).collect();
        for one in entries.into_iter().chain(backlog.into_iter().map(|(_, _, entry)| entry)) {
            self.answer(one, Err(error.clone()));
        }
        if let Some(core) = self.core.upgrade() {
            core.shelf.with(|state| state.died(self.id));
        }
        self.kick.notify_one();
    }

    /// Returns since when the oldest command is under way.
    fn oldest(&self) -> Option<Duration> {
        let mut lines = locked(&self.lines);
        let oldest = lines.flying.front().and_then(|flight| flight.entries.first()).map(|entry| entry.sent);
        lines.watched = oldest.is_some();
        oldest
    }
}

/// The end by which commands are sent. When all are gone, and all replies have come, the link ends.
pub(crate) struct Link {
    pub(crate) id: u64,
    /// The server's: Sentinel may name another one under the same name.
    pub(crate) address: String,
    wire: Arc<Wire>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wire.left.store(true, Ordering::SeqCst);
        self.wire.kick.notify_one();
    }
}

impl Link {
    /// Sends a command and waits for nothing. None: the link is dead, and it was not sent.
    pub(crate) fn post(&self, command: Cmd, asking: bool, then: Option<Then>) -> Option<oneshot::Receiver<Reply>> {
        if self.is_dead() {
            return None;
        }
        let (caller, reply) = oneshot::channel();
        let entry = Entry { sent: now(), then, caller };
        let mut lines = locked(&self.wire.lines);
        lines.connection.as_ref()?;
        if lines.flying.len() < FLYING && lines.backlog.is_empty() {
            lines.launch(vec![(command, asking)], vec![entry], &self.wire);
        } else {
            lines.backlog.push_back((command, asking, entry));
        }
        if !std::mem::replace(&mut lines.watched, true) {
            self.wire.kick.notify_one();
        }
        Some(reply)
    }

    /// All that was asked fails, and nothing can be asked any more.
    pub(crate) fn kill(&self) {
        self.wire.dead.store(true, Ordering::SeqCst);
        self.wire.kick.notify_one();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.wire.dead.load(Ordering::SeqCst)
    }
}

/// The link's end is known however its task ends, with its runtime too.
struct Watched(Arc<Wire>);

impl Drop for Watched {
    fn drop(&mut self) {
        let _reading = locked(&self.0.reading);
        self.0.fail(&gone());
    }
}

/// Ends the link when a reply is missing for `reply_timeout`: nobody knows any more what the server has read. A reply that is a
/// second late may be that of a former primary.
async fn watch(wire: Arc<Wire>, reply_timeout: Duration) {
    let watched = Watched(wire.clone());
    let (mut planned, mut looked) = (Duration::MAX, Duration::ZERO);
    loop {
        let stopped = now() > planned.saturating_add(HUNG);
        let alive = {
            let _reading = locked(&wire.reading);
            wire.read(|wire| Some(locked(&wire.lines)));
            !wire.dead.load(Ordering::SeqCst)
        };
        let oldest = wire.oldest();
        if !alive || (oldest.is_none() && wire.left.load(Ordering::SeqCst)) {
            return drop(watched);
        }
        let age = oldest.map(|sent| now().saturating_sub(sent));
        let nap = match age {
            None => Duration::MAX,
            // The library's reader first.
            Some(_) if stopped => HUNG,
            Some(age) if age >= reply_timeout + LAST_WORDS => {
                let _reading = locked(&wire.reading);
                wire.fail(&std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not answer").into());
                return;
            }
            Some(age) => {
                if age >= ANOTHER && now() >= looked + ANOTHER {
                    looked = now();
                    if let Some(core) = wire.core.upgrade() {
                        core.overdue(&wire.node, wire.id);
                    }
                }
                (reply_timeout + LAST_WORDS - age).min(ANOTHER.saturating_sub(age).max(ANOTHER / 2))
            }
        };
        planned = now().saturating_add(nap);
        if age.is_none() {
            wire.kick.notified().await;
        } else {
            let _ = timeout(nap, wire.kick.notified()).await;
        }
    }
}

/// A connection, tried once, and where it puts what comes unasked. It is bounded by whoever waits for it.
async fn connect(
    info: &ConnectionInfo,
    protocol: ProtocolVersion,
    reply_timeout: Option<Duration>,
) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>)> {
    let (sender, pushes) = mpsc::unbounded_channel();
    let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(reply_timeout);
    if protocol == ProtocolVersion::RESP3 {
        config = config.set_push_sender(sender);
    }
    let settings = info.redis_settings().clone().set_protocol(protocol);
    let client = Client::open(info.clone().set_redis_settings(settings))?;
    Ok((client.get_multiplexed_async_connection_with_config(&config).await?, pushes))
}

/// Opens a link to the node, and the subscriber beside it, on which grants are announced. They end together. (One connection
/// for both would do, but Valkey holds back no answer on one that is subscribed, so nothing could be confirmed there.)
pub(crate) async fn open(core: Arc<Core>, name: String) -> Result<Arc<Link>> {
    let reply_timeout = core.settings.reply_timeout;
    let info = core.servers.find(&name).await?;
    // The subscriber first: of a refused RESP2 login the redis crate does not say what the server has said.
    let (mut subscriber, pushes) = connect(&info, ProtocolVersion::RESP3, Some(reply_timeout)).await?;
    let (connection, _) = connect(&info, ProtocolVersion::RESP2, None).await?;
    let denied = match subscriber.subscribe(&core.channel).await.map_err(Error::from) {
        Ok(()) => false,
        Err(error) if !error.passes() => {
            tracing::debug!("no messages from {name}: {error}");
            true
        }
        Err(error) => return Err(error),
    };
    let (id, kick) = (core.number(), Arc::new(Notify::new()));
    let wire = Arc::new_cyclic(|wire| Wire {
        id,
        node: name.clone(),
        core: Arc::downgrade(&core),
        lines: Mutex::new(Lines {
            connection: Some(connection),
            flying: VecDeque::new(),
            backlog: VecDeque::new(),
            watched: false,
        }),
        reading: Mutex::default(),
        waker: Arc::new(Reader(wire.clone())).into(),
        kick,
        dead: AtomicBool::new(false),
        left: AtomicBool::new(false),
    });
    let link = Arc::new(Link { id, address: info.addr().to_string(), wire: wire.clone() });
    core.shelf.with(|state| state.opened(id, &name, denied));
    if !denied {
        tokio::spawn(hear(pushes, Arc::downgrade(&core), Arc::downgrade(&link)));
        tokio::spawn(ping(subscriber, Arc::downgrade(&core), Arc::downgrade(&link)));
    }
    tokio::spawn(watch(wire, reply_timeout));
    Ok(link)
}

/// A path that has fallen silent loses messages: while somebody waits the subscriber is asked once a second.
async fn ping(mut subscriber: MultiplexedConnection, core: Weak<Core>, link: Weak<Link>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (Some(core), Some(link)) = (core.upgrade(), link.upgrade()) else { return };
        if link.is_dead() {
            return;
        }
        let asks = core.shelf.with(|state| state.node(&link.wire.node).has_waits());
        drop(core);
        // A refusal is an answer.
        if asks && redis::cmd("PING").exec_async(&mut subscriber).await.is_err_and(|error| is_broken(&error)) {
            return link.kill();
        }
    }
}

/// Brings each message to whoever waits for it.
async fn hear(mut pushes: mpsc::UnboundedReceiver<PushInfo>, core: Weak<Core>, link: Weak<Link>) {
    while let Some(push) = pushes.recv().await {
        let (Some(core), Some(link)) = (core.upgrade(), link.upgrade()) else { return };
        match (push.kind, push.data.last()) {
            (PushKind::Message, Some(Value::BulkString(text))) => {
                if let Some((who, notification)) = parse(text) {
                    core.shelf.with(|state| state.node(&link.wire.node).notify(&who, notification));
                }
            }
            (PushKind::Disconnection, _) => link.kill(),
            _ => {}
        }
    }
}

/// `word token keylen:key ownerlen:owner number`
fn parse(text: &[u8]) -> Option<(Who, Notification)> {
    fn until(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
        let at = text.iter().position(|byte| *byte == end)?;
        Some((text.get(..at)?, text.get(at + 1..)?))
    }
    fn number(text: &[u8]) -> Option<u64> {
        std::str::from_utf8(text).ok()?.parse().ok()
    }
    fn name(text: &[u8]) -> Option<(&[u8], &[u8])> {
        let (size, rest) = until(text, b':')?;
        let size = usize::try_from(number(size)?).ok()?;
        Some((rest.get(..size)?, rest.get(size + 1..)?))
    }
    let (word, rest) = until(text, b' ')?;
    let (token, rest) = until(rest, b' ')?;
    let (key, rest) = name(rest)?;
    let (owner, rest) = name(rest)?;
    let word = String::from_utf8_lossy(word).into_owned();
    // 0 is our own word for all of them.
    let number = number(rest).filter(|number| *number > 0)?;
    Some(((key.to_vec(), owner.to_vec()), Notification { word, token: self::parse_number(token)?, number }))
}

fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
