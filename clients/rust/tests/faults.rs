//! What a client must not get wrong where futures are polled late or dropped, slots move, or connections cannot be had.

#[macro_use]
mod stage;

use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_redis::{release_all, Error, Hold, Locks, Observer, Request};
use redis::{cmd, Client, FromRedisValue, Value};
use stage::{connect, control, int, until, Cluster, Pair, Server, Single, LONG, PATIENCE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

tests! {
    locks_that_are_dropped_end_their_connections in Single;
    a_grant_that_is_read_late_is_kept in Single;
    a_grant_that_was_lost_is_asked_for_again in Single;
    after_the_close_nothing_waits in Single;
    nothing_is_taken_at_the_close in Single;
    a_try_at_a_busy_server_is_one_attempt in Single;
    a_try_finds_the_primary in Pair;
    every_node_that_has_answered_is_a_seed in Cluster;
    what_hangs_is_asked_for_elsewhere in Cluster;
    what_is_still_held_after_a_pause_is_kept in Single;
    a_wait_without_a_channel_over_a_move in Cluster, Pair;
    one_token_at_two_nodes in Cluster;
    re_entries_over_a_slot_move in Cluster;
    a_hold_over_a_slow_slot_move in Cluster;
    an_orphan_that_stays_stops_no_keeper in Single;
    a_wait_outlives_the_runtime_that_connected in Single;
    commands_keep_their_order in Single;
    what_others_publish_is_ignored in Single;
    an_observer_that_panics_stops_no_clock in Single;
    a_redirect_without_a_host_means_the_same_host in Single;
    a_key_that_nobody_serves_stops_no_keeper in Single;
    a_server_that_ends_each_connection_is_left_in_peace in Single;
    new_owners_are_asked_for_nothing in Single;
}

type Asked = Pin<Box<dyn Future<Output = Result<Hold, Error>>>>;

/// Asked, granted, and not looked at since.
async fn granted_unseen(server: &Server, request: Request) -> Asked {
    loop {
        let mut asked: Asked = Box::pin(request.clone().lock());
        // If the answer is there already it is asked again.
        if poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending())).await {
            until("it is granted", || async { !server.info().await.holders.is_empty() }).await;
            return asked;
        }
        drop(asked);
        server.await_gone().await;
    }
}

fn user_name(server: &Server) -> String {
    format!("u{}", server.key.trim_start_matches('{').split('}').next().unwrap_or_default())
}

/// Clients of a user with this rule, at all of these nodes.
async fn user(server: &Server, rule: &str) -> Vec<Client> {
    let name = user_name(server);
    let mut clients = Vec::new();
    for client in server.clients() {
        set_user(&client, &format!("{name} on >word ~* &* +@all {rule}")).await;
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_username(&name).set_password("word");
        clients.push(Client::open(info.set_redis_settings(settings)).expect("an address"));
    }
    clients
}

async fn forget_user(server: &Server) {
    for client in server.clients() {
        let mut node = connect(&client).await.expect("a node");
        cmd("ACL").arg("DELUSER").arg(user_name(server)).exec_async(&mut node).await.expect("a user");
    }
}

async fn set_user(client: &Client, words: &str) {
    let mut command = cmd("ACL");
    command.arg("SETUSER").arg(words.split_whitespace().collect::<Vec<_>>());
    command.exec_async(&mut connect(client).await.expect("a node")).await.expect("a user");
}

async fn await_held_for(server: &Server, leases: u64, lease: Duration) {
    until("leases have passed", || async {
        let holders = server.info().await.holders;
        u128::from(int(holders.first().expect("it is held"), "held-ms")) > u128::from(leases) * lease.as_millis()
    })
    .await;
}

async fn await_lost(hold: &Hold) {
    tokio::time::timeout(PATIENCE, hold.lost()).await.expect("it is told");
}

/// A path to the server that gives some commands an answer of its own (an empty one ends the connection), and how many
/// connections have come.
async fn answering(
    to: String,
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (count, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let seen = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            seen.fetch_add(1, Ordering::SeqCst);
            let (to, answer) = (to.clone(), answer.clone());
            tokio::spawn(async move { answer_for(client, TcpStream::connect(to).await?, &*answer).await });
        }
    });
    (address, count)
}

