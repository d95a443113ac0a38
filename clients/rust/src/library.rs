// SPDX-License-Identifier: MIT
//! Connections of the redis crate, made from what the program has, with our bounds: TLS, users, Unix sockets, Sentinels and
//! clusters are that crate's matter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{select_ok, BoxFuture, FutureExt, Shared};
use redis::aio::MultiplexedConnection;
#[cfg(feature = "cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConfig};
#[cfg(feature = "cluster")]
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
#[cfg(feature = "sentinel")]
use redis::RedisResult;
use redis::{cmd, AsyncConnectionConfig, Client, Cmd, Value};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::fakes::FakeServer;

/// Where the locks are. From a [`redis::Client`] (its URL says TLS, user, password, database), from several of them (a primary
/// and its replicas), from a `redis::cluster::ClusterClient` or a `redis::sentinel::SentinelClient`.
#[derive(Clone)]
pub struct Servers(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Nodes(Vec<Client>),
    #[cfg(feature = "cluster")]
    Cluster {
        usual: Box<ClusterClient>,
        once: Box<ClusterClient>,
    },
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<tokio::sync::Mutex<redis::sentinel::SentinelClient>>),
    Fake(FakeServer),
}

impl From<Client> for Servers {
    fn from(client: Client) -> Servers {
        Servers(Kind::Nodes(vec![client]))
    }
}

impl From<Vec<Client>> for Servers {
    fn from(clients: Vec<Client>) -> Servers {
        Servers(Kind::Nodes(clients))
    }
}

/// The client sends a command again as often as it is built to, guarded ones too: `retries(1)` follows a slot that moves. By
/// [`Servers::cluster`] guarded commands are sent once.
#[cfg(feature = "cluster")]
impl From<ClusterClient> for Servers {
    fn from(client: ClusterClient) -> Servers {
        Servers(Kind::Cluster { usual: client.clone().into(), once: client.into() })
    }
}

#[cfg(feature = "sentinel")]
impl From<redis::sentinel::SentinelClient> for Servers {
    fn from(client: redis::sentinel::SentinelClient) -> Servers {
        Servers(Kind::Sentinel(Arc::new(tokio::sync::Mutex::new(client))))
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
        Ok(Servers(Kind::Cluster { usual: usual.into(), once: once.into() }))
    }

    pub(crate) fn checked(self) -> Result<Servers> {
        match &self.0 {
            Kind::Nodes(nodes) if nodes.is_empty() => Err(Error::invalid("servers", "must have at least one client")),
            _ => Ok(self),
        }
    }
}

/// A connection that all tasks share: the redis crate sends what comes at once in one go.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
    Fake(FakeServer),
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
            Connection::Fake(server) => server.answer(&command).await,
        }
    }
}

/// What the program has, as a template of connections.
pub(crate) struct Library {
    servers: Servers,
    within: Duration,
    /// There was a connection already.
    has_worked: AtomicBool,
    /// Rises when the connections may all lead to a former primary.
    generation: AtomicU64,
    #[cfg(feature = "sentinel")]
    primary: Mutex<Primary>,
}

impl Library {
    pub(crate) fn new(servers: Servers, within: Duration) -> Arc<Library> {
        Arc::new(Library {
            servers,
            within,
            has_worked: AtomicBool::default(),
            generation: AtomicU64::default(),
            #[cfg(feature = "sentinel")]
            primary: Mutex::default(),
        })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self.servers.0 {
            #[cfg(feature = "cluster")]
            Kind::Cluster { .. } => true,
            _ => false,
        }
    }

