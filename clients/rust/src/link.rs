// SPDX-License-Identifier: MIT
//! The one connection to a node that everybody shares: the redis crate's multiplexed one. A task of its own sends in
//! order and reads the replies in order. What a reply changes is changed there, whether or not anybody waits for it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, oneshot, Notify};
use tokio::task::unconstrained;

use crate::core::Core;
use crate::error::{is_broken, Error, Result};
use crate::settings::{now, Settings};
use crate::state::{News, State, Who};

pub(crate) type Reply = Result<Value, RedisError>;

pub(crate) fn is_not_held(reply: &Reply) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("NOTHELD"))
}

/// Where and when something was asked.
pub(crate) struct At {
    pub(crate) node: String,
    pub(crate) link: u64,
    pub(crate) sent: Duration,
}

impl At {
    /// The believed end of what lasts so long from when it was asked.
    pub(crate) fn ends(&self, lease: i64, settings: &Settings) -> Duration {
        let lease = Duration::from_millis(u64::try_from(lease).unwrap_or_default());
        (self.sent + lease).saturating_sub(settings.allowance + Duration::from_millis(2))
    }
}

/// What a reply changes.
pub(crate) type Then = Arc<dyn Fn(&mut State, &At, &Reply) + Send + Sync>;

struct Entry {
    command: Cmd,
    asking: bool,
    sent: Duration,
    then: Option<Then>,
    gate: oneshot::Sender<Reply>,
}

/// The sending end.
pub(crate) struct Link {
    pub(crate) id: u64,
    entries: mpsc::UnboundedSender<Entry>,
    kill: Arc<Notify>,
}

impl Link {
    /// Sends a command and waits for nothing.
    pub(crate) fn post(&self, command: Cmd, asking: bool, then: Option<Then>) -> oneshot::Receiver<Reply> {
        let (gate, reply) = oneshot::channel();
        let _ = self.entries.send(Entry { command, asking, sent: now(), then, gate });
        reply
    }

    /// All that was asked has failed, and nothing can be asked any more.
    pub(crate) fn kill(&self) {
        self.kill.notify_one();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.entries.is_closed()
    }
}

/// A connection to the node, bounded, tried once, and where it tells what comes unasked.
pub(crate) async fn connect(
    core: &Core,
    name: &str,
    protocol: ProtocolVersion,
    reply_within: Option<Duration>,
) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>)> {
    let (sender, pushes) = mpsc::unbounded_channel();
    let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(reply_within);
    if protocol == ProtocolVersion::RESP3 {
        config = config.set_push_sender(sender);
    }
    let connecting = async {
        let client = core.servers.client(name, protocol).await?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    };
    match tokio::time::timeout(core.settings.bound, connecting).await {
        Ok(connected) => connected.map(|connection| (connection, pushes)),
        Err(_) => Err(Error::silent()),
    }
}

/// A new link to the node, and the ear beside it, on which grants are told. They end together. (One connection for both would do,
/// but Valkey holds back no answer on one that is subscribed, so nothing could be confirmed there.)
pub(crate) async fn open(core: &Arc<Core>, name: &str) -> Result<Arc<Link>> {
    let bound = Some(core.settings.bound);
    // The ear first: of a refused RESP2 login the redis crate does not say what the server has said.
    let (mut ear, pushes) = connect(core, name, ProtocolVersion::RESP3, bound).await?;
    let (connection, _) = connect(core, name, ProtocolVersion::RESP2, bound).await?;
    let deaf = match ear.subscribe(&core.channel).await.map_err(Error::from) {
        Ok(()) => false,
        Err(error) if !error.passes() => {
            tracing::debug!("no messages from {name}: {error}");
            true
        }
        Err(error) => return Err(error),
    };
    let (entries, asked) = mpsc::unbounded_channel();
    let link = Arc::new(Link { id: core.number(), entries, kill: Arc::default() });
    core.shelf.with(|state| {
        state.booked(link.id, name);
        state.node(name).deaf = deaf;
    });
    let core = Arc::downgrade(core);
    if !deaf {
        tokio::spawn(hear(pushes, core.clone(), name.to_owned(), link.kill.clone()));
        tokio::spawn(listen(ear, core.clone(), name.to_owned(), Arc::downgrade(&link)));
    }
    tokio::spawn(serve(connection, asked, core, (name.to_owned(), link.id), link.kill.clone()));
    Ok(link)
}