async fn answer_for(
    mut client: TcpStream,
    mut server: TcpStream,
    answer: &(impl Fn(&str) -> Option<String> + ?Sized),
) -> std::io::Result<()> {
    let (mut asked, mut said) = (vec![0; 100_000], vec![0; 100_000]);
    loop {
        tokio::select! {
            size = client.read(&mut asked) => {
                let text = String::from_utf8_lossy(&asked[..size?]).into_owned();
                if text.is_empty() {
                    return Ok(());
                }
                for command in text.split_inclusive("\r\n*") {
                    // The star belongs to the next one.
                    let command = format!("*{}", command.trim_start_matches('*').trim_end_matches('*'));
                    match answer(&command) {
                        None => server.write_all(command.as_bytes()).await?,
                        Some(answer) if answer.is_empty() => return Ok(()),
                        Some(answer) => client.write_all(answer.as_bytes()).await?,
                    }
                }
            }
            size = server.read(&mut said) => match size? {
                0 => return Ok(()),
                size => client.write_all(&said[..size]).await?,
            }
        }
    }
}

/// It panics at each loss.
struct Panics;

impl Observer for Panics {
    fn lost(&self, _: &[u8], _: &str) {
        panic!("the program's own fault");
    }
}

mod scenes {
    use super::*;

