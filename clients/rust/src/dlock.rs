// SPDX-License-Identifier: MIT
//! Locks of the dlock module, by the `redis` crate and tokio. Copy this file.
//!
//! ```no_run
//! # async fn example() -> Result<(), dlock_client::Error> {
//! use dlock_client::Locks;
//! use std::time::Duration;
//!
//! // One server; all nodes that are known of a cluster; or a primary and its replicas.
//! let locks = Locks::new([redis::Client::open("redis://127.0.0.1/")?]);
//! let hold = locks.on("stock").timeout(Duration::from_secs(5)).lock().await?;
//! let mut set = redis::cmd("SET");
//! set.arg("left").arg(41);
//! tokio::select! {
//!     () = hold.lost() => println!("somebody else has it now"),
//!     // Runs only while the lock is held under this token: else Error::Fenced.
//!     done = hold.guard(&set) => println!("{:?}", done?),
//! }
//! hold.release().await?;
//! # Ok(()) }
//! ```
//!
//! All tasks share one connection to each node and wait by NOTIFY. A future that is dropped leaves the queue; a
//! [`Hold`] that is dropped is given back. Both are done by a task of their own.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    cmd, AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout, timeout_at};

/// Why there is no lock, or none any more.
#[derive(Debug)]
pub enum Error {
    /// The lock is not, or no longer, held under this name and token.
    NotHeld,
    /// A guarded command was not run: the lock is not held under this token.
    Fenced,
    /// The wait could never end; the server names the circle.
    Deadlock(String),
    /// Somebody else asked under the same owner's name and has the place. Never asked again by itself.
    Replaced,
    /// The lock was not granted in time.
    TimedOut,
    /// Whatever else the server or the connection says.
    Redis(RedisError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotHeld => f.write_str("the lock is not held"),
            Error::Fenced => f.write_str("the lock is not held under this token: the command was not run"),
            Error::Deadlock(circle) => write!(f, "{circle}"),
            Error::Replaced => f.write_str("another request of the same owner has taken the place"),
            Error::TimedOut => f.write_str("the lock was not granted in time"),
            Error::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        match error.code().map(|code| code.trim_end_matches(':')) {
            Some("NOTHELD") => Error::NotHeld,
            Some("FENCED") => Error::Fenced,
            Some("DEADLOCK") => Error::Deadlock(error.to_string()),
            Some("REPLACED") => Error::Replaced,
            _ => Error::Redis(error),
        }
    }
}

impl Error {
    /// Whether a reconnection, another node or a little time can mend it.
    fn passes(&self) -> bool {
        let Error::Redis(error) = self else { return false };
        error.is_io_error()
            || error.is_cluster_error()
            || matches!(
                error.kind(),
                ErrorKind::ReadOnly | ErrorKind::BusyLoadingError | ErrorKind::MasterDown | ErrorKind::ClientError
            )
            || matches!(error.code(), Some("UNBLOCKED" | "NOREPLICAS" | "MISCONF"))
    }

    /// Whether the command may have been executed all the same.
    fn is_unsure(&self) -> bool {
        matches!(self, Error::Redis(error) if error.is_io_error())
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the lock has left when this program dies or loses the server.
    pub lease: Duration,
    /// How long a program that hangs, its connection open, keeps its locks.
    pub auto: Duration,
    /// How long a place in the queue is kept while the connection is lost.
    pub claim: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        let [lease, auto, claim] = [10, 60, 5].map(Duration::from_secs);
        Settings { lease, auto, claim }
    }
}

/// What came over the channel for a wait: what has happened, the token, the number of the wait; None: ask again.
type News = Option<(String, u64, u64)>;
/// Who waits, by key and owner.
type Waiting = Arc<Mutex<HashMap<(Vec<u8>, Vec<u8>), Vec<mpsc::UnboundedSender<News>>>>>;

#[derive(Clone)]
struct Node {
    connection: MultiplexedConnection,
    channel: String,
}

