// SPDX-License-Identifier: MIT
//! Connections of the redis crate, made from what the program has, with our bounds: TLS, users, Unix sockets, Sentinels and
//! clusters are that crate's matter.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{select_ok, BoxFuture, FutureExt, Shared};
use redis::aio::MultiplexedConnection;
#[cfg(feature = "cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConfig};
#[cfg(feature = "cluster")]
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{cmd, AsyncConnectionConfig, Client, Cmd, Value};
#[cfg(feature = "sentinel")]
use redis::{sentinel::SentinelClient, RedisResult};
#[cfg(feature = "sentinel")]
use std::collections::HashMap;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Error, Result};

/// Where the locks are. From a [`redis::Client`] (its URL says TLS, user, password, database), from several of them (a primary
/// and its replicas), from a `redis::sentinel::SentinelClient`, or by `Servers::cluster`.
#[derive(Clone)]
pub struct Servers(pub(crate) Source);

#[derive(Clone)]
pub(crate) enum Source {
    Nodes(Vec<Client>),
    #[cfg(feature = "cluster")]
    Cluster {
        usual: Box<ClusterClient>,
        once: Box<ClusterClient>,
    },
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
    Fake(Arc<dyn Double>),
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers")
    }
}

impl From<Client> for Servers {
    fn from(client: Client) -> Servers {
        Servers(Source::Nodes(vec![client]))
    }
}

impl From<Vec<Client>> for Servers {
    fn from(clients: Vec<Client>) -> Servers {
        Servers(Source::Nodes(clients))
    }
}

#[cfg(feature = "sentinel")]
impl From<SentinelClient> for Servers {
    fn from(client: SentinelClient) -> Servers {
        Servers(Source::Sentinel(Arc::new(tokio::sync::Mutex::new(client))))
    }
}

impl Servers {
    /// Returns the servers of a cluster. The builder is asked for twice: `ClusterClient::builder(nodes)` and what their URLs do
    /// not say.
    ///
    /// # Errors
    /// [`Error::Redis`] if no client can be built so.
    #[cfg(feature = "cluster")]
    pub fn cluster(builder: impl Fn() -> ClusterClientBuilder) -> Result<Servers> {
        // One retry follows ASK or MOVED. More would send again what has got no answer.
        let (usual, once) = (builder().retries(1).build()?, builder().retries(0).build()?);
        Ok(Servers(Source::Cluster { usual: usual.into(), once: once.into() }))
    }

    pub(crate) fn checked(self) -> Result<Servers> {
        match &self.0 {
            Source::Nodes(nodes) if nodes.is_empty() => Err(Error::invalid("servers", "must have at least one client")),
            _ => Ok(self),
        }
    }
}

/// Answers in place of a server.
pub(crate) trait Double: Send + Sync {
    fn answer(&self, command: Cmd) -> BoxFuture<'static, Result<Value>>;
}

/// A connection that all tasks share: the redis crate sends what comes at once in one go.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
    Fake(Arc<dyn Double>),
}

impl Connection {
    #[cfg_attr(not(feature = "cluster"), allow(unused_variables))]
    async fn ask(mut self, key: &[u8], command: Cmd) -> Result<Value> {
        match &mut self {
            Connection::Single(connection) => Ok(command.query_async(connection).await?),
            // The crate would take the first argument for the key, which is a number in MACQUIRE.
            #[cfg(feature = "cluster")]
            Connection::Cluster(connection) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
                Ok(connection.route_command(command, RoutingInfo::SingleNode(route)).await?.extract_error()?)
            }
            Connection::Fake(server) => server.answer(command).await,
        }
    }
}

/// What the program has, as a template of connections.
pub(crate) struct Library {
    servers: Servers,
    reply_timeout: Duration,
    /// There was a connection already.
    has_worked: AtomicBool,
    is_closed: AtomicBool,
    /// Rises when the connections may all lead to a former primary.
    generation: AtomicU64,
    /// Who the Sentinels said the primary is.
    #[cfg(feature = "sentinel")]
    primary: Mutex<Option<String>>,
    #[cfg(feature = "sentinel")]
    watch: Arc<tokio::sync::Mutex<Watch>>,
}

impl Library {
    pub(crate) fn new(servers: Servers, reply_timeout: Duration) -> Arc<Library> {
        Arc::new(Library {
            servers,
            reply_timeout,
            has_worked: AtomicBool::default(),
            is_closed: AtomicBool::default(),
            generation: AtomicU64::default(),
            #[cfg(feature = "sentinel")]
            primary: Mutex::default(),
            #[cfg(feature = "sentinel")]
            watch: Arc::default(),
        })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self.servers.0 {
            #[cfg(feature = "cluster")]
            Source::Cluster { .. } => true,
            _ => false,
        }
    }