    pub async fn what_others_publish_is_ignored(server: Server) {
        let locks = server.locks();
        server.hold("").await;
        let wait = tokio::spawn(locks.on(&server.key).owner("me").lock());
        server.await_queued(1).await;
        let mut node = server.node(&server.key).await;
        let mut channels = cmd("PUBSUB");
        let channels: Vec<String> = channels.arg("CHANNELS").arg("dlock:*").query_async(&mut node).await.expect("some");
        let (size, key, owner) = (server.key.len(), &server.key, server.queue().await.remove(0));
        for text in
            ["", "granted", "granted 1 99:k 1:o 1", &format!("replaced 0 {size}:{key} {}:{owner} 0", owner.len())]
        {
            for channel in &channels {
                cmd("PUBLISH").arg(channel).arg(text).exec_async(&mut node).await.expect("it is told");
            }
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.hand_over("other").await;
        wait.await.expect("no panic").expect("the lock").release().await.expect("it was held");
    }

    pub async fn an_observer_that_panics_stops_no_clock(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let locks = Locks::with(client, stage::settings().observer(Panics)).expect("good settings");
        let first = locks.on(&server.key).lock().await.expect("the lock");
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        await_lost(&first).await;
        let second = locks.on(&server.key).lock().await.expect("the lock");
        control(format!("silence {path}")).await;
        await_lost(&second).await;
        control(format!("close {path}")).await;
    }

    pub async fn a_redirect_without_a_host_means_the_same_host(server: Server) {
        let (to, slot) =
            (server.addresses(), Server::new(Cluster).ask_at::<u64>(&server.key, "CLUSTER KEYSLOT KEY").await);
        let port = to.rsplit_once(':').expect("an address").1.to_owned();
        let moved = move |command: &str| command.contains("DLOCK.").then(|| format!("-MOVED {slot} :{port}\r\n"));
        let (address, _) = answering(to, moved).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        let locks = Locks::with(client, stage::settings()).expect("good settings");
        let hold = locks.on(&server.key).timeout(Duration::from_secs(10)).lock().await.expect("the lock");
        hold.release().await.expect("it was held");
    }

    pub async fn a_key_that_nobody_serves_stops_no_keeper(server: Server) {
        let key = format!("{}:nobody", server.key);
        let gone = key.clone();
        let down = move |command: &str| {
            let down = command.contains("DLOCK.RELEASE") && command.contains(&gone);
            down.then(|| "-CLUSTERDOWN Hash slot not served\r\n".into())
        };
        let (address, _) = answering(server.addresses(), down).await;
        let hung = control(format!("path {}", server.addresses())).await;
        control(format!("silence {hung}")).await;
        let seeds = [address, hung.clone()].map(|seed| Client::open(format!("redis://{seed}/")).expect("an address"));
        let locks = Locks::with(seeds.to_vec(), stage::settings()).expect("good settings");
        let kept = locks.on(&server.key).lock().await.expect("the lock");
        drop(locks.on(&key).lock().await.expect("the lock"));
        await_held_for(&server, 3, stage::LEASE).await;
        assert!(!kept.is_lost());
        kept.release().await.expect("it was held");
        control(format!("close {hung}")).await;
    }

    pub async fn a_server_that_ends_each_connection_is_left_in_peace(server: Server) {
        let tied =
            |command: &str| (command.contains("DLOCK.KEEP") || command.contains("DLOCK.RENEW")).then(String::new);
        let (address, count) = answering(server.addresses(), tied).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        let locks = Locks::with(client, stage::settings()).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        await_lost(&hold).await;
        let count = count.load(Ordering::SeqCst);
        assert!(count < 200, "{count} connections");
        locks.close();
    }

    pub async fn new_owners_are_asked_for_nothing(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let locks = Locks::with(client, stage::settings().lease(LONG)).expect("good settings");
        locks.ask(&server.key, &cmd("PING")).await.expect("an answer");
        let keys: Vec<String> = (0..40).map(|i| format!("{}:{i}", server.key)).collect();
        let holds = locks.many(&keys, Some(PATIENCE)).await.expect("the locks");
        let commands: usize = control(format!("commands {path}")).await.parse().expect("a number");
        assert!(commands < 60, "{commands} commands"); // KEEP may be among them
        release_all(holds).await.expect("they were held");
        control(format!("close {path}")).await;
    }

    pub async fn locks_that_are_dropped_end_their_connections(server: Server) {
        let locks = server.locks();
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let client = int(&server.info().await.holders[0], "client");
        hold.release().await.expect("it was held");
        drop(locks);
        until("its connection has ended", || async {
            server.ask::<String>(&format!("CLIENT LIST ID {client}")).await.is_empty()
        })
        .await;
    }

    pub async fn a_grant_that_is_read_late_is_kept(server: Server) {
        let locks = server.locks();
        locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
        // Until the keeper has nothing to keep.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let lock = granted_unseen(&server, locks.on(&server.key)).await;
        await_held_for(&server, 2, stage::LEASE).await;
        let hold = lock.await.expect("the lock");
        await_held_for(&server, 3, stage::LEASE).await;
        assert!(!hold.is_lost());
        hold.release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn a_grant_that_was_lost_is_asked_for_again(server: Server) {
        let locks = server.locks();
        locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
        let lock = granted_unseen(&server, locks.on(&server.key).ephemeral()).await;
        let client = int(&server.info().await.holders[0], "client");
        let _: u64 = server.ask(&format!("CLIENT KILL ID {client}")).await;
        server.await_gone().await;
        tokio::time::sleep(Duration::from_secs(2)).await; // the client sees it
        lock.await.expect("the lock").release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn after_the_close_nothing_waits(server: Server) {
        let locks = server.locks();
        server.hold("").await;
        // The second waits for its turn.
        let waits = [(); 2].map(|()| tokio::spawn(locks.on(&server.key).owner("me").lock()));
        server.await_queued(1).await;
        locks.close();
        for wait in waits {
            let ended = tokio::time::timeout(PATIENCE, wait).await.expect("it ends").expect("no panic");
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        }
        let late = tokio::time::timeout(PATIENCE, locks.on(&server.key).owner("me").lock()).await;
        assert!(matches!(late, Ok(Err(Error::Closed))), "{late:?}");
        let _: Value = server.ask("DEL KEY").await;
    }

    pub async fn nothing_is_taken_at_the_close(server: Server) {
        for round in 0..8 {
            let locks = server.locks();
            let key = |i: usize| format!("{}:{round}:{i}", server.key);
            let take = |i: usize| tokio::spawn(locks.on(key(i)).lock());
            let mut holds = Vec::new();
            for task in (0..1000).map(take).collect::<Vec<_>>() {
                holds.push(task.await.expect("no panic").expect("the lock"));
            }
            let asked: Vec<_> = (1000..1500).map(take).collect();
            tokio::time::sleep(Duration::from_millis(5)).await;
            locks.close();
            for task in asked {
                match task.await.expect("no panic") {
                    Ok(hold) => await_lost(&hold).await,
                    Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
                }
            }
            for hold in &holds {
                await_lost(hold).await;
            }
        }
    }

    /// What refuses says so at once, in its own words.
    pub async fn a_try_at_a_busy_server_is_one_attempt(server: Server) {
        async fn refused(address: String, code: &str) {
            let client = Client::open(format!("redis://{address}/")).expect("an address");
            let locks = Locks::with(client, stage::settings()).expect("good settings");
            let mut times = Vec::new();
            let bound = Duration::from_millis(250);
            // A busy machine is late by itself.
            while times.len() < 20 && times.iter().all(|time| *time >= bound) {
                let began = std::time::Instant::now();
                let error = locks.on("a try").try_lock().await.expect_err("it is refused");
                times.push(began.elapsed());
                let Error::Redis(error) = error else { panic!("{error}") };
                assert_eq!(error.code(), Some(code), "{error}");
            }
            assert!(times.iter().any(|time| *time < bound), "{code:?}: {times:?}");
        }
        for error in [
            "BUSY Redis is busy running a script.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down",
        ] {
            let answer = move |command: &str| command.contains("DLOCK.").then(|| format!("-{error}\r\n"));
            refused(answering(server.addresses(), answer).await.0, error.split(' ').next().expect("a code")).await;
        }
        let loading = |command: &str| (!command.contains("PING")).then(|| "-LOADING it begins\r\n".to_owned());
        refused(answering(server.addresses(), loading).await.0, "LOADING").await;
    }

    /// The replica is named first.
    pub async fn a_try_finds_the_primary(server: Server) {
        let replica = server.replica().await;
        let (mut clients, rest): (Vec<_>, Vec<_>) =
            server.clients().into_iter().partition(|client| client.get_connection_info().addr().to_string() == replica);
        clients.extend(rest);
        let locks = Locks::with(clients, stage::settings()).expect("good settings");
        locks
            .on(&server.key)
            .try_lock()
            .await
            .expect("an answer")
            .expect("it is free")
            .release()
            .await
            .expect("it was held");
    }

    /// A cluster's one seed is gone, and then keys of other nodes are asked for that nobody has asked for yet.
    pub async fn every_node_that_has_answered_is_a_seed(server: Server) {
        let (to, (key, address)) = (server.address(&server.key).await, server.of_another_node(&[]).await);
        let seed = control(format!("path {to}")).await;
        let client = Client::open(format!("redis://{seed}/")).expect("an address");
        let locks = Locks::with(client, stage::settings()).expect("good settings");
        let (other, _) = server.of_another_node(std::slice::from_ref(&to)).await;
        locks.on(&other).lock().await.expect("the lock").release().await.expect("it was held");
        control(format!("close {seed}")).await;
        for i in 0..20 {
            let key = format!("{{{i}{}}}", key.trim_matches(['{', '}']));
            let hold = locks.on(&key).timeout(LONG).lock().await.unwrap_or_else(|error| panic!("{key}: {error}"));
            hold.release().await.expect("it was held");
            let tried = locks.on(&key).try_lock().await.unwrap_or_else(|error| panic!("{key}: {error}"));
            tried.expect("it is free").release().await.expect("it was held");
        }
        drop(address);
    }

    /// The node that serves the lock hangs, and another takes over: the hold goes there long before `reply_timeout` is over.
    pub async fn what_hangs_is_asked_for_elsewhere(server: Server) {
        let to = server.address(&server.key).await;
        let seeds: Vec<Client> = server.clients();
        let hung = control(format!("path {to}")).await;
        let path = Client::open(format!("redis://{hung}/")).expect("an address");
        let clients = [vec![path], seeds].concat();
        let settings = stage::settings().reply_timeout(Duration::from_secs(60)).lease(LONG);
        let locks = Locks::with(clients, settings).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        control(format!("silence {hung}")).await;
        await_held_for(&server, 2, LONG).await;
        assert!(!hold.is_lost());
        hold.release().await.expect("it was held");
        control(format!("close {hung}")).await;
    }

    /// The program stands still for longer than its lease. The server has renewed the hold meanwhile, and says so.
    pub async fn what_is_still_held_after_a_pause_is_kept(server: Server) {
        let (lease, key, addresses) = (Duration::from_secs(1), server.key.clone(), server.clients());
        // A program with one thread, which stands still.
        let program = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let locks = Locks::with(addresses, stage::settings().lease(lease)).expect("good settings");
                let hold = locks.on(&key).lock().await.expect("the lock");
                let gone = locks.on(format!("{key}:gone")).lock().await.expect("the lock");
                let _: Value = locks.ask(&key, cmd("DEL").arg(format!("{key}:gone"))).await.expect("an answer");
                std::thread::sleep(3 * lease);
                assert!(hold.left().is_zero(), "it is not known yet");
                await_lost(&gone).await;
                let until = tokio::time::Instant::now() + PATIENCE;
                while hold.left().is_zero() && !hold.is_lost() {
                    assert!(tokio::time::Instant::now() < until, "nobody asks");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert!(!hold.is_lost(), "{}", hold.lost().await);
                hold.release().await.expect("it was held");
            });
        });
        tokio::task::spawn_blocking(|| program.join()).await.expect("no panic").expect("no panic");
    }

