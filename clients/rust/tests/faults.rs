//! What a client must not get wrong where futures are polled late or dropped, slots move, or connections cannot be had.

#[macro_use]
mod stage;

use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_redis::{Election, Error, Hold, Locks, Observer, Request, Servers, Settings};
use redis::cluster::ClusterClient;
use redis::{cmd, Client, FromRedisValue, Value};
use stage::{connect, control, int, until, Cluster, Pair, Server, Single, LONG, PATIENCE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

tests! {
    locks_that_are_dropped_end_their_connections in Single;
    a_grant_that_is_read_late_is_no_hold in Single;
    nothing_is_taken_at_the_close in Single;
    a_try_finds_the_primary in Pair;
    a_guarded_command_is_sent_once in Single;
    a_release_whose_reply_is_lost_is_no_loss in Single;
    a_lock_that_was_left_may_end_before_an_answer in Single;
    a_release_that_is_given_up_is_no_loss in Single;
    a_release_does_not_wait_for_a_former_primary in Single;
    a_late_row_frees_nothing_that_stays_taken in Single;
    a_late_command_keeps_nothing_that_stays_taken in Single;
    a_late_renewal_keeps_nothing_that_stays_taken in Single;
    one_lost_answer_costs_no_short_hold in Single;
    a_wait_that_is_given_up_at_a_silent_server_leaves_it in Single;
    what_is_still_held_after_a_pause_is_kept in Single;
    a_campaign_after_a_pause_does_not_wait_for_itself in Single;
    one_token_at_two_nodes in Cluster;
    a_hold_over_a_slow_slot_move in Cluster;
    a_wait_outlives_the_runtime_that_connected in Single;
    a_hold_that_is_dropped_outside_a_runtime_is_given_back in Single;
    a_release_outlives_its_runtime in Single;
    a_password_that_is_refused_later_ends_nothing in Single;
    late_refusals_end_no_new_connection in Single;
    a_cluster_that_is_slow_to_connect_is_waited_for in Single;
    errands_are_repeated_less_and_less_often in Single;
    a_release_takes_no_longer_than_a_reply in Single;
    an_old_failure_is_not_the_cause in Single;
    the_longest_lease_is_dropped_at_a_silent_server in Single;
    what_cannot_be_guarded_is_an_argument in Single;
    each_hold_is_observed_once in Single;
    a_loss_is_told_after_the_runtime_that_took_it in Single;
    an_observer_that_panics_stops_no_clock in Single;
    a_key_that_nobody_serves_stops_no_keeper in Single;
    a_server_that_ends_each_connection_is_left_in_peace in Single;
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

/// The command is done, and its reply is lost with the connection.
const EAT: &str = "eat";
/// The command is dropped, and the connection stays.
const HUSH: &str = "hush";
/// In an answer: what follows comes a moment later.
const PAUSE: &str = "pause";

/// A path to the server that gives some commands an answer of its own (an empty one ends the connection), and how many
/// connections have come. It says that it is a cluster of one node.
async fn answering(
    to: String,
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, port) = listener.local_addr().map(|own| (own.to_string(), own.port())).expect("an address");
    let (count, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let seen = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            seen.fetch_add(1, Ordering::SeqCst);
            let (to, answer) = (to.clone(), answer.clone());
            let map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
            let answer = move |command: &str| {
                let map = command.contains("SLOTS").then(|| map.clone());
                answer(command).or(map)
            };
            tokio::spawn(async move { answer_for(client, TcpStream::connect(to).await?, &answer).await });
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
                        Some(answer) if answer == HUSH => {}
                        Some(answer) if answer == EAT => {
                            server.write_all(command.as_bytes()).await?;
                            return server.read(&mut said).await.map(drop);
                        }
                        Some(answer) => {
                            for part in answer.split_inclusive(PAUSE) {
                                client.write_all(part.trim_end_matches(PAUSE).as_bytes()).await?;
                                if part.ends_with(PAUSE) {
                                    tokio::time::sleep(Duration::from_millis(10)).await;
                                }
                            }
                        }
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

/// A key, an owner and a token.
type Row = (String, String, u64);

/// An answer to that SESSION, with these rows.
fn with_rows(command: &str, what: &str, rows: &[Row]) -> String {
    let words: Vec<&str> = command.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect();
    let seen = words.iter().position(|word| *word == "SEEN").expect("each one says what it has seen");
    let (id, mut last): (&str, u64) = (words[seen + 1], words[seen + 2].parse().expect("a number"));
    let mut text = String::new();
    for (key, owner, token) in rows {
        last += 1;
        let [what, key, owner] = [what, key, owner].map(|word| format!("${}\r\n{word}\r\n", word.len()));
        text += &format!("*6\r\n:{last}\r\n{what}{key}{owner}:{token}\r\n:60000\r\n");
    }
    format!("*4\r\n:{id}\r\n:{last}\r\n:3000\r\n*{}\r\n{text}", rows.len())
}

/// It panics at each loss, and counts them.
struct Panics(Arc<AtomicUsize>);

impl Observer for Panics {
    fn lost(&self, _: &[u8], _: &str) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("the program's own fault");
    }
}

/// Counts grants, releases and losses.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicUsize; 3]>);

impl Counts {
    fn seen(&self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::SeqCst))
    }
}