    /// Makes every link connect again, unless that has been done since that generation.
    fn reconnect_all(&self, generation: u64) {
        let _ = self.generation.compare_exchange(generation, generation + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// From now on there is no connection.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    async fn connect(&self, once: bool) -> Result<Connection> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        let has_worked = self.has_worked.load(Ordering::Relaxed);
        let connection = self.connect_now(once).await.map_err(|error| error.of_connection(has_worked))?;
        self.has_worked.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    #[cfg_attr(not(feature = "cluster"), allow(unused_variables))]
    async fn connect_now(&self, once: bool) -> Result<Connection> {
        // Each call has a timer of ours: the crate's own would leave the connection in place.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(self.reply_timeout)).set_response_timeout(None);
        match &self.servers.0 {
            Source::Nodes(nodes) => {
                let one = nodes.len() == 1;
                let nodes = nodes.iter().map(|node| connect(node, &config, one).boxed());
                Ok(Connection::Single(select_ok(nodes).await?.0))
            }
            // The crate lets all calls wait while it connects to a node that hangs.
            #[cfg(feature = "cluster")]
            Source::Cluster { usual, once: at_most_once } => {
                let config = ClusterConfig::new()
                    .set_connection_timeout(self.reply_timeout / 3)
                    .set_response_timeout(self.reply_timeout);
                let client = if once { at_most_once } else { usual };
                Ok(Connection::Cluster(client.get_async_connection_with_config(config).await?))
            }
            #[cfg(feature = "sentinel")]
            Source::Sentinel(client) => {
                let client = self.find_primary(client).await?;
                Ok(Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Source::Fake(server) => Ok(Connection::Fake(server.clone())),
        }
    }
}

/// Connects to a node, which must be the primary unless it is the only one.
async fn connect(node: &Client, config: &AsyncConnectionConfig, is_only: bool) -> Result<MultiplexedConnection> {
    let mut connection = node.get_multiplexed_async_connection_with_config(config).await?;
    if !is_only {
        let role: Vec<Value> = cmd("ROLE").query_async(&mut connection).await?;
        if role.first() != Some(&Value::BulkString(b"master".to_vec())) {
            return Err(Error::io(std::io::ErrorKind::NotConnected, "none of the servers is a primary"));
        }
    }
    Ok(connection)
}

/// How the Sentinels are asked.
#[cfg(feature = "sentinel")]
#[derive(Default)]
struct Watch {
    due: Duration,
    /// To one of them.
    connection: Option<MultiplexedConnection>,
}

#[cfg(feature = "sentinel")]
impl Watch {
    /// Returns the addresses of all primaries that the Sentinels know.
    async fn primaries(&mut self, client: &tokio::sync::Mutex<SentinelClient>) -> RedisResult<Vec<String>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let sentinel = client.lock().await.async_get_sentinel_client().await?;
                sentinel.get_multiplexed_async_connection().await?
            }
        };
        let rows: Vec<HashMap<String, String>> = cmd("SENTINEL").arg("MASTERS").query_async(&mut connection).await?;
        self.connection = Some(connection);
        let address = |row: &HashMap<String, String>| Some(format!("{}:{}", row.get("ip")?, row.get("port")?));
        Ok(rows.iter().filter_map(address).collect())
    }
}

#[cfg(feature = "sentinel")]
impl Library {
    /// Returns the client of the primary. Its parts have bounds of their own: a bound around them would never get past two Sentinels
    /// that are silent.
    async fn find_primary(&self, client: &tokio::sync::Mutex<SentinelClient>) -> Result<Client> {
        let generation = self.generation.load(Ordering::Relaxed);
        // Boxed: its queries are so deep that a program's own futures would be too deep for the compiler.
        let asked: BoxFuture<'_, RedisResult<Client>> =
            Box::pin(async { client.lock().await.async_get_client().await });
        let client = asked.await?;
        let address = client.get_connection_info().addr().to_string();
        let before = lock(&self.primary).replace(address.clone());
        if before.is_some_and(|before| before != address) {
            self.reconnect_all(generation);
        }
        Ok(client)
    }