/// A path that has fallen silent loses messages without a word: while somebody waits the ear is asked once a second.
async fn listen(mut ear: MultiplexedConnection, core: Weak<Core>, node: String, link: Weak<Link>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (Some(core), Some(link)) = (core.upgrade(), link.upgrade()) else { return };
        let asks = core.shelf.with(|state| state.node(&node).has_waits());
        drop(core);
        if link.is_dead() {
            return;
        }
        // A refusal is an answer.
        if asks && redis::cmd("PING").exec_async(&mut ear).await.is_err_and(|error| is_broken(&error)) {
            return link.kill();
        }
    }
}

/// Brings each message to whoever waits for it.
async fn hear(mut pushes: mpsc::UnboundedReceiver<PushInfo>, core: Weak<Core>, node: String, kill: Arc<Notify>) {
    while let Some(push) = pushes.recv().await {
        match (push.kind, push.data.last()) {
            (PushKind::Message, Some(Value::BulkString(text))) => {
                let (Some(core), Some((who, news))) = (core.upgrade(), parse(text)) else { continue };
                core.shelf.with(|state| state.node(&node).heard(&who, &news));
            }
            (PushKind::Disconnection, _) => kill.notify_one(),
            _ => {}
        }
    }
}

/// `word token keylen:key ownerlen:owner number`
fn parse(text: &[u8]) -> Option<(Who, News)> {
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
    let news = News { word, token: number(token)?, number: number(rest).filter(|number| *number > 0)? };
    Some(((key.to_vec(), owner.to_vec()), news))
}

/// So many messages are on the way at most, and so many commands in one of them. The library's queue has room for 50: of
/// more than that a later one may find a place before an earlier one.
const FLYING: usize = 48;
const BATCH: usize = 1000;

type Sending = Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>>;

/// Sends these commands, each of them after `ASKING` or not, and gives their replies. (Not by `query_async`: its errors have no code.)
fn send(mut connection: MultiplexedConnection, commands: Vec<(Cmd, bool)>) -> Sending {
    // Without tokio's budget, which could have a later message overtake it.
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

/// The link's end is known however its task ends, with its runtime too.
struct Served {
    core: Weak<Core>,
    link: u64,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.shelf.with(|state| state.died(self.link));
        }
    }
}

/// Sends what is asked and reads what is answered, until the connection is of no use or nobody can ask any more.
async fn serve(
    connection: MultiplexedConnection,
    mut asked: mpsc::UnboundedReceiver<Entry>,
    core: Weak<Core>,
    (node, link): (String, u64),
    kill: Arc<Notify>,
) {
    let _served = Served { core: core.clone(), link };
    let answer = |(sent, then, gate): (Duration, Option<Then>, oneshot::Sender<Reply>), reply: Reply| {
        if let (Some(then), Some(core)) = (then, core.upgrade()) {
            let at = At { node: node.clone(), link, sent };
            core.shelf.with(|state| then(state, &at, &reply));
        }
        let _ = gate.send(reply);
    };
    let mut flying: FuturesOrdered<Sending> = FuturesOrdered::new();
    let (mut entries, mut waiting) = (Vec::new(), VecDeque::new());
    let mut open = true;
    let error = loop {
        if !open && flying.is_empty() {
            break None;
        }
        tokio::select! {
            biased;
            () = kill.notified() => break None,
            Some(replies) = flying.next() => match replies {
                Ok(replies) => {
                    for (one, reply) in waiting.pop_front().into_iter().flatten().zip(replies) {
                        answer(one, reply.extract_error());
                    }
                }
                Err(error) => break Some(error),
            },
            count = asked.recv_many(&mut entries, BATCH), if open && flying.len() < FLYING => {
                let asks = |entry: Entry| ((entry.command, entry.asking), (entry.sent, entry.then, entry.gate));
                let (commands, group): (Vec<_>, Vec<_>) = entries.drain(..).map(asks).unzip();
                open = count > 0;
                if open {
                    flying.push_back(send(connection.clone(), commands));
                    waiting.push_back(group);
                }
            }
        }
    };
    asked.close();
    let gone = || RedisError::from(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the connection is lost"));
    let error = error.unwrap_or_else(gone);
    drop((flying, connection));
    for one in waiting.into_iter().flatten() {
        answer(one, Err(error.clone()));
    }
    while let Some(Entry { sent, then, gate, .. }) = asked.recv().await {
        answer((sent, then, gate), Err(error.clone()));
    }
}