/// A connection that is there, has failed, or (None) is on its way: nobody else waits for it than who wants it.
type Opening = watch::Receiver<Option<Result<Node, RedisError>>>;

#[derive(Default)]
struct Map {
    nodes: HashMap<String, Opening>,
    /// Which node serves which slot, as far as errors have told.
    slots: HashMap<u16, String>,
    /// Where to begin with a slot of which nothing is known.
    first: usize,
}

struct Inner {
    seeds: Vec<Client>,
    settings: Settings,
    map: Mutex<Map>,
    waiting: Waiting,
}

impl Inner {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks on one server, a cluster, or a primary with replicas. A clone is the same.
#[derive(Clone)]
pub struct Locks(Arc<Inner>);

/// What is asked for; ends with [`lock`](Request::lock) or [`try_lock`](Request::try_lock).
#[derive(Clone)]
pub struct Request {
    locks: Locks,
    key: Vec<u8>,
    owner: Vec<u8>,
    named: bool,
    limit: Vec<String>,
    session: bool,
    timeout: Option<Duration>,
    /// The holds of this owner before, and their token; those are not ours to give back.
    before: u64,
    outer: u64,
}

impl Locks {
    /// Locks with the default [`Settings`].
    pub fn new(seeds: impl IntoIterator<Item = Client>) -> Locks {
        Locks::with(seeds, Settings::default())
    }

    /// Locks with settings of one's own.
    pub fn with(seeds: impl IntoIterator<Item = Client>, settings: Settings) -> Locks {
        let seeds: Vec<Client> = seeds.into_iter().collect();
        assert!(!seeds.is_empty(), "no server was named");
        Locks(Arc::new(Inner { seeds, settings, map: Default::default(), waiting: Waiting::default() }))
    }

    /// A lock to be asked for: exclusive, under a name of its own, without a time-out.
    pub fn on(&self, key: impl AsRef<[u8]>) -> Request {
        Request {
            locks: self.clone(),
            key: key.as_ref().to_vec(),
            owner: unique().into_bytes(),
            named: false,
            limit: Vec::new(),
            session: false,
            timeout: None,
            before: 0,
            outer: 0,
        }
    }

    /// Locks of any slots, in one fixed order under one owner, all within the time. The server sees no circle that
    /// goes over several nodes: it is the order that prevents them. Give them back with [`release_all`].
    pub async fn many<K: AsRef<[u8]>>(&self, keys: &[K], timeout: Option<Duration>) -> Result<Vec<Hold>> {
        let (owner, end) = (unique(), timeout.map(|timeout| Instant::now() + timeout));
        let mut keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut holds = Vec::new();
        for key in keys {
            let mut request = self.on(key).owner(&owner);
            request.timeout = end.map(|end| end.saturating_duration_since(Instant::now()));
            match request.lock().await {
                Ok(hold) => holds.push(hold),
                Err(error) => {
                    let _ = release_all(holds).await; // the first error is the one to report
                    return Err(error);
                }
            }
        }
        Ok(holds)
    }

    /// The reply, from whoever serves the key. What was not executed is sent on to where the server says.
    async fn call(&self, key: &[u8], command: impl Fn(&str) -> Cmd) -> Result<Value> {
        let slot = slot(key);
        let mut redirections = 0;
        loop {
            let (name, mut node) = self.node(slot).await?;
            let error = match command(&node.channel).query_async::<Value>(&mut node.connection).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            redirections += 1;
            match (error.kind(), error.redirect_node()) {
                (ErrorKind::Moved, Some((address, _))) if redirections < 5 => {
                    self.0.map().slots.insert(slot, address.to_owned());
                }
                (ErrorKind::Ask, Some((address, _))) if redirections < 5 => {
                    let mut node = self.connect(address).await?;
                    let mut pipe = redis::pipe();
                    pipe.cmd("ASKING").ignore().add_command(command(&node.channel));
                    let (reply,): (Value,) = pipe.query_async(&mut node.connection).await?;
                    return Ok(reply);
                }
                _ => {
                    let error = Error::from(error);
                    if error.passes() {
                        self.forget(slot, &name, Some(&node.channel));
                    }
                    return Err(error);
                }
            }
        }
    }