    pub async fn a_wait_without_a_channel_over_a_move(server: Server) {
        let locks = Locks::with(user(&server, "resetchannels").await, stage::settings()).expect("good settings");
        server.hold("").await;
        let wait = tokio::spawn(locks.on(&server.key).lock());
        server.await_absent().await;
        control(if server.place == Pair { "switch".into() } else { format!("move {}", server.key) }).await;
        server.hand_over("other").await;
        let hold = tokio::time::timeout(PATIENCE, wait).await.expect("it ends").expect("no panic").expect("the lock");
        hold.release().await.expect("it was held");
        server.await_gone().await;
        forget_user(&server).await;
    }

    pub async fn one_token_at_two_nodes(server: Server) {
        let locks = server.locks_for(LONG);
        let mut pairs = 0;
        for round in 0.. {
            let key = |i: usize| format!("{{{round}-{i}{}", server.key.trim_start_matches('{'));
            let takes: Vec<_> = (0..2000).map(|i| tokio::spawn(locks.on(key(i)).lock())).collect();
            let mut holds: HashMap<u64, Vec<Hold>> = HashMap::new();
            for take in takes {
                let hold = take.await.expect("no panic").expect("the lock");
                holds.entry(hold.token()).or_default().push(hold);
            }
            for mut same in holds.into_values().filter(|same| same.len() > 1) {
                pairs += 1;
                same.pop().expect("two").release().await.expect("it was held");
                for hold in same {
                    assert!(!hold.is_lost() && !hold.left().is_zero());
                    hold.release().await.expect("it was held");
                }
            }
            if pairs >= 5 {
                return;
            }
        }
    }

