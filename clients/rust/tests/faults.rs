//! What does not answer, and who may not: nobody waits for it longer than he has said, or believes longer than is so.

#[allow(dead_code)]
mod stage;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlock_client::{Error, Hold, Locks, Settings};
use redis::{cmd, Client};
use stage::{int, until, Cluster, Server, Single, SETTINGS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LEASE: Duration = Duration::from_millis(1500);
/// So much after its end a loss is told where a busy machine stops us; it is 200 ms where it does not.
const LATE: Duration = Duration::from_secs(1);

/// A node that hangs is for its test alone.
static ALONE: Mutex<()> = Mutex::new(());

fn run(test: impl Future<Output = ()>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tokio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

/// A way to a server. While it is frozen nothing comes through, and nobody is told.
struct Path {
    address: String,
    frozen: watch::Sender<bool>,
}

impl Path {
    async fn to(server: String) -> Path {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (frozen, seen) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&server).await.expect("the server is there");
                let ((a, b), (c, d)) = (near.into_split(), far.into_split());
                for (mut from, mut to) in [(a, d), (c, b)] {
                    let mut seen = seen.clone();
                    tokio::spawn(async move {
                        let mut bytes = vec![0; 1 << 16];
                        loop {
                            let n = from.read(&mut bytes).await.unwrap_or(0);
                            let open = seen.wait_for(|frozen| !frozen).await.is_ok();
                            if !open || n == 0 || to.write_all(&bytes[..n]).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Path { address, frozen }
    }

    fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

fn locks_at(addresses: &[&str]) -> Locks {
    let clients = addresses.iter().map(|one| Client::open(format!("redis://{one}/")).expect("an address"));
    Locks::with(clients, Settings { lease: LEASE, ..SETTINGS })
}

/// It ends so soon. A timer of ours is as late as theirs, however busy the machine.
async fn within<T>(time: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, work).await.unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}

async fn is_kept(server: &Server, hold: &Hold, time: Duration) {
    until("it is kept", || async {
        let info = server.info().await;
        let holder = info.holders.iter().find(|one| int(one, "token") == hold.token()).expect("it is held");
        u128::from(int(holder, "held-ms")) > time.as_millis()
    })
    .await;
    assert!(!hold.is_lost());
}

#[test]
fn a_server_that_hangs_keeps_no_caller() {
    for before in [true, false] {
        run(async {
            let server = Server::new(Single);
            let path = Path::to(server.addresses()).await;
            let locks = locks_at(&[&path.address]);
            if !before {
                locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
            }
            path.freeze();
            let tried = within(Duration::from_secs(5), "a try", locks.on(&server.key).try_lock()).await;
            assert!(matches!(tried, Err(Error::Redis(error)) if error.is_io_error()));
            for i in 0..4 {
                let asked = locks.on(&server.key).timeout(Duration::from_secs(2));
                let had = within(Duration::from_secs(3), &format!("two seconds {i}"), asked.lock()).await;
                assert!(matches!(had, Err(Error::TimedOut)));
                tokio::time::sleep(Duration::from_millis(700)).await; // another phase of reply and connection
            }
        });
    }
}

#[test]
fn a_loss_is_told_by_the_clock() {
    run(async {
        let (server, healthy) = (Server::new(Single), Server::new(Single));
        let path = Path::to(server.addresses()).await;
        let locks = locks_at(&[&path.address]);
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let other = healthy.locks().on(&healthy.key).lock().await.expect("the lock");
        is_kept(&server, &hold, LEASE).await;
        path.freeze();
        within(LEASE + LATE, "the loss is told", hold.lost()).await;
        is_kept(&healthy, &other, 5 * LEASE).await;
        other.release().await.expect("it was held");
    });
}

#[test]
fn one_hung_node_of_three() {
    run(async {
        let mut places = HashMap::new();
        while places.len() < 3 {
            let server = Server::new(Cluster);
            let mut node = server.node(&server.key).await;
            let id: String = cmd("CLUSTER").arg("MYID").query_async(&mut node).await.expect("an id");
            places.insert(id, server);
        }
        let servers: Vec<Server> = places.into_values().collect();
        let addresses = servers[0].addresses();
        let locks = locks_at(&addresses.split(',').take(2).collect::<Vec<_>>());
        let mut holds = Vec::new();
        for server in &servers {
            holds.push(locks.on(&server.key).lock().await.expect("the lock"));
        }
        let mut hung = servers[0].node(&servers[0].key).await;
        let pause = cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").exec_async(&mut hung).await;
        pause.expect("it is paused");
        let told = tokio::time::timeout(LEASE + LATE, holds[0].lost()).await;
        let kept = async {
            for (server, hold) in servers.iter().zip(&holds).skip(1) {
                is_kept(server, hold, 10 * LEASE).await;
            }
        };
        let kept = tokio::time::timeout(stage::PATIENCE, kept).await;
        cmd("CLIENT").arg("UNPAUSE").exec_async(&mut hung).await.expect("it goes on");
        assert!(told.is_ok() && kept.is_ok(), "told: {told:?}, kept: {kept:?}");
        drop(holds);
        for server in &servers {
            server.await_gone().await;
        }
    });
}

#[test]
fn refused_at_once() {
    run(async {
        let server = Server::new(Single);
        let user = format!("user{}", &server.key[1..9]);
        for (words, rules, password) in [
            ("WRONGPASS", "~* &* +@all", "wrong"),
            ("NOPERM", "~* &* +@all -dlock.fairacquire -dlock.acquire", "right"),
            ("NOPERM", "~* resetchannels +@all", "right"),
            ("NOPERM", "~* &* +@all -dlock.renew", "right"),
        ] {
            server.ask::<String>(&format!("ACL SETUSER {user} reset on >right {rules}")).await;
            let locks = locks_at(&[&format!("{user}:{password}@{}", server.addresses())]);
            for time in [None, Some(Duration::from_secs(20))] {
                let mut request = locks.on(&server.key);
                if let Some(time) = time {
                    request = request.timeout(time);
                }
                // A tenth of a second where nothing else is done.
                let refused = within(Duration::from_secs(5), rules, request.lock()).await;
                let Err(Error::Redis(error)) = refused else { panic!("{rules}: not refused, or not in its words") };
                assert!(error.to_string().starts_with(words), "{rules}: {error}");
                server.await_gone().await; // what was granted is given back by a task
                let tried = within(Duration::from_secs(5), rules, locks.on(&server.key).try_lock()).await;
                let Err(Error::Redis(error)) = tried else { panic!("{rules}: not refused, or not in its words") };
                assert!(error.to_string().starts_with(words), "{rules}: {error}");
            }
            server.await_gone().await;
        }
        server.ask::<u64>(&format!("ACL DELUSER {user}")).await;
    });
}