    /// Makes every link connect again.
    fn leave(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    async fn connect(&self, once: bool) -> Result<Connection> {
        let has_worked = self.has_worked.load(Ordering::Relaxed);
        let connection = self.connect_now(once).await.map_err(|error| error.of_connection(has_worked))?;
        self.has_worked.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    #[cfg_attr(not(feature = "cluster"), allow(unused_variables))]
    async fn connect_now(&self, once: bool) -> Result<Connection> {
        // Each call has a timer of ours: the crate's own would leave the connection in place.
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.within)).set_response_timeout(None);
        match &self.servers.0 {
            Kind::Nodes(nodes) => {
                let one = nodes.len() == 1;
                let nodes = nodes.iter().map(|node| connect(node, &config, one).boxed());
                Ok(Connection::Single(select_ok(nodes).await?.0))
            }
            // The crate lets all calls wait while it connects to a node that hangs.
            #[cfg(feature = "cluster")]
            Kind::Cluster { usual, once: at_most_once } => {
                let config =
                    ClusterConfig::new().set_connection_timeout(self.within / 3).set_response_timeout(self.within);
                let client = if once { at_most_once } else { usual };
                Ok(Connection::Cluster(client.get_async_connection_with_config(config).await?))
            }
            #[cfg(feature = "sentinel")]
            Kind::Sentinel(_) => {
                let client = self.find_primary().await?;
                Ok(Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Kind::Fake(server) => Ok(Connection::Fake(server.clone())),
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

/// Who the Sentinels say the primary is, and when they were asked.
#[cfg(feature = "sentinel")]
#[derive(Default)]
struct Primary {
    address: Option<String>,
    asked: Duration,
}

#[cfg(feature = "sentinel")]
impl Library {
    /// Asks the Sentinels. After a planned failover the former primary grants locks for eleven seconds more, without an error.
    async fn find_primary(&self) -> Result<Client> {
        let Kind::Sentinel(sentinel) = &self.servers.0 else {
            return Err(Error::invalid("servers", "must have Sentinels"));
        };
        // Boxed: its queries are so deep that a program's own futures would be too deep for the compiler.
        let asked: BoxFuture<'_, RedisResult<Client>> =
            Box::pin(async { sentinel.lock().await.async_get_client().await });
        let client = timeout(self.within, asked).await.map_err(|_| Error::silent())??;
        let address = client.get_connection_info().addr().to_string();
        let before = self.primary().address.replace(address.clone());
        if before.is_some_and(|before| before != address) {
            self.leave();
        }
        Ok(client)
    }

    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks them once a second, as long as the program calls.
    async fn look(&self) {
        let now = crate::settings::now();
        let is_due = {
            let mut primary = self.primary();
            let is_due = primary.address.is_some() && primary.asked + Duration::from_secs(1) <= now;
            if is_due {
                primary.asked = now;
            }
            is_due
        };
        if is_due {
            let _ = timeout(self.within / 6, self.find_primary()).await; // the next look asks again
        }
    }
}

type Opening = Shared<BoxFuture<'static, Result<Connection>>>;

/// A connection, and after a call without an answer another one: the redis crate would go on with the first.
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
    /// The task that connects a cluster anew while the calls go on.
    next: Option<JoinHandle<()>>,
}

impl Link {
    /// Returns a link; `once`: by it a cluster's client sends a command once.
    pub(crate) fn new(library: &Arc<Library>, once: bool) -> Link {
        Link { library: library.clone(), once, current: Arc::default() }
    }

    /// Returns the reply of whoever serves the key. It takes as long as a reply may, or less.
    pub(crate) async fn call(&self, key: &[u8], command: Cmd, within: Duration) -> Result<Value> {
        #[cfg(feature = "sentinel")]
        self.library.look().await;
        let (number, opening) = self.opening();
        let asked = async {
            let connection = opening.await.inspect_err(|_| self.replace(number))?;
            connection.ask(key, command).await
        };
        match timeout(within.min(self.library.within), asked).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) if error.is_read_only() => {
                self.library.leave();
                Err(error)
            }
            Ok(Err(error)) if !error.is_said() => {
                self.replace(number);
                Err(error)
            }
            Ok(Err(error)) => Err(error),
            // A caller's own time says nothing of the server.
            Err(_) if within < self.library.within => Err(Error::silent()),
            Err(_) => {
                self.replace(number);
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
        let is_there = current.opening.as_ref().and_then(Shared::peek).is_some_and(Result::is_ok);
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
        // The task that connects anew compares the number, and drops its connection.
        current.number += 1;
        (current.opening, current.next) = (None, None);
    }
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
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