    /// Asks the Sentinels once a second, alongside the program's calls, and leaves a primary that they no longer name: after a
    /// planned failover it grants locks for eleven seconds, without an error.
    fn look(self: &Arc<Self>) {
        let Source::Sentinel(client) = &self.servers.0 else { return };
        let Ok(mut watch) = self.watch.clone().try_lock_owned() else { return };
        let now = crate::settings::now();
        if now < watch.due {
            return;
        }
        watch.due = now + Duration::from_secs(1);
        let (library, client) = (self.clone(), client.clone());
        tokio::spawn(async move {
            let generation = library.generation.load(Ordering::Relaxed);
            let asked: BoxFuture<'_, RedisResult<Vec<String>>> = Box::pin(watch.primaries(&client));
            let Ok(named) = asked.await else { return }; // the next call asks again
            let former = lock(&library.primary).take_if(|ours| !named.contains(ours));
            if former.is_some() {
                library.reconnect_all(generation);
            }
        });
    }
}

type Opening = Shared<BoxFuture<'static, Result<Connection>>>;

/// A connection, and after a call without an answer another one: the redis crate would continue with the first.
pub(crate) struct Link {
    library: Arc<Library>,
    once: bool,
    current: Arc<Mutex<Current>>,
}

#[derive(Default)]
struct Current {
    opening: Option<Opening>,
    number: u64,
    generation: u64,
    /// The task that connects to a cluster again while the calls continue.
    next: Option<JoinHandle<()>>,
}

impl Link {
    /// Returns a link; `once`: by it a cluster's client sends a command once.
    pub(crate) fn new(library: &Arc<Library>, once: bool) -> Link {
        Link { library: library.clone(), once, current: Arc::default() }
    }

    /// Returns the reply of whoever serves the key. It takes as long as a reply may, or less: a caller's own time, which says nothing
    /// of the server.
    pub(crate) async fn call(&self, key: &[u8], command: Cmd, within: Duration) -> Result<Value> {
        let longest = self.library.reply_timeout;
        self.call_within(key, command, within.min(longest), within >= longest).await
    }

    /// Returns the reply of whoever serves the key; `replaces`: a connection that is silent for so long is replaced.
    pub(crate) async fn call_within(
        &self,
        key: &[u8],
        command: Cmd,
        within: Duration,
        replaces: bool,
    ) -> Result<Value> {
        #[cfg(feature = "sentinel")]
        self.library.look();
        let generation = self.library.generation.load(Ordering::Relaxed);
        let (number, opening) = self.opening();
        let asked = async {
            let connection = opening.await.inspect_err(|_| self.replace(number))?;
            connection.ask(key, command).await
        };
        match timeout(within, asked).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) if error.is_read_only() => {
                self.library.reconnect_all(generation);
                Err(error)
            }
            Ok(Err(error)) if !error.is_answer() => {
                self.replace(number);
                Err(error)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                if replaces {
                    self.replace(number);
                }
                Err(Error::silent())
            }
        }
    }

    /// Reports whether there is a connection, or else begins to make it.
    pub(crate) fn is_ready(&self) -> bool {
        let (number, opening) = self.opening();
        let made = opening.now_or_never();
        if let Some(Err(_)) = made {
            self.replace(number);
        }
        made.is_some_and(|made| made.is_ok())
    }

    fn opening(&self) -> (u64, Opening) {
        let mut current = lock(&self.current);
        let generation = self.library.generation.load(Ordering::Relaxed);
        if current.generation != generation && !self.library.is_cluster() {
            (current.generation, current.opening) = (generation, None);
            current.number += 1;
        }
        let opening = current.opening.get_or_insert_with(|| {
            let (library, once) = (self.library.clone(), self.once);
            let made = tokio::spawn(async move { library.connect(once).await });
            let ended = |_| Err(Error::io(std::io::ErrorKind::NotConnected, "the runtime that connected has ended"));
            made.map(move |made| made.unwrap_or_else(ended)).boxed().shared()
        });
        let opening = opening.clone();
        (current.number, opening)
    }

    /// Replaces the connection of that number. A cluster's stays until there is another: its nodes that answer continue.
    fn replace(&self, number: u64) {
        let mut current = lock(&self.current);
        if current.number != number {
            return;
        }
        // One in the making is bounded by its own parts, which may take longer together than a call.
        let Some(is_there) = current.opening.as_ref().and_then(Shared::peek).map(Result::is_ok) else { return };
        if !(self.library.is_cluster() && is_there) {
            current.number += 1;
            current.opening = None;
        } else if current.next.as_ref().is_none_or(JoinHandle::is_finished) {
            let (library, once, link) = (self.library.clone(), self.once, self.current.clone());
            current.next = Some(tokio::spawn(async move {
                if let Ok(made) = library.connect(once).await {
                    let mut current = lock(&link);
                    if current.number != number {
                        return;
                    }
                    current.number += 1;
                    current.opening = Some(futures_util::future::ready(Ok(made)).boxed().shared());
                }
            }));
        }
    }

    pub(crate) fn close(&self) {
        let mut current = lock(&self.current);
        // The task that connects again compares the number, and drops its connection.
        current.number += 1;
        (current.opening, current.next) = (None, None);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % 16384
}