    /// The node may not be there any more, or be no primary: another one will be asked.
    fn forget(&self, slot: u16, name: &str, channel: Option<&str>) {
        let mut map = self.0.map();
        let known = map.nodes.get(name).is_some_and(|opening| match &*opening.borrow() {
            Some(Ok(node)) => channel == Some(&node.channel), // else it is a newer one
            Some(Err(_)) => true,
            None => false,
        });
        if known {
            map.nodes.remove(name);
        }
        map.slots.remove(&slot);
        map.first += 1;
    }

    async fn node(&self, slot: u16) -> Result<(String, Node)> {
        let name = {
            let map = self.0.map();
            let seed = &self.0.seeds[map.first % self.0.seeds.len()];
            map.slots.get(&slot).cloned().unwrap_or_else(|| seed.get_connection_info().addr.to_string())
        };
        match self.connect(&name).await {
            Ok(node) => Ok((name, node)),
            Err(error) => {
                self.forget(slot, &name, None);
                Err(error)
            }
        }
    }

    /// All who want this node wait for the same connection, and have the same error.
    async fn connect(&self, name: &str) -> Result<Node> {
        let mut opening = {
            let mut map = self.0.map();
            match map.nodes.get(name) {
                Some(opening) if !matches!(&*opening.borrow(), Some(Err(_))) => opening.clone(),
                _ => {
                    let (sender, opening) = watch::channel(None);
                    let (locks, to) = (self.clone(), name.to_owned());
                    tokio::spawn(async move {
                        let opened = timeout(REPLY, locks.open(&to)).await;
                        let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
                        sender.send_replace(Some(opened.unwrap_or_else(|_| late())));
                    });
                    map.nodes.insert(name.to_owned(), opening.clone());
                    opening
                }
            }
        };
        let opened = opening.wait_for(Option::is_some).await;
        match opened.as_deref() {
            Ok(Some(Ok(node))) => Ok(node.clone()),
            Ok(Some(Err(error))) => Err(copy(error).into()),
            // Its runtime has ended meanwhile.
            _ => Err(Error::Redis(std::io::Error::from(std::io::ErrorKind::NotConnected).into())),
        }
    }