impl Observer for Counts {
    fn granted(&self, _: &[u8], _: Duration) {
        self.0[0].fetch_add(1, Ordering::SeqCst);
    }
    fn released(&self, _: &[u8], _: Duration) {
        self.0[1].fetch_add(1, Ordering::SeqCst);
    }
    fn lost(&self, _: &[u8], _: &str) {
        self.0[2].fetch_add(1, Ordering::SeqCst);
    }
}

mod scenes {
    use super::*;

    /// Locks by such a path, and how many connections have come.
    async fn locks_by(
        server: &Server,
        settings: Settings,
        answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> (Locks, Arc<AtomicUsize>) {
        let (address, count) = answering(server.addresses(), answer).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        (Locks::with_settings(client, settings).expect("good settings"), count)
    }

    pub async fn errands_are_repeated_less_and_less_often(server: Server) {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let answer = move |command: &str| {
            command.contains("DLOCK.RELEASE").then(|| {
                seen.fetch_add(1, Ordering::SeqCst);
                "-LOADING it begins\r\n".to_owned()
            })
        };
        let (locks, _) = locks_by(&server, stage::settings().lease(LONG), answer).await;
        drop(locks.on(&server.key).lock().await.expect("the lock"));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let count = count.load(Ordering::SeqCst);
        assert!((3..=10).contains(&count), "{count} in four seconds");
        locks.close();
        let _: Value = server.ask("DEL KEY").await;
    }

    /// Refusals until the time is nearly up, and then silence.
    pub async fn a_release_takes_no_longer_than_a_reply(server: Server) {
        let first = std::sync::OnceLock::new();
        let answer = move |command: &str| {
            let began = || first.get_or_init(std::time::Instant::now).elapsed();
            let refusal = || if began().as_millis() < 700 { "-LOADING it begins\r\n" } else { HUSH }.to_owned();
            command.contains("DLOCK.RELEASE").then(refusal)
        };
        let settings = stage::settings().lease(LONG).reply_timeout(Duration::from_secs(1));
        let (locks, _) = locks_by(&server, settings, answer).await;
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let began = std::time::Instant::now();
        assert!(hold.release().await.is_err());
        assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
        locks.close();
        let _: Value = server.ask("DEL KEY").await;
    }

    /// A refusal, then a wait whose place is kept, and whose last word is late.
    pub async fn an_old_failure_is_not_the_cause(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let is_new = AtomicBool::new(true);
        let answer = move |command: &str| {
            let is_refused = command.contains("ACQUIRE") && is_new.swap(false, Ordering::SeqCst);
            is_refused.then(|| "-LOADING it begins\r\n".to_owned())
        };
        let (address, _) = answering(path.clone(), answer).await;
        let locks =
            Locks::new(Client::open(format!("redis://{address}/")).expect("an address")).expect("good settings");
        server.hold("").await;
        let wait = tokio::spawn(locks.on(&server.key).wait(Duration::from_secs(6)).try_lock());
        server.await_queued(1).await;
        control(format!("delay {path} 1400")).await;
        let taken = wait.await.expect("no panic");
        assert!(matches!(taken, Ok(None)), "{taken:?}");
        let _: Value = server.ask("DEL KEY").await;
        control(format!("close {path}")).await;
    }

    pub async fn the_longest_lease_is_dropped_at_a_silent_server(server: Server) {
        let hush = |command: &str| command.contains("DLOCK").then(|| HUSH.to_owned());
        let (locks, _) = locks_by(&server, stage::settings(), hush).await;
        let given_up =
            tokio::time::timeout(Duration::from_millis(300), locks.on(&server.key).lease(Duration::MAX).lock()).await;
        assert!(given_up.is_err());
        locks.close();
    }

    pub async fn what_cannot_be_guarded_is_an_argument(server: Server) {
        let hold = server.locks().on(&server.key).lock().await.expect("the lock");
        for command in [cmd("SCAN").cursor_arg(0), &redis::Cmd::new()] {
            let guarded = hold.guard(command).await;
            assert!(matches!(guarded, Err(Error::Invalid { argument: "command", .. })), "{guarded:?}");
        }
        hold.release().await.expect("it was held");
    }

    /// Grants, releases and losses add up.
    pub async fn each_hold_is_observed_once(server: Server) {
        let counts = Counts::default();
        let settings = stage::settings().lease(LONG).observer(counts.clone());
        let locks = Locks::with_settings(server.servers(), settings).expect("good settings");
        let keys = ["a", "b", "c"].map(|name| format!("{}:{name}", server.key));
        let holds = locks.many(&keys, None).await.expect("the locks");
        assert_eq!(counts.seen(), [3, 0, 0]);
        dlock_redis::release_all(holds).await.expect("they were held");
        assert_eq!(counts.seen(), [3, 3, 0]);
        drop(locks.on(&server.key).lock().await.expect("the lock"));
        server.await_gone().await;
        until("the answer is read", || async { counts.seen() == [4, 4, 0] }).await;
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        assert!(matches!(hold.release().await, Err(Error::NotHeld(_))));
        assert_eq!(counts.seen(), [5, 4, 1]);
    }

    pub async fn an_observer_that_panics_stops_no_clock(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let count = Arc::new(AtomicUsize::new(0));
        let locks =
            Locks::with_settings(client, stage::settings().observer(Panics(count.clone()))).expect("good settings");
        let first = locks.on(&server.key).lock().await.expect("the lock");
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        await_lost(&first).await;
        let second = locks.on(&server.key).lock().await.expect("the lock");
        control(format!("silence {path}")).await;
        await_lost(&second).await;
        control(format!("sound {path}")).await;
        let third = locks.on(format!("{}:3", server.key)).lock().await.expect("the lock");
        let fourth = locks.on(format!("{}:4", server.key)).lock().await.expect("the lock");
        locks.close();
        assert!(third.is_lost() && fourth.is_lost());
        assert_eq!(count.load(Ordering::SeqCst), 4);
        control(format!("close {path}")).await;
    }

    pub async fn a_key_that_nobody_serves_stops_no_keeper(server: Server) {
        let key = format!("{}:nobody", server.key);
        let gone = key.clone();
        let down = move |command: &str| {
            let down = command.contains("DLOCK.RELEASE") && command.contains(&gone);
            down.then(|| "-CLUSTERDOWN Hash slot not served\r\n".into())
        };
        let (address, _) = answering(server.addresses(), down).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings()).expect("good settings");
        let kept = locks.on(&server.key).lock().await.expect("the lock");
        drop(locks.on(&key).lock().await.expect("the lock"));
        await_held_for(&server, 3, stage::LEASE).await;
        assert!(!kept.is_lost());
        kept.release().await.expect("it was held");
    }

