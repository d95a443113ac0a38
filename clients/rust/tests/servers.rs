//! Servers of a test's own: by TLS, and with Sentinels. They run the program and the module of the stage's server.

mod stage;

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlock_redis::{release_all, Locks, Settings};
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{cmd, Client, FromRedisValue, TlsCertificates, Value};
use stage::{connect, control, int, until, Entry, Server, Single, LONG, PATIENCE};

/// A server; killed at the end.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child can be awaited");
    }
}

async fn free_port() -> u16 {
    control("port".to_owned()).await.parse().expect("a port")
}

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("dlock-rust-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

async fn start(words: &str) -> Program {
    let info: String = Server::new(Single).ask("INFO server").await;
    let id = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("its process");
    let path = std::fs::read_link(format!("/proc/{id}/exe")).expect("its program");
    let mut command = Command::new(path);
    std::os::unix::process::CommandExt::arg0(&mut command, "redis-server"); // by another name it may be another one
    let command = command.args(words.split(' ')).stdout(Stdio::null()).current_dir(std::env::temp_dir());
    Program(command.spawn().expect("it starts"))
}

async fn module() -> String {
    let modules: Vec<Value> = Server::new(Single).ask("MODULE LIST").await;
    let text = format!("{modules:?}");
    let path = text.split('"').find(|word| word.contains(".so")).expect("its module");
    path.trim_matches(['\'', '\\']).to_owned()
}

async fn await_up(client: &Client) {
    until("the server answers", || async {
        match client.get_multiplexed_async_connection().await {
            Ok(mut connection) => cmd("PING").exec_async(&mut connection).await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
}

async fn ask<T: FromRedisValue>(client: &Client, words: &str) -> T {
    try_ask(client, words).await.unwrap_or_else(|error| panic!("{words}: {error}"))
}

async fn try_ask<T: FromRedisValue>(client: &Client, words: &str) -> redis::RedisResult<T> {
    let mut connection = connect(client).await?;
    let mut command = redis::Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}

/// The holders, or the queue; nobody while the server does not say. (A Sentinel ends all connections of whom it promotes.)
async fn info(client: &Client, key: &str, name: &str) -> Vec<Entry> {
    let info: Option<std::collections::HashMap<String, Value>> =
        try_ask(client, &format!("DLOCK.INFO {key} COUNT 9")).await.unwrap_or_default();
    let entries = info.and_then(|info| info.get(name).cloned());
    entries.map(|entries| Vec::from_redis_value(entries).expect("an array of maps")).unwrap_or_default()
}

/// With a user and a database: a hold, a wait that is granted; and what is not trusted is an error at once.
#[tokio::test]
async fn tls_with_a_user_and_a_database() {
    rustls::crypto::ring::default_provider().install_default().expect("the first one");
    let (directory, port) = (directory("tls"), free_port().await);
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    let (certificate, key) = (certificate.display(), key.display());
    let words = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost -addext \
         subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout {key} -out {certificate}"
    );
    let made = Command::new("openssl").args(words.split(' ')).stderr(Stdio::null()).status();
    assert!(made.is_ok_and(|status| status.success()), "openssl makes a certificate");
    let _server = start(&format!(
        "--port 0 --tls-port {port} --bind 127.0.0.1 --tls-cert-file {certificate} --tls-key-file {key} --tls-ca-cert-file \
         {certificate} --tls-auth-clients no --user locker on >word ~* &* +@all --loadmodule {}",
        module().await
    ))
    .await;
    let url = format!("rediss://locker:word@localhost:{port}/3");
    let root_cert = std::fs::read(certificate.to_string()).expect("it is there");
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
    let client = Client::build_with_tls(&*url, certificates).expect("a good URL");
    await_up(&client).await;
    let (locks, lock) = (Locks::new(client.clone()).expect("good settings"), Server::new(Single).key);
    let hold = locks.on(&lock).lock().await.expect("the lock");
    assert_eq!(ask::<u64>(&client, &format!("EXISTS {lock}")).await, 1, "it is in database 3");
    let next = tokio::spawn(locks.on(&lock).wait(PATIENCE).lock());
    until("another waits", || async { info(&client, &lock, "queue").await.len() == 1 }).await;
    hold.guard(cmd("SET").arg(format!("{lock}:x")).arg(1)).await.expect("it is held");
    hold.release().await.expect("it was held");
    next.await.expect("no panic").expect("the lock").release().await.expect("it was held");

    let stranger =
        Locks::with_settings(Client::open(url).expect("a good URL"), Settings::new().reply_timeout(PATIENCE))
            .expect("good settings");
    let refused = tokio::time::timeout(PATIENCE / 2, stranger.on(&lock).lock()).await.expect("it ends at once");
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("certificate")), "{refused:?}");
    // Nor does time make a server speak TLS that does not.
    let plain = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("rediss://localhost:{}/", plain.local_addr().expect("it is bound").port());
    std::thread::spawn(move || {
        for mut one in plain.incoming().flatten() {
            let _ = one.write_all(b"-ERR no TLS here\r\n");
        }
    });
    let locks = Locks::with_settings(Client::open(url).expect("a good URL"), Settings::new().reply_timeout(PATIENCE));
    let locks = locks.expect("good settings");
    let refused = tokio::time::timeout(PATIENCE / 2, locks.on(&lock).lock()).await.expect("it ends at once");
    assert!(refused.is_err(), "{refused:?}");
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// A primary, its replica, and three Sentinels.
struct Promoting {
    directory: PathBuf,
    primary: Program,
    _others: Vec<Program>,
    _silent: TcpListener,
    one: u16,
    two: u16,
    client: SentinelClient,
    sentinel: u16,
}

fn plain(port: u16) -> Client {
    Client::open(format!("redis://127.0.0.1:{port}/")).expect("an address")
}

async fn promoting(name: &str, detection: u64) -> Promoting {
    let (directory, module) = (directory(name), module().await);
    let (one, two) = (free_port().await, free_port().await);
    let words = |port| format!("--port {port} --bind 127.0.0.1 --repl-diskless-sync-delay 0 --loadmodule {module}");
    let primary = start(&words(one)).await;
    await_up(&plain(one)).await;
    let replica = start(&(words(two) + &format!(" --replicaof 127.0.0.1 {one}"))).await;
    await_up(&plain(two)).await;
    until("the replica is there", || async {
        ask::<String>(&plain(two), "INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let (mut sentinels, mut programs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let port = free_port().await;
        let file = directory.join(format!("{port}.conf"));
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor locks 127.0.0.1 {one} 2\n\
             sentinel down-after-milliseconds locks {detection}\nsentinel failover-timeout locks 5000\n"
        );
        std::fs::write(&file, settings).expect("it can be written");
        programs.push(start(&format!("{} --sentinel", file.display())).await);
        await_up(&plain(port)).await;
        sentinels.push(port);
    }
    for port in &sentinels {
        until("they know each other and the replica", || async {
            let known: std::collections::HashMap<String, String> = ask(&plain(*port), "SENTINEL MASTER locks").await;
            known["num-slaves"] == "1" && known["num-other-sentinels"] == "2"
        })
        .await;
    }
    // The first one that the program names is silent: its host hangs.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let ports = [silent.local_addr().expect("it is bound").port()].into_iter().chain(sentinels.iter().copied());
    let urls: Vec<String> = ports.map(|port| format!("redis://127.0.0.1:{port}/")).collect();
    let client = SentinelClient::build(urls, "locks", None, SentinelServerType::Master).expect("good addresses");
    programs.push(replica);
    Promoting { directory, primary, _others: programs, _silent: silent, one, two, client, sentinel: sentinels[0] }
}

/// The primary is killed: the Sentinels promote the replica, where the hold continues under its token, and the wait is granted.
#[tokio::test]
async fn sentinels_promote_a_replica() {
    let Promoting { directory, primary, _others, _silent, one, two, client, .. } = promoting("sentinel", 1000).await;
    let settings = Settings::new().lease(2 * LONG).hang_timeout(4 * LONG);
    let (locks, lock) = (Locks::with_settings(client, settings).expect("good settings"), Server::new(Single).key);
    let hold = locks.on(&lock).lock().await.expect("the lock");
    let next = tokio::spawn(locks.on(&lock).wait(2 * PATIENCE).lock());
    for port in [one, two] {
        until("it is held, and another waits", || async {
            info(&plain(port), &lock, "holders").await.len() == 1 && info(&plain(port), &lock, "queue").await.len() == 1
        })
        .await;
    }
    drop(primary);
    until("the hold is kept by the other server", || async {
        let holders = info(&plain(two), &lock, "holders").await;
        holders.first().is_some_and(|one| int(one, "token") == hold.token() && int(one, "alive") == 1)
    })
    .await;
    assert!(!hold.is_lost());
    let token = hold.token();
    hold.release().await.expect("it was held");
    let next = next.await.expect("no panic").expect("the lock");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// The primary stalls: its connections hang, and so does each connect to it. No hold is lost until the replica is promoted.
#[tokio::test]
async fn a_stalled_primary_loses_no_hold() {
    let Promoting { directory, primary, _others, _silent, one, two, client, .. } = promoting("stalled", 3000).await;
    let locks = Locks::with_settings(client, Settings::new().lease(Duration::from_secs(12))).expect("good settings");
    let key = Server::new(Single).key;
    let mut holds = Vec::new();
    for i in 0..20 {
        holds.push(locks.on(format!("{key}:{i}")).lock().await.expect("the lock"));
    }
    until("the replica knows them", || async { info(&plain(two), &format!("{key}:19"), "holders").await.len() == 1 })
        .await;
    let stopped = Command::new("kill").args(["-STOP", &primary.0.id().to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "{one} stands still");
    until("all are kept by the other server", || async {
        for hold in &holds {
            let key = String::from_utf8_lossy(hold.key()).into_owned();
            let holders = info(&plain(two), &key, "holders").await;
            let kept = holders.first().is_some_and(|one| int(one, "alive") == 1);
            if !kept && !hold.is_lost() {
                return false;
            }
        }
        true
    })
    .await;
    let lost = holds.iter().filter(|hold| hold.is_lost()).count();
    assert_eq!(lost, 0, "so many are lost");
    release_all(holds).await.expect("they were held");
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// How many connections have come.
async fn connections(port: u16) -> u64 {
    let info: String = ask(&plain(port), "INFO stats").await;
    let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// A planned failover: the former primary grants locks for eleven seconds more, to whoever does not ask the Sentinels.
#[tokio::test]
async fn a_planned_failover_is_followed_at_once() {
    let Promoting { directory, primary, _others, _silent, one, two, client, sentinel } =
        promoting("planned", 1000).await;
    let (locks, key) = (Locks::new(client).expect("good settings"), Server::new(Single).key);
    locks.on(&key).lock().await.expect("the lock").release().await.expect("it was held");
    let before = connections(one).await;
    let until_asked_often = std::time::Instant::now() + Duration::from_secs(4);
    while std::time::Instant::now() < until_asked_often {
        let _ = locks.on(&key).try_lock().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Theirs are of the Sentinels, and one is this test's.
    assert!(connections(one).await < before + 4, "whoever asks the Sentinels does not connect to the primary");
    let _: Value = ask(&plain(sentinel), "SENTINEL FAILOVER locks").await;
    until("another one is named", || async {
        let named: Vec<String> = ask(&plain(sentinel), "SENTINEL GET-MASTER-ADDR-BY-NAME locks").await;
        named[1] == two.to_string()
    })
    .await;
    let until = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < until {
        let _ = locks.on(&key).wait(Duration::from_secs(1)).try_lock().await;
    }
    let role: Vec<Value> = ask(&plain(one), "ROLE").await;
    assert_eq!(role[0], Value::BulkString(b"master".to_vec()), "it is still one");
    let hold = locks.on(&key).lock().await.expect("the lock");
    assert_eq!(info(&plain(two), &key, "holders").await.len(), 1, "it is held at the new primary");
    hold.release().await.expect("it was held");
    drop(primary);
    std::fs::remove_dir_all(directory).expect("it is there");
}