    async fn open(&self, name: &str) -> Result<Node, RedisError> {
        let mut info = self.0.seeds[0].get_connection_info().clone();
        // One connection for commands and messages.
        info.redis.protocol = ProtocolVersion::RESP3;
        if let Some((to, at)) = name.rsplit_once(':') {
            match &mut info.addr {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    (*host, *port) = (to.to_owned(), at.parse().unwrap_or(*port));
                }
                ConnectionAddr::Unix(_) => {}
            }
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(REPLY)
            .set_response_timeout(REPLY)
            .set_push_sender(sender);
        let mut connection = Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        // A channel for each connection: a message of a cluster goes to all nodes, and is to be heard once.
        let channel = format!("dlock:{}", unique());
        connection.subscribe(&channel).await?;
        tokio::spawn(dispatch(receiver, self.0.waiting.clone()));
        Ok(Node { connection, channel })
    }
}

/// The library's errors cannot be cloned: the kind, the code and the words of one.
fn copy(error: &RedisError) -> RedisError {
    match (error.kind(), error.code()) {
        (ErrorKind::IoError, _) => std::io::Error::other(error.to_string()).into(),
        (ErrorKind::ExtensionError, Some(code)) => {
            redis::make_extension_error(code.to_owned(), error.detail().map(str::to_owned))
        }
        (kind, _) => (kind, "no connection", error.to_string()).into(),
    }
}

/// Gives back all of them, the last one first. The first error is reported when all are given back.
pub async fn release_all(holds: Vec<Hold>) -> Result<()> {
    let mut result = Ok(());
    for hold in holds.into_iter().rev() {
        result = result.and(hold.release().await);
    }
    result
}

/// Brings each message to whoever waits for it. When the connection ends they all ask again.
async fn dispatch(mut pushes: mpsc::UnboundedReceiver<PushInfo>, waiting: Waiting) {
    while let Some(push) = pushes.recv().await {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match (push.kind, push.data.last()) {
            (PushKind::Message, Some(Value::BulkString(text))) => {
                if let Some((who, news)) = parse(text) {
                    if let Some(senders) = waiting.get_mut(&who) {
                        senders.retain(|sender| sender.send(Some(news.clone())).is_ok());
                    }
                }
            }
            (PushKind::Disconnection, _) => {
                waiting.values().flatten().for_each(|sender| drop(sender.send(None)));
            }
            _ => {}
        }
    }
}

/// `word token keylen:key ownerlen:owner number`
#[allow(clippy::type_complexity)]
fn parse(text: &[u8]) -> Option<((Vec<u8>, Vec<u8>), (String, u64, u64))> {
    fn until(text: &[u8], end: u8) -> Option<(String, &[u8])> {
        let at = text.iter().position(|byte| *byte == end)?;
        Some((String::from_utf8_lossy(&text[..at]).into_owned(), text.get(at + 1..)?))
    }
    fn name(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
        let (length, text) = until(text, b':')?;
        let length = length.parse().ok()?;
        Some((text.get(..length)?.to_vec(), text.get(length + 1..)?))
    }
    let (word, text) = until(text, b' ')?;
    let (token, text) = until(text, b' ')?;
    let (key, text) = name(text)?;
    let (owner, text) = name(text)?;
    let number = String::from_utf8_lossy(text).parse().ok()?;
    Some(((key, owner), (word, token.parse().ok()?, number)))
}

impl Request {
    /// Any number of holders that share, as the readers of a read-write lock.
    pub fn shared(mut self) -> Request {
        self.limit = vec!["SHARED".into()];
        self
    }

    /// At most so many holders: a semaphore.
    pub fn limit(mut self, limit: u32) -> Request {
        self.limit = vec!["LIMIT".into(), limit.to_string()];
        self
    }

    /// Under this name. Locks that one task holds within each other should have one owner: only then can the server
    /// see a circle ([`Error::Deadlock`]). Tasks of their own need owners of their own.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Request {
        (self.owner, self.named) = (owner.as_ref().to_vec(), true);
        self
    }

    /// The hold ends with the connection, at once, whatever has cut it.
    pub fn session(mut self) -> Request {
        self.session = true;
        self
    }

    /// Waits so long at most; without it [`lock`](Request::lock) waits for ever.
    pub fn timeout(mut self, timeout: Duration) -> Request {
        self.timeout = Some(timeout);
        self
    }

    /// Waits for the lock.
    pub async fn lock(self) -> Result<Hold> {
        let Some(end) = self.timeout.map(|timeout| Instant::now() + timeout) else {
            return self.take(None, false).await?.ok_or(Error::TimedOut);
        };
        self.take_until(end).await?.ok_or(Error::TimedOut)
    }

    /// The lock, if it can be had within the time-out (none: at once).
    pub async fn try_lock(self) -> Result<Option<Hold>> {
        match self.timeout {
            Some(timeout) => self.take_until(Instant::now() + timeout).await,
            None => self.take(Some(Instant::now()), true).await,
        }
    }

    /// Where nobody answers it ends a little later all the same, and a task of its own leaves the queue.
    async fn take_until(self, end: Instant) -> Result<Option<Hold>> {
        timeout_at((end + GRACE).into(), self.take(Some(end), false)).await.unwrap_or(Ok(None))
    }