    pub async fn a_server_that_ends_each_connection_is_left_in_peace(server: Server) {
        let tied =
            |command: &str| (command.contains("DLOCK.SESSION") || command.contains("DLOCK.RENEW")).then(String::new);
        let (address, count) = answering(server.addresses(), tied).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings()).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        await_lost(&hold).await;
        let count = count.load(Ordering::SeqCst);
        assert!(count < 200, "{count} connections");
        locks.close();
    }

    /// Its reply is lost, and the library of a cluster would send it again.
    pub async fn a_guarded_command_is_sent_once(server: Server) {
        let eaten = |command: &str| command.contains("INCR").then(|| EAT.to_owned());
        let (address, _) = answering(server.addresses(), eaten).await;
        let single = Client::open(format!("redis://{address}/")).expect("an address").into();
        let cluster = Servers::cluster(|| ClusterClient::builder([format!("redis://{address}/")])).expect("an address");
        for (name, servers) in [("single", single), ("cluster", cluster)] {
            let locks = Locks::with_settings(servers, stage::settings().lease(LONG)).expect("good settings");
            let hold = locks.on(&server.key).lock().await.expect("the lock");
            let count = format!("{}:{name}", server.key);
            let guarded = hold.guard(cmd("INCR").arg(&count)).await;
            assert!(matches!(&guarded, Err(Error::Redis(error)) if error.code().is_none()), "{guarded:?}");
            assert_eq!(server.ask_at::<u64>(&count, "GET KEY").await, 1, "{name}");
            assert!(!hold.is_lost());
            hold.release().await.expect("it was held");
        }
    }

    /// The library of a cluster would send it again, and the second answer says that it is not held.
    pub async fn a_release_whose_reply_is_lost_is_no_loss(server: Server) {
        let is_first = AtomicBool::new(true);
        let eaten = move |command: &str| {
            let is_eaten = command.contains("DLOCK.RELEASE") && is_first.swap(false, Ordering::SeqCst);
            is_eaten.then(|| EAT.to_owned())
        };
        let (address, _) = answering(server.addresses(), eaten).await;
        let cluster = Servers::cluster(|| ClusterClient::builder([format!("redis://{address}/")])).expect("an address");
        let locks = Locks::with_settings(cluster, stage::settings().lease(LONG)).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        tokio::time::sleep(stage::LEASE / 2).await; // it works
        hold.release().await.expect("it was held");
        server.await_gone().await;
    }

    /// The reply to the first RENEW is lost, and the lock has ended as it should when the second one is answered.
    pub async fn a_lock_that_was_left_may_end_before_an_answer(server: Server) {
        let is_first = AtomicBool::new(true);
        let answer = move |command: &str| {
            let is_eaten = command.contains("DLOCK.RENEW") && is_first.swap(false, Ordering::SeqCst);
            is_eaten.then(|| EAT.to_owned())
        };
        let counts = Counts::default();
        let (locks, _) = locks_by(&server, stage::settings().lease(LONG).observer(counts.clone()), answer).await;
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        hold.release_after(Duration::from_millis(1)).await.expect("it was left");
        assert_eq!(counts.seen(), [1, 1, 0]);
    }

    /// What its caller no longer waits for is sent again, and the second answer says that it is not held.
    pub async fn a_release_that_is_given_up_is_no_loss(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let counts = Counts::default();
        let settings = stage::settings().lease(LONG).observer(counts.clone());
        let locks = Locks::with_settings(client, settings).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        control(format!("delay {path} 1000")).await;
        assert!(tokio::time::timeout(Duration::from_millis(250), hold.release()).await.is_err());
        until("its end is reported", || async { counts.seen() != [1, 0, 0] }).await;
        assert_eq!(counts.seen(), [1, 1, 0]);
        control(format!("delay {path} 0")).await;
        // One that is to stay taken, and is not.
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
        control(format!("delay {path} 1000")).await;
        assert!(tokio::time::timeout(Duration::from_millis(250), hold.release_after(LONG)).await.is_err());
        until("its end is reported", || async { counts.seen() != [2, 1, 0] }).await;
        assert_eq!(counts.seen(), [2, 1, 1]);
        control(format!("close {path}")).await;
    }

    /// It hangs, another node serves the locks, and the connection that sends once was idle meanwhile.
    pub async fn a_release_does_not_wait_for_a_former_primary(server: Server) {
        let (next, _) = answering(server.addresses(), |_| None).await;
        let port = next.rsplit(':').next().expect("a port");
        let map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
        let hangs = Arc::new(AtomicBool::new(false));
        let is_former = hangs.clone();
        let answer = move |command: &str| {
            let answer = if command.contains("SLOTS") { &map } else { HUSH };
            let is_answered = command.contains("SLOTS") || command.contains("DLOCK");
            (is_answered && is_former.load(Ordering::SeqCst)).then(|| answer.to_owned())
        };
        let (address, _) = answering(server.addresses(), answer).await;
        let cluster = Servers::cluster(|| ClusterClient::builder([format!("redis://{address}/")])).expect("an address");
        let locks = Locks::with_settings(cluster, stage::settings().lease(4 * LONG)).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        // By the connection that sends once.
        hold.guard(cmd("EXISTS").arg(&server.key)).await.expect("it is held");
        hangs.store(true, Ordering::SeqCst);
        let other = locks.on(format!("{}:other", server.key)).lock().await.expect("the lock");
        hold.release().await.expect("it was held");
        server.await_gone().await;
        other.release().await.expect("it was held");
    }

    /// A SESSION that was answered before the lock was left to its time, and is read after that. The row of a stranger's lock comes with it.
    pub async fn a_late_row_frees_nothing_that_stays_taken(server: Server) {
        let late: Arc<std::sync::Mutex<Vec<Row>>> = Arc::default();
        let rows = late.clone();
        let answer = move |command: &str| {
            let mut rows = rows.lock().expect("no panic");
            (command.contains("SEEN") && !rows.is_empty())
                .then(|| with_rows(command, "granted", &std::mem::take(&mut *rows)))
        };
        let (locks, _) = locks_by(&server, stage::settings(), answer).await;
        let [kept, other] = ["kept", "other"].map(|name| format!("{}:{name}", server.key));
        let kept = locks.on(kept).lock().await.expect("the lock");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        let (owner, token) = (String::from_utf8(hold.owner().to_vec()).expect("a text"), hold.token());
        hold.release_after(4 * PATIENCE).await.expect("it was held");
        let stranger: Vec<u64> = server.ask_at(&other, "DLOCK.ACQUIRE KEY stranger 600000").await;
        late.lock()
            .expect("no panic")
            .extend([(server.key.clone(), owner.clone(), token), (other.clone(), "stranger".to_owned(), stranger[0])]);
        until("the stranger's is given back", || async { server.owners(&other).await.is_empty() }).await;
        assert_eq!(server.owners(&server.key).await, [owner]);
        kept.release().await.expect("it was held");
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
    }

    /// Commands that come late bring locks back into the session after they were left to their time.
    pub async fn a_late_command_keeps_nothing_that_stays_taken(server: Server) {
        let locks = server.locks();
        let over = format!("{}:over", server.key);
        let leave_taken = |key: String, time: Duration, late: &'static str| {
            let (locks, server) = (&locks, &server);
            async move {
                let hold = locks.on(&key).lock().await.expect("the lock");
                let (owner, token) = (String::from_utf8(hold.owner().to_vec()).expect("a text"), hold.token());
                let (session, _) = owner.rsplit_once('/').expect("a session and a number");
                hold.release_after(time).await.expect("it was held");
                let late = late.replace("OWNER", &owner).replace("TOKEN", &format!("TOKEN {token}"));
                let _: Value = server.ask_at(&key, &late.replace("SESSION", session)).await;
            }
        };
        let time = Duration::from_secs(2);
        leave_taken(over.clone(), time, "DLOCK.RENEW KEY OWNER 600000 TOKEN IN SESSION").await;
        tokio::time::sleep(time).await;
        // Its session is kept from now on.
        let kept = locks.on(format!("{}:kept", server.key)).lock().await.expect("the lock");
        for (name, late) in [
            ("renewed", "DLOCK.RENEW KEY OWNER 600000 TOKEN IN SESSION"),
            ("asked", "DLOCK.FAIRACQUIRE KEY OWNER 600000 IN SESSION BLOCK 600000"),
        ] {
            let key = format!("{}:{name}", server.key);
            leave_taken(key.clone(), 4 * PATIENCE, late).await;
            until("it is in no session, for its own time", || async {
                let holders = server.info_at(&key).await.holders;
                let holder = holders.first().expect("it stays taken");
                stage::text(holder, "in").is_empty()
                    && u128::from(int(holder, "lease-ms")) <= (4 * PATIENCE).as_millis()
            })
            .await;
            let _: u64 = server.ask_at(&key, "DLOCK.FORCERELEASE KEY").await;
        }
        until("what is over is released", || async { server.owners(&over).await.is_empty() }).await;
        kept.release().await.expect("it was held");
    }

    /// The renewal is under way on a connection that another one has replaced, and no row comes.
    pub async fn a_late_renewal_keeps_nothing_that_stays_taken(server: Server) {
        let told: Arc<std::sync::Mutex<Option<Row>>> = Arc::default();
        let (asked, left, is_left) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (row, sessions, leaves, may_pass) = (told.clone(), asked.clone(), left.clone(), is_left.clone());
        let answer = move |command: &str| {
            if command.contains("DLOCK.RENEW") && command.contains("\r\nIN\r\n") {
                tokio::task::block_in_place(|| {
                    while !may_pass.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
            } else if command.contains("DLOCK.RENEW") {
                leaves.fetch_add(1, Ordering::SeqCst);
            }
            let row = row.lock().expect("no panic").clone().filter(|_| command.contains("SEEN"))?;
            Some(match sessions.fetch_add(1, Ordering::SeqCst) {
                0 => with_rows(command, "moved", &[row]),
                1 => "-READONLY You can't write against a read only replica.\r\n".to_owned(),
                _ => with_rows(command, "", &[]),
            })
        };
        let (locks, _) = locks_by(&server, stage::settings().reply_timeout(LONG), answer).await;
        let _kept = locks.on(format!("{}:kept", server.key)).lock().await.expect("the lock");
        let hold = locks.on(&server.key).lease(4 * LONG).lock().await.expect("the lock");
        let owner = String::from_utf8(hold.owner().to_vec()).expect("a text");
        *told.lock().expect("no panic") = Some((server.key.clone(), owner, hold.token()));
        until("there is another connection", || async { asked.load(Ordering::SeqCst) > 2 }).await;
        hold.release_after(4 * PATIENCE).await.expect("it was held");
        is_left.store(true, Ordering::SeqCst);
        until("it is left once more", || async { left.load(Ordering::SeqCst) == 2 }).await;
        until("it is in no session", || async { stage::text(&server.info().await.holders[0], "in").is_empty() }).await;
        let _: u64 = server.ask("DLOCK.FORCERELEASE KEY").await;
    }

    /// The server renews the hold, and all connections that are open fall silent, again and again.
    pub async fn one_lost_answer_costs_no_short_hold(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings()).expect("good settings");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        for leases in 1..4 {
            await_held_for(&server, leases, stage::LEASE).await;
            control(format!("strand {path}")).await;
        }
        await_held_for(&server, 4, stage::LEASE).await;
        assert!(!hold.is_lost(), "{}", hold.lost().await);
        let _ = hold.release().await; // by a silent connection, and then in the background
        server.await_gone().await;
        control(format!("close {path}")).await;
    }

    /// The future is dropped while nothing comes through, and what it has asked for arrives later.
    pub async fn a_wait_that_is_given_up_at_a_silent_server_leaves_it(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings().lease(2 * PATIENCE)).expect("good settings");
        locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
        control(format!("silence {path}")).await;
        let given_up = tokio::time::timeout(Duration::from_millis(300), locks.on(&server.key).lock()).await;
        assert!(given_up.is_err());
        control(format!("sound {path}")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.await_gone().await;
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        hold.release().await.expect("it was held");
        control(format!("close {path}")).await;
    }

    pub async fn a_hold_that_is_dropped_outside_a_runtime_is_given_back(server: Server) {
        let locks = server.locks_for(LONG * 4);
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        std::thread::spawn(move || drop(hold)).join().expect("no panic");
        server.await_gone().await;
    }

    /// Runs it on a runtime of its own, which ends then.
    async fn elsewhere<T: Send + 'static>(
        kind: fn() -> tokio::runtime::Builder,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let ran = tokio::task::spawn_blocking(move || {
            let runtime = kind().enable_all().build().expect("a runtime");
            runtime.block_on(work)
        });
        ran.await.expect("no panic")
    }

    /// Static locks in two tests, or in a thread for each job: the release is begun on a runtime that ends at once.
    pub async fn a_release_outlives_its_runtime(server: Server) {
        use tokio::runtime::Builder;
        let locks = server.locks_for(LONG * 4);
        for kind in [Builder::new_current_thread, Builder::new_multi_thread] {
            let request = locks.on(&server.key);
            elsewhere(kind, async move { drop(request.lock().await.expect("the lock")) }).await;
            let hold = tokio::time::timeout(LONG, locks.on(&server.key).lock()).await;
            hold.expect("it was given back").expect("the lock").release().await.expect("it was held");
            let request = locks.on(&server.key);
            let given_up = async move {
                let hold = request.lock().await.expect("the lock");
                let mut release = Box::pin(hold.release());
                // Another thread may have read the answer already.
                let _ = poll_fn(|context| Poll::Ready(release.as_mut().poll(context))).await;
            };
            elsewhere(kind, given_up).await;
            let hold = tokio::time::timeout(LONG, locks.on(&server.key).lock()).await;
            hold.expect("it was given back").expect("the lock").release().await.expect("it was held");
        }
    }

    /// As a name that is unknown for a moment: each new connection fails with what is final for a first one.
    pub async fn a_password_that_is_refused_later_ends_nothing(server: Server) {
        let is_refused = Arc::new(AtomicBool::new(false));
        let refuses = is_refused.clone();
        let answer = move |command: &str| match (command.contains("AUTH"), refuses.load(Ordering::SeqCst)) {
            (true, true) => Some("-WRONGPASS invalid username-password pair\r\n".to_owned()),
            (true, false) => Some("+OK\r\n".to_owned()),
            (false, true) if command.contains("DLOCK") => Some(String::new()),
            _ => None,
        };
        let (address, _) = answering(server.addresses(), answer).await;
        let client = Client::open(format!("redis://:word@{address}/")).expect("an address");
        let locks =
            Locks::with_settings(client, stage::settings().lease(LONG * 2).reply_timeout(Duration::from_secs(1)));
        let (locks, other) = (locks.expect("good settings"), format!("{}:other", server.key));
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        server.hold_at(&other, "").await;
        let wait = tokio::spawn(locks.on(&other).lock());
        server.await_queued_at(&other, 1).await;
        is_refused.store(true, Ordering::SeqCst);
        let released = hold.release().await;
        assert!(released.is_err(), "it goes on in the background");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!wait.is_finished(), "{:?}", wait.await);
        is_refused.store(false, Ordering::SeqCst);
        tokio::time::timeout(LONG, server.await_gone()).await.expect("it is given back");
        server.hand_over_at(&other, "other").await;
        let hold = tokio::time::timeout(LONG, wait).await.expect("it ends").expect("no panic").expect("the lock");
        hold.release().await.expect("it was held");
    }

    /// READONLY to fifty calls that are in flight: the first one leads to a new connection, and the others come later.
    pub async fn late_refusals_end_no_new_connection(server: Server) {
        const CALLS: usize = 50;
        let asked = std::sync::Mutex::new(std::collections::HashSet::new());
        let answer = move |command: &str| {
            let key = command.split("\r\n").find(|word| word.contains(":late:"))?;
            let mut asked = asked.lock().expect("no panic");
            let is_new = command.contains("ACQUIRE") && asked.insert(key.to_owned());
            let refusal = format!("-READONLY You can't write against a read only replica.\r\n{PAUSE}");
            is_new.then(|| if asked.len() < CALLS { HUSH.to_owned() } else { refusal.repeat(CALLS) })
        };
        let (address, count) = answering(server.addresses(), answer).await;
        let client = Client::open(format!("redis://{address}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings().lease(LONG)).expect("good settings");
        locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
        let take = |i: usize| tokio::spawn(locks.on(format!("{}:late:{i}", server.key)).lock());
        for task in (0..CALLS).map(take).collect::<Vec<_>>() {
            task.await.expect("no panic").expect("the lock").release().await.expect("it was held");
        }
        // Before and after the refusal: those of the calls, and those of the session.
        let count = count.load(Ordering::SeqCst);
        assert!(count <= 4, "{count} connections");
    }

    /// Each part of the connect is within its bound, and all of them take longer than a call.
    pub async fn a_cluster_that_is_slow_to_connect_is_waited_for(server: Server) {
        let slow = |command: &str| {
            let time = if command.contains("SLOTS") { 1800 } else { 400 * u64::from(command.contains("SETINFO")) };
            std::thread::sleep(Duration::from_millis(time));
            None
        };
        let (address, _) = answering(server.addresses(), slow).await;
        let cluster = Servers::cluster(|| ClusterClient::builder([format!("redis://{address}/")])).expect("an address");
        let settings = stage::settings().lease(LONG).reply_timeout(Duration::from_millis(2500));
        let locks = Locks::with_settings(cluster, settings).expect("good settings");
        let hold = locks.on(&server.key).wait(LONG).lock().await.expect("the lock");
        hold.release().await.expect("it was held");
    }

    /// The clock ran on the runtime that took the lock.
    pub async fn a_loss_is_told_after_the_runtime_that_took_it(server: Server) {
        let path = control(format!("path {}", server.addresses())).await;
        let client = Client::open(format!("redis://{path}/")).expect("an address");
        let locks = Locks::with_settings(client, stage::settings()).expect("good settings");
        let request = locks.on(&server.key);
        let take = async move { request.lock().await.expect("the lock") };
        let hold = elsewhere(tokio::runtime::Builder::new_multi_thread, take).await;
        control(format!("silence {path}")).await;
        tokio::time::timeout(LONG, hold.lost()).await.expect("it is told");
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

    /// A future that nobody polls until the lease is over returns a hold that has ended.
    pub async fn a_grant_that_is_read_late_is_no_hold(server: Server) {
        let locks = server.locks();
        locks.on(&server.key).lock().await.expect("the lock").release().await.expect("it was held");
        let lock = granted_unseen(&server, locks.on(&server.key)).await;
        server.await_gone().await;
        let hold = lock.await.expect("it was granted");
        assert!(hold.left().is_zero());
        await_lost(&hold).await;
        server.await_gone().await;
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

    /// The replica is named first.
    pub async fn a_try_finds_the_primary(server: Server) {
        let replica = server.replica().await;
        let (mut clients, rest): (Vec<_>, Vec<_>) =
            server.clients().into_iter().partition(|client| client.get_connection_info().addr().to_string() == replica);
        clients.extend(rest);
        let locks = Locks::with_settings(clients, stage::settings()).expect("good settings");
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

    /// The program stalls for longer than its lease. The server has renewed the hold meanwhile, and says so.
    pub async fn what_is_still_held_after_a_pause_is_kept(server: Server) {
        let (lease, key, addresses) = (stage::LEASE, server.key.clone(), server.clients());
        // A program with one thread, which stalls.
        let program = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let locks = Locks::with_settings(addresses, stage::settings().lease(lease)).expect("good settings");
                let hold = locks.on(&key).lock().await.expect("the lock");
                let gone = locks.on(format!("{key}:gone")).lock().await.expect("the lock");
                tokio::time::sleep(lease / 2).await; // their session is kept
                let _: Value = hold.guard(cmd("DEL").arg(format!("{key}:gone"))).await.expect("it is held");
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

    /// The server has renewed the term of a candidate that is in doubt of it.
    pub async fn a_campaign_after_a_pause_does_not_wait_for_itself(server: Server) {
        let (key, addresses) = (server.key.clone(), server.clients());
        // A program with one thread, which stalls.
        let program = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let counts = Counts::default();
                let settings = stage::settings().observer(counts.clone());
                let locks = Locks::with_settings(addresses, settings).expect("good settings");
                let election = Election::new(&locks, &key, "me").expect("a name");
                let first = election.campaign(None).await.expect("an answer").expect("the lock");
                tokio::time::sleep(stage::LEASE / 2).await; // its session is kept
                std::thread::sleep(2 * stage::LEASE);
                assert!(!election.is_leader(), "it is not known yet");
                let second = election.campaign(Some(LONG)).await.expect("an answer").expect("it waits for itself");
                assert!(second > first && election.is_leader(), "{second} after {first}");
                election.resign().await.expect("it was held");
                assert_eq!(counts.seen(), [2, 1, 1], "who worked in the first term learns that it is lost");
            });
        });
        tokio::task::spawn_blocking(|| program.join()).await.expect("no panic").expect("no panic");
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
            kept = !stage::text(holder, "in").is_empty() && int(holder, "token") == hold.token() && !hold.is_lost();
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
}
