//! The servers of a test, and what they show.

#![allow(dead_code)] // each test uses a part

use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use dlock_redis::{Locks, Servers, Settings};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::{cmd, AsyncConnectionConfig, Client, FromRedisValue, Value};
use tokio::task::JoinSet;

/// A test that moves servers about is alone in its place, and a thousand waits are alone everywhere; the others run side by side.
static STAGE: [RwLock<()>; 3] = [const { RwLock::new(()) }; 3];

/// A test in each of these places.
#[allow(unused_macros)]
macro_rules! tests {
    ($($name:ident in $($place:ident),+;)+) => {$(
        #[test]
        fn $name() {
            $(stage::run($place, stringify!($name), scenes::$name);)+
        }
    )+};
}

pub fn run<F: Future<Output = ()>>(place: Place, name: &str, test: impl FnOnce(Server) -> F) {
    println!("{place:?}");
    let (moves, thousand) = (name.contains("_over_a"), name.contains("a_thousand"));
    let alone = |one: &'static RwLock<()>| one.write().unwrap_or_else(PoisonError::into_inner);
    let here = &STAGE[place as usize];
    let _everywhere: Vec<_> = STAGE.iter().filter(|_| thousand).map(alone).collect();
    let _alone = moves.then(|| alone(here));
    let _shared = (!moves && !thousand).then(|| here.read().unwrap_or_else(PoisonError::into_inner));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(test(Server::new(place)));
}

pub const PATIENCE: Duration = Duration::from_secs(60);
/// No stall of this process takes two thirds of it: the client reports a lease that ends.
pub const LEASE: Duration = Duration::from_secs(3);
/// No fault takes so long, however busy the machine.
pub const LONG: Duration = Duration::from_secs(15);
pub fn settings() -> Settings {
    Settings::new().lease(LEASE).hang_timeout(Duration::from_secs(30))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Single,
    Cluster,
    Pair,
}

pub use Place::{Cluster, Pair, Single};

/// What the server shows of a lock of this test alone.
pub struct Server {
    pub place: Place,
    pub key: String,
}

/// A holder, or a place in the queue.
pub type Entry = HashMap<String, Value>;

#[derive(Default)]
pub struct Info {
    pub holders: Vec<Entry>,
    pub queue: Vec<Entry>,
}

pub fn text(entry: &Entry, name: &str) -> String {
    String::from_redis_value(entry[name].clone()).expect("it is a text")
}

pub fn int(entry: &Entry, name: &str) -> u64 {
    entry.get(name).map_or(0, |value| u64::from_redis_value(value.clone()).expect("it is a number"))
}

/// A connection that gives a busy machine its time: the library's own gives it half a second.
pub async fn connect(client: &Client) -> redis::RedisResult<MultiplexedConnection> {
    let config =
        AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE)).set_connection_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The actor that the program has named for this owner.
pub fn actor_of(owner: &str) -> &str {
    let owner = owner.splitn(4, '/').nth(3).expect("host/pid/session/actor#number");
    owner.rsplit_once('#').expect("the client's own number").0
}

/// The servers at these addresses, as a program would name them: `name` says whether they are a cluster.
pub fn servers(name: &str, addresses: &str) -> Servers {
    let urls: Vec<String> = addresses.split(',').map(|address| format!("redis://{address}/")).collect();
    if name == "cluster" {
        // Two nodes are named, and the others are found.
        return Servers::cluster(|| ClusterClient::builder(urls.iter().take(2).cloned())).expect("addresses");
    }
    let clients: Vec<Client> = urls.into_iter().map(|url| Client::open(url).expect("an address")).collect();
    clients.into()
}

impl Server {
    pub fn new(place: Place) -> Server {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let time = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Server { place, key: format!("{{{:x}{count:02x}}}lock", time.as_nanos()) }
    }

    pub fn addresses(&self) -> String {
        let name = match self.place {
            Single => "DLOCK_SINGLE",
            Cluster => "DLOCK_CLUSTER",
            Pair => "DLOCK_PAIR",
        };
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `make clients`"))
    }

    pub fn clients(&self) -> Vec<Client> {
        self.addresses()
            .split(',')
            .map(|address| Client::open(format!("redis://{address}/")).expect("an address"))
            .collect()
    }

    pub fn servers(&self) -> Servers {
        servers(if self.place == Cluster { "cluster" } else { "" }, &self.addresses())
    }

    pub fn locks(&self) -> Locks {
        Locks::with_settings(self.servers(), settings()).expect("good settings")
    }

    pub fn locks_for(&self, lease: Duration) -> Locks {
        Locks::with_settings(self.servers(), settings().lease(lease)).expect("good settings")
    }