    async fn take(mut self, end: Option<Instant>, at_once: bool) -> Result<Option<Hold>> {
        let locks = self.locks.clone();
        if self.named {
            let held = locks.call(&self.key, |_| self.command("HELD")).await?;
            if let Value::Array(held) = held {
                // Nor may an outer hold be tied to a connection of ours.
                (self.outer, self.before, self.session) = (number(held.first()), number(held.get(1)), false);
            }
        }
        // From here on whatever ends this, dropping the future too, leaves nothing behind.
        let mut leaving = Leaving(Some(self.clone()));
        let (sender, mut news) = mpsc::unbounded_channel();
        let who = (self.key.clone(), self.owner.clone());
        let mut listed = Listed(locks.0.waiting.clone(), who, sender);
        listed.enter();
        // The wait that the server knows of.
        let mut wait = None;
        loop {
            let asked = match look(&mut news, wait).await {
                Ok(()) if !at_once && end.is_some_and(|end| end <= Instant::now()) => return Ok(None), // and leaves
                Ok(()) => self.ask(&mut news, &mut wait, end, at_once).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(Some((token, confirmed))) => {
                    leaving.0 = None;
                    if token != self.outer {
                        // An upgrade is a new grant: the outer hold has ended with its token, and all of this is ours.
                        self.before = 0;
                    }
                    drop(listed);
                    return Ok(Some(Hold::new(self, token, confirmed)));
                }
                // The outer hold has ended, and with it what was asked.
                Err(Error::NotHeld) if self.before > 0 => return Err(Error::NotHeld),
                Ok(None) | Err(Error::NotHeld) if at_once => {
                    leaving.0 = None;
                    return Ok(None);
                }
                Ok(None) | Err(Error::NotHeld) => {} // we were slower than the first lease
                Err(error) if error.passes() && !(at_once && end.is_some_and(|end| end + GRACE < Instant::now())) => {
                    pause().await;
                }
                Err(error) => {
                    if matches!(error, Error::Replaced) {
                        leaving.0 = None; // the place is somebody else's
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Asks once, waits a slice for the message, and confirms the grant.
    async fn ask(
        &self,
        news: &mut mpsc::UnboundedReceiver<News>,
        wait: &mut Option<u64>,
        end: Option<Instant>,
        at_once: bool,
    ) -> Result<Option<(u64, Instant)>> {
        let (locks, settings) = (&self.locks, &self.locks.0.settings);
        // The lease until the grant is confirmed; a message that was lost is noticed within it.
        let first = settings.lease.min(Duration::from_secs(3));
        *wait = None; // what comes from now on may be said of our own asking
        let reply = locks
            .call(&self.key, |channel| {
                let mut command = self.command(if at_once { "ACQUIRE" } else { "FAIRACQUIRE" });
                command.arg(millis(first));
                if !at_once {
                    command.arg("NOTIFY").arg(channel).arg("CLAIM").arg(millis(settings.claim));
                }
                // The same answer and no second hold, however often it is asked.
                command.arg("HOLDS").arg(self.before + 1).arg(&self.limit);
                self.tie(&mut command);
                command
            })
            .await?;
        let Value::Array(reply) = reply else { return Ok(None) };
        let mut token = number(reply.first());
        if token == 0 {
            let known = number(reply.get(2));
            *wait = Some(known);
            let slice = Instant::now() + first / 2;
            let until = end.map_or(slice, |end| end.min(slice));
            let Some(granted) = await_grant(news, known, until).await? else { return Ok(None) };
            token = granted;
        }
        let confirmed = Instant::now();
        self.renew(token).await?;
        Ok(Some((token, confirmed)))
    }

    /// The full lease, and from now on the server renews it as long as our connection is there.
    async fn renew(&self, token: u64) -> Result<()> {
        let settings = &self.locks.0.settings;
        let renew = |_: &str| {
            let mut command = self.command("RENEW");
            command.arg(millis(settings.lease)).arg("TOKEN").arg(token);
            self.tie(&mut command);
            if self.before == 0 {
                command.arg("AUTO").arg(millis(settings.auto.max(settings.lease)));
            }
            command
        };
        self.locks.call(&self.key, renew).await.map(drop)
    }

    /// No place, and no hold beyond those of before. On the connection that asked, so after all that was asked.
    async fn leave(&self) {
        self.say(|| self.command("CANCEL")).await;
        self.say(|| self.release(self.before)).await;
        if self.before > 0 {
            // An upgrade that came first has ended the outer hold: nobody knows its token.
            let held = self.say(|| self.command("HELD")).await;
            let Some(Value::Array(held)) = held else { return };
            let token = number(held.first());
            if token != self.outer {
                self.say(|| self.release(0).arg("TOKEN").arg(token).to_owned()).await;
            }
        }
    }

    /// The reply, if there is one within three tries: else the server's own rules end what is left.
    async fn say(&self, command: impl Fn() -> Cmd) -> Option<Value> {
        for _ in 0..3 {
            match self.locks.call(&self.key, |_| command()).await {
                Err(error) if error.passes() => pause().await,
                reply => return reply.ok(),
            }
        }
        None
    }

    fn release(&self, holds: u64) -> Cmd {
        let mut command = self.command("RELEASE");
        command.arg("HOLDS").arg(holds);
        command
    }

    fn command(&self, name: &str) -> Cmd {
        let mut command = cmd(&format!("DLOCK.{name}"));
        command.arg(&self.key).arg(&self.owner);
        command
    }

    fn tie(&self, command: &mut Cmd) {
        if self.session {
            command.arg("SESSION");
        }
    }
}

/// The token, if it comes so soon; else None: ask again.
async fn await_grant(news: &mut mpsc::UnboundedReceiver<News>, wait: u64, until: Instant) -> Result<Option<u64>> {
    loop {
        let Ok(Some(Some((word, token, number)))) = timeout_at(until.into(), news.recv()).await else {
            return Ok(None);
        };
        if number != wait {
            continue; // of an earlier asking of ours
        }
        return match refusal(&word) {
            Some(error) => Err(error),
            // Else: moved, gone, cancelled.
            None => Ok((word == "granted").then_some(token)),
        };
    }
}

/// Before it is asked again: the wait may have ended with the end of the slice.
async fn look(news: &mut mpsc::UnboundedReceiver<News>, wait: Option<u64>) -> Result<()> {
    if wait.is_some() {
        tokio::task::yield_now().await; // what has arrived is read and dispatched
    }
    while let Ok(one) = news.try_recv() {
        if let Some((word, _, _)) = one.filter(|(_, _, number)| Some(*number) == wait) {
            refusal(&word).map_or(Ok(()), Err)?;
        }
    }
    Ok(())
}

/// What a message says of a wait that has ended for good without a grant.
fn refusal(word: &str) -> Option<Error> {
    match word {
        "replaced" => Some(Error::Replaced),
        "deadlock" => Some(Error::Deadlock("a wait that could never end".into())),
        "notheld" => Some(Error::NotHeld),
        "wrongtype" | "refused" => {
            Some(Error::Redis((ErrorKind::ExtensionError, "the wait was refused", word.to_owned()).into()))
        }
        _ => None,
    }
}

/// Leaves the wait for good when it is dropped.
struct Leaving(Option<Request>);

impl Drop for Leaving {
    fn drop(&mut self) {
        if let (Some(request), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { request.leave().await });
        }
    }
}

/// An entry in the list of those who wait.
struct Listed(Waiting, (Vec<u8>, Vec<u8>), mpsc::UnboundedSender<News>);

impl Listed {
    fn enter(&mut self) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(self.1.clone()).or_default().push(self.2.clone());
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(senders) = waiting.get_mut(&self.1) {
            senders.retain(|sender| !sender.same_channel(&self.2));
            if senders.is_empty() {
                waiting.remove(&self.1);
            }
        }
    }
}

/// A lock that is held. Give it back by [`release`](Hold::release); dropping it does so too, but tells no error.
pub struct Hold {
    request: Option<Request>,
    locks: Locks,
    key: Vec<u8>,
    token: u64,
    lost: watch::Receiver<bool>,
    keeper: tokio::task::JoinHandle<()>,
}

impl Hold {
    fn new(request: Request, token: u64, confirmed: Instant) -> Hold {
        let (sender, lost) = watch::channel(false);
        let keeper = tokio::spawn(keep(request.clone(), token, confirmed, sender));
        let (locks, key) = (request.locks.clone(), request.key.clone());
        Hold { request: Some(request), locks, key, token, lost, keeper }
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns when the lock is lost, and never if it is not.
    pub async fn lost(&self) {
        // The keeper ends only with a loss, or with the hold.
        if self.lost.clone().wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether it is known to be lost.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Runs a command in one step with the look whether the lock is still held under this token.
    pub async fn guard(&self, command: &Cmd) -> Result<Value> {
        let guarded = |_: &str| {
            let mut guarded = cmd("DLOCK.GUARD");
            guarded.arg(&self.key).arg(self.token);
            for argument in command.args_iter() {
                if let redis::Arg::Simple(bytes) = argument {
                    guarded.arg(bytes);
                }
            }
            guarded
        };
        self.locks.call(&self.key, guarded).await
    }

    /// Gives back what was granted here, and nothing else.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost.
    pub async fn release(mut self) -> Result<()> {
        self.keeper.abort();
        match self.request.take() {
            Some(request) => give_back(&request, self.token).await,
            None => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.keeper.abort();
        if let (Some(request), Ok(runtime)) = (self.request.take(), tokio::runtime::Handle::try_current()) {
            let token = self.token;
            runtime.spawn(async move { drop(give_back(&request, token).await) });
        }
    }
}

async fn give_back(request: &Request, token: u64) -> Result<()> {
    let end = Instant::now() + request.locks.0.settings.lease;
    let mut unsure = false;
    loop {
        let release = |_: &str| {
            let mut command = request.release(request.before);
            command.arg("TOKEN").arg(token);
            command
        };
        match request.locks.call(&request.key, release).await {
            Ok(_) => return Ok(()),
            // An earlier one may have been heard.
            Err(Error::NotHeld) if unsure => return Ok(()),
            Err(error) if error.passes() && Instant::now() < end => unsure |= error.is_unsure(),
            Err(error) => return Err(error),
        }
        pause().await;
    }
}

/// Says it again in time: so a new connection is tied to the hold after the old one is lost, and a loss is noticed. At
/// the end of the lease it is one, whatever is under way.
async fn keep(request: Request, token: u64, mut confirmed: Instant, lost: watch::Sender<bool>) {
    let lease = request.locks.0.settings.lease;
    let renewed = |confirmed: Instant| {
        let request = &request;
        async move {
            tokio::time::sleep_until((confirmed + lease / 3).into()).await;
            loop {
                let now = Instant::now();
                match request.renew(token).await {
                    Ok(()) => return Some(now),
                    Err(Error::NotHeld) => return None,
                    Err(_) => pause().await,
                }
            }
        }
    };
    while let Ok(Some(now)) = timeout_at((confirmed + lease).into(), renewed(confirmed)).await {
        confirmed = now;
    }
    lost.send_replace(true);
}

/// How long we wait for a connection, and for a reply.
const REPLY: Duration = Duration::from_secs(3);

/// How long an attempt that does not wait goes on over errors that pass, and one whose time is up awaits the answer.
const GRACE: Duration = Duration::from_millis(500);

async fn pause() {
    sleep(Duration::from_millis(20 + random() % 80)).await;
}

/// The standard library's hashers are seeded by the operating system.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn unique() -> String {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{:016x}{:x}", random(), time.as_nanos() ^ u128::from(random()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}

/// The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % 16384
}