    pub async fn re_entries_over_a_slot_move(server: Server) {
        let locks = server.locks_for(LONG);
        let outer = locks.on(&server.key).owner("me").lock().await.expect("the lock");
        let moved = tokio::spawn(control(format!("move {}", server.key)));
        let mut holds = vec![outer];
        while !moved.is_finished() {
            holds.push(locks.on(&server.key).owner("me").lock().await.expect("the lock"));
        }
        moved.await.expect("no panic");
        for _ in 0..20 {
            holds.push(locks.on(&server.key).owner("me").lock().await.expect("the lock"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(!holds.iter().any(Hold::is_lost));
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        for hold in &holds {
            await_lost(hold).await;
        }
    }

    /// The key is at the target already, and the slot is not: only who says ASKING reaches it.
    pub async fn a_hold_over_a_slow_slot_move(server: Server) {
        let locks = server.locks();
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let (mut source, mut target) = (server.node(&server.key).await, None);
        let from = server.address(&server.key).await;
        for client in server.clients() {
            let address = client.get_connection_info().addr().to_string();
            let mut node = connect(&client).await.expect("a node");
            let role: Vec<Value> = cmd("ROLE").query_async(&mut node).await.expect("a role");
            if role[0] == Value::BulkString(b"master".to_vec()) && address != from {
                target = Some((node, address));
            }
        }
        let (mut target, to) = target.expect("there are three masters");
        let (_, port) = to.rsplit_once(':').expect("an address");
        let slot: u64 = server.ask("CLUSTER KEYSLOT KEY").await;
        let source_id: String = cmd("CLUSTER").arg("MYID").query_async(&mut source).await.expect("its name");
        let target_id: String = cmd("CLUSTER").arg("MYID").query_async(&mut target).await.expect("its name");
        let set = |how: &str, whom: &str| {
            let mut set = cmd("CLUSTER");
            set.arg("SETSLOT").arg(slot).arg(how).arg(whom);
            set
        };
        set("IMPORTING", &source_id).exec_async(&mut target).await.expect("it is set");
        set("MIGRATING", &target_id).exec_async(&mut source).await.expect("it is set");
        let mut migrate = cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(port).arg(&server.key).arg(0).arg(5000);
        migrate.exec_async(&mut source).await.expect("it is there");
        let mut look = redis::pipe();
        look.cmd("ASKING").ignore().cmd("DLOCK.INFO").arg(&server.key);
        let (mut held_ms, mut kept) = (0, false);
        while held_ms < 4 * stage::LEASE.as_millis() {
            let (info,): (Option<HashMap<String, Value>>,) = look.query_async(&mut target).await.expect("an answer");
            let Some(info) = info else { break };
            let holders = Vec::<stage::Entry>::from_redis_value(info["holders"].clone()).expect("an array of maps");
            let Some(holder) = holders.first() else { break };
            held_ms = u128::from(int(holder, "held-ms"));
            kept = int(holder, "auto") == 1 && int(holder, "token") == hold.token() && !hold.is_lost();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for node in [&mut target, &mut source] {
            set("NODE", &target_id).exec_async(node).await.expect("it is set");
        }
        assert!(kept, "held for {held_ms} ms");
        await_held_for(&server, 6, stage::LEASE).await;
        assert!(!hold.is_lost());
        hold.release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn an_orphan_that_stays_stops_no_keeper(server: Server) {
        let locks = Locks::with(user(&server, "").await, stage::settings()).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let orphan = format!("{}:orphan", server.key);
        let mut tie = cmd("DLOCK.ACQUIRE");
        tie.arg(&orphan).arg("somebody").arg(600_000).arg("AUTO").arg(600_000);
        locks.ask(&orphan, &tie).await.expect("it is free");
        // The connection that is there goes on, and there is no other one.
        set_user(&server.clients()[0], &format!("{} resetpass >another", user_name(&server))).await;
        await_held_for(&server, 3, stage::LEASE).await;
        assert!(!hold.is_lost());
        hold.release().await.expect("it was held");
        let _: Value = server.ask_at(&orphan, "DEL KEY").await;
        forget_user(&server).await;
    }

    pub async fn a_wait_outlives_the_runtime_that_connected(server: Server) {
        let locks = server.locks();
        let (other, key) = (locks.clone(), server.key.clone());
        let connected = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let hold = runtime.block_on(other.on(key).lock()).expect("the lock");
            runtime.block_on(hold.release()).expect("it was held");
            runtime
        });
        let runtime = connected.await.expect("no panic");
        server.hold("").await;
        let wait = tokio::spawn(locks.on(&server.key).lock());
        server.await_queued(1).await;
        runtime.shutdown_background();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.hand_over("other").await;
        let hold = tokio::time::timeout(PATIENCE, wait).await.expect("it ends").expect("no panic").expect("the lock");
        await_held_for(&server, 2, stage::LEASE).await;
        assert!(!hold.is_lost());
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        await_lost(&hold).await;
    }

    pub async fn commands_keep_their_order(server: Server) {
        let locks = server.locks();
        locks.ask(&server.key, cmd("DEL").arg(&server.key)).await.expect("an answer");
        let nothing = locks.ask(&server.key, &redis::Cmd::new()).await;
        assert!(matches!(nothing, Err(Error::Invalid { argument: "command", .. })), "{nothing:?}");
        for _ in 0..20 {
            let push = |i: u32| {
                let (locks, key) = (&locks, &server.key);
                Box::pin(async move { locks.ask(key, cmd("RPUSH").arg(key).arg(i)).await })
            };
            let mut pushes: Vec<_> = (0..3000).map(push).collect();
            // Each is asked when it is polled for the first time.
            let mut ended = Vec::new();
            for push in &mut pushes {
                ended.push(poll_fn(|context| Poll::Ready(push.as_mut().poll(context).is_ready())).await);
            }
            for (push, ended) in pushes.into_iter().zip(ended) {
                if !ended {
                    push.await.expect("an answer");
                }
            }
            let seen: Vec<u32> = server.ask("LRANGE KEY 0 -1").await;
            assert!(seen.is_sorted());
            let _: Value = server.ask("DEL KEY").await;
        }
    }
}