    /// Returns the client of the node that may write this key, and a connection to it. Asks all nodes at once, because one of
    /// them may be frozen.
    async fn primary(&self, key: &str) -> (Client, MultiplexedConnection) {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut asked = JoinSet::new();
            for client in self.clients() {
                let key = key.to_owned();
                asked.spawn(async move {
                    let mut node = connect(&client).await.ok()?;
                    let role: Vec<Value> = cmd("ROLE").query_async(&mut node).await.ok()?;
                    let _: u64 = cmd("EXISTS").arg(key).query_async(&mut node).await.ok()?;
                    (role[0] == Value::BulkString(b"master".to_vec())).then_some((client, node))
                });
            }
            while let Some(answered) = asked.join_next().await {
                if let Some(primary) = answered.expect("no panic") {
                    return primary;
                }
            }
            assert!(Instant::now() < end, "nobody serves {key}");
        }
    }

    pub async fn node(&self, key: &str) -> MultiplexedConnection {
        self.primary(key).await.1
    }

    pub async fn ask<T: FromRedisValue>(&self, words: &str) -> T {
        self.ask_at(&self.key, words).await
    }

    /// The reply to a command with `KEY` in the place of the key.
    pub async fn ask_at<T: FromRedisValue>(&self, key: &str, words: &str) -> T {
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(if word == "KEY" { key } else { word });
        }
        command.query_async(&mut self.node(key).await).await.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    pub async fn info(&self) -> Info {
        self.info_at(&self.key).await
    }

    pub async fn info_at(&self, key: &str) -> Info {
        let reply: Option<HashMap<String, Value>> = self.ask_at(key, "DLOCK.INFO KEY COUNT 5000").await;
        let Some(reply) = reply else { return Info::default() };
        let entries = |name: &str| Vec::<Entry>::from_redis_value(reply[name].clone()).expect("an array of maps");
        Info { holders: entries("holders"), queue: entries("queue") }
    }

    pub async fn owners(&self, key: &str) -> Vec<String> {
        self.info_at(key).await.holders.iter().map(|holder| text(holder, "owner")).collect()
    }

    pub async fn queue(&self) -> Vec<String> {
        self.info().await.queue.iter().map(|place| text(place, "owner")).collect()
    }

    pub async fn await_queued(&self, count: usize) {
        self.await_queued_at(&self.key, count).await;
    }

    /// Waits for that many in the queue, none of them absent.
    pub async fn await_queued_at(&self, key: &str, count: usize) {
        until("so many are queued", || async {
            let queue = self.info_at(key).await.queue;
            queue.len() == count && queue.iter().all(|place| text(place, "kind") != "absent")
        })
        .await;
    }

    /// Nobody holds it and nobody waits.
    pub async fn await_gone(&self) {
        until("it is gone", || async { self.ask::<Value>("DLOCK.INFO KEY").await == Value::Nil }).await;
    }

    /// Another owner takes it, for longer than any test lasts.
    pub async fn hold(&self, options: &str) {
        self.hold_at(&self.key, options).await;
    }

    pub async fn hold_at(&self, key: &str, options: &str) {
        let words = format!("DLOCK.ACQUIRE KEY other 600000{options}");
        let granted: Option<Vec<u64>> = self.ask_at(key, &words).await;
        granted.expect("the lock is taken");
    }

    /// Who serves this key.
    pub async fn address(&self, key: &str) -> String {
        self.primary(key).await.0.get_connection_info().addr().to_string()
    }

    /// The other one of the pair.
    pub async fn replica(&self) -> String {
        let primary = self.address(&self.key).await;
        let addresses = self.addresses();
        addresses.split(',').find(|address| *address != primary).expect("a replica").to_owned()
    }

    /// A key that none of these serves, and who serves it.
    pub async fn of_another_node(&self, taken: &[String]) -> (String, String) {
        for i in 0.. {
            let key = format!("{{{i}{}}}lock", self.key.trim_matches(['{', '}'].as_slice()).replace('}', ""));
            let address = self.address(&key).await;
            if !taken.contains(&address) {
                return (key, address);
            }
        }
        unreachable!("there are three of them")
    }

    /// Releases it for that owner, and returns, in the same step, who holds it then.
    pub async fn hand_over(&self, owner: &str) -> Option<String> {
        self.hand_over_at(&self.key, owner).await
    }

    pub async fn hand_over_at(&self, key: &str, owner: &str) -> Option<String> {
        let mut step = redis::pipe();
        step.atomic().cmd("DLOCK.RELEASE").arg(key).arg(owner).arg("HOLDS").arg(0).ignore();
        step.cmd("DLOCK.HELD").arg(key);
        let (held,): (Option<Vec<Value>>,) = step.query_async(&mut self.node(key).await).await.expect("it was held");
        held.map(|held| String::from_redis_value(held[3].clone()).expect("an owner"))
    }

    /// The next unlock message of this lock, and a future that is ready when it is listened to.
    pub async fn messages(&self) -> tokio::sync::mpsc::UnboundedReceiver<String> {
        let (pushes, mut pushed) = tokio::sync::mpsc::unbounded_channel();
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let mut info = self.primary(&self.key).await.0.get_connection_info().clone();
        let resp3 = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        info = info.set_redis_settings(resp3);
        let config = AsyncConnectionConfig::new().set_push_sender(pushes);
        let client = Client::open(info).expect("an address");
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.expect("a node");
        let verb = if self.place == Cluster { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let channel = format!("__dlock@0__:{}", self.key);
        cmd(verb).arg(channel).exec_async(&mut connection).await.expect("it may subscribe");
        tokio::spawn(async move {
            let _connection = connection;
            while let Some(push) = pushed.recv().await {
                if matches!(push.kind, redis::PushKind::Message | redis::PushKind::SMessage) {
                    let text = String::from_redis_value(push.data[1].clone()).expect("a text");
                    if sender.send(text).is_err() {
                        return;
                    }
                }
            }
        });
        receiver
    }
}

/// Waits until the condition is true.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < end, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Has something done to the servers.
pub async fn control(line: String) -> String {
    let answer = tokio::task::spawn_blocking(move || {
        let address = std::env::var("DLOCK_CONTROL").expect("DLOCK_CONTROL is set");
        let mut stream = TcpStream::connect(address).expect("the control answers");
        writeln!(stream, "{line}").expect("it reads");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("it answers");
        answer
    });
    let answer = answer.await.expect("no panic");
    assert!(answer.starts_with("ok"), "{answer}");
    answer.trim_start_matches("ok").trim().to_owned()
}
