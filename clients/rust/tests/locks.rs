//! The tests that every language has, by the same names: see clients/DESIGN.md.

#[macro_use]
mod stage;

use std::collections::{HashMap, HashSet};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_redis::{release_all, Election, Error, Hold, Locks};
use redis::cmd;
use stage::{control, int, text, until, Cluster, Server, Single, LEASE, LONG, PATIENCE};
use tokio::task::JoinHandle;

tests! {
    counts_to_a_thousand in Single, Cluster;
    wait_longer_than_the_time_out in Single, Cluster;
    cancelled_wait in Single, Cluster;
    cancel_at_the_grant in Single, Cluster;
    killed_waiter in Single, Cluster;
    killed_at_the_grant in Single, Cluster;
    killed_holder in Single, Cluster;
    an_owner_begins_with_host_and_process in Single;
    a_dropped_hold_is_taken_again in Single;
    many_over_several_slots in Single, Cluster;
    a_thousand_waits_in_one_session in Single, Cluster;
    no_two_lead in Single;
}

/// Waits for the lock in a task of its own.
fn start(locks: &Locks, key: &str) -> JoinHandle<Result<Hold, Error>> {
    tokio::spawn(locks.on(key).wait(2 * PATIENCE).lock())
}

async fn end(wait: JoinHandle<Result<Hold, Error>>) -> Hold {
    wait.await.expect("no panic").expect("the lock")
}

/// Another process that wants the lock; killed by SIGKILL.
struct Process(Child);

impl Process {
    fn start(server: &Server, how: &str) -> Process {
        Process::start_at(server, &server.addresses(), how)
    }

    fn start_at(server: &Server, addresses: &str, how: &str) -> Process {
        let target = std::env::var("CARGO_TARGET_DIR").expect("run.sh sets it");
        let mut command = Command::new(format!("{target}/debug/examples/process"));
        let place = if server.place == Cluster { "cluster" } else { "nodes" };
        let child = command.args([place, addresses, &server.key, how]).spawn();
        Process(child.expect("the example is built"))
    }
}

impl Process {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child can be awaited");
    }
}

mod scenes {
    use super::*;

    pub async fn counts_to_a_thousand(server: Server) {
        let (locks, mut node) = (server.locks(), server.node(&server.key).await);
        let count = format!("{}:count", server.key);
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (locks, key, count, mut node) = (locks.clone(), server.key.clone(), count.clone(), node.clone());
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let hold = locks.on(&key).lock().await.expect("the lock");
                        let n: Option<u64> = cmd("GET").arg(&count).query_async(&mut node).await.expect("a number");
                        let more = n.unwrap_or(0) + 1;
                        cmd("SET").arg(&count).arg(more).exec_async(&mut node).await.expect("it is written");
                        hold.release().await.expect("it was held");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        let n: u64 = cmd("GET").arg(&count).query_async(&mut node).await.expect("a number");
        assert_eq!(n, 1000);
        server.await_gone().await;
    }

    pub async fn wait_longer_than_the_time_out(server: Server) {
        let (locks, others) = (server.locks(), server.locks());
        server.hold("").await;
        let first = start(&locks, &server.key);
        server.await_queued(1).await;
        let second = start(&others, &server.key);
        server.await_queued(2).await;
        // The client waits half a lease at most for any reply, and the library 500 ms by default.
        until("it has waited for more than five of them", || async {
            int(&server.info().await.queue[0], "waited-ms") > 5 * 750
        })
        .await;
        let in_line = server.queue().await;
        assert_eq!(server.hand_over("other").await.as_ref(), Some(&in_line[0]));
        let hold = end(first).await;
        assert_eq!(int(&server.info().await.holders[0], "holds"), 1);
        hold.release().await.expect("it was held");
        end(second).await.release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn cancelled_wait(server: Server) {
        let locks = server.locks();
        server.hold("").await;
        let first = start(&locks, &server.key);
        server.await_queued(1).await;
        let second = start(&locks, &server.key);
        server.await_queued(2).await;
        first.abort();
        assert!(first.await.is_err_and(|error| error.is_cancelled()));
        server.await_queued(1).await;
        let next = server.queue().await;
        assert_eq!(server.hand_over("other").await.as_ref(), next.first());
        end(second).await.release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn cancel_at_the_grant(server: Server) {
        let locks = server.locks();
        for i in 0..40 {
            server.hold("").await;
            let wait = start(&locks, &server.key);
            server.await_queued(1).await;
            let release = async {
                server.hand_over("other").await;
            };
            let cancel = async {
                // So that all orders come about.
                tokio::time::sleep(Duration::from_micros(i * 50)).await;
                wait.abort();
            };
            tokio::join!(release, cancel);
            if let Ok(granted) = wait.await {
                granted.expect("the lock").release().await.expect("it was held");
            }
            server.await_gone().await;
        }
    }

    pub async fn killed_waiter(server: Server) {
        let locks = server.locks();
        server.hold("").await;
        let process = Process::start(&server, "hold");
        server.await_queued(1).await;
        let next = start(&locks, &server.key);
        server.await_queued(2).await;
        drop(process);
        until("the server has noticed", || async {
            let queue = server.info().await.queue;
            queue.len() == 1 || text(&queue[0], "kind") == "absent"
        })
        .await;
        server.hand_over("other").await;
        let hold = end(next).await;
        assert!(server.queue().await.is_empty());
        hold.release().await.expect("it was held");
        server.await_gone().await;
    }

    pub async fn killed_at_the_grant(server: Server) {
        let locks = server.locks();
        for delay in [0, 200, 1000] {
            server.hold("").await;
            let process = Process::start(&server, "hold");
            server.await_queued(1).await;
            let next = start(&locks, &server.key);
            server.await_queued(2).await;
            let kill = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(delay));
                drop(process);
            });
            server.hand_over("other").await;
            kill.join().expect("no panic");
            // It had the lock for no longer than its first lease, or its place for no longer than its claim.
            let hold = end(next).await;
            assert!(server.queue().await.is_empty());
            hold.release().await.expect("it was held");
            server.await_gone().await;
        }
    }

    pub async fn killed_holder(server: Server) {
        let (locks, mut messages) = (server.locks(), server.messages().await);
        let process = Process::start(&server, "hold");
        until("it is held and kept", || async {
            server.info().await.holders.first().is_some_and(|holder| int(holder, "alive") == 1)
        })
        .await;
        let token = int(&server.info().await.holders[0], "token");
        let next = start(&locks, &server.key);
        server.await_queued(1).await;
        drop(process);
        assert_eq!(messages.recv().await, Some(format!("expired {token}")));
        end(next).await.release().await.expect("it was held");
        server.await_gone().await;
    }

    /// Waits until it has been held for more than this number of leases, under this token, and the server keeps it.
    async fn await_kept(server: &Server, hold: &Hold, leases: u128) {
        until("leases have passed", || async {
            let info = server.info().await;
            let holder = info.holders.iter().find(|holder| int(holder, "token") == hold.token());
            let holder = holder.expect("it is held under its token");
            u128::from(int(holder, "held-ms")) > leases * LEASE.as_millis() && int(holder, "alive") == 1
        })
        .await;
        assert!(!hold.is_lost());
    }

    /// The server shows host and process.
    pub async fn an_owner_begins_with_host_and_process(server: Server) {
        let locks = server.locks();
        let hold = locks.on(&server.key).actor("me").lock().await.expect("the lock");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let begin = format!("{}/{}/", host.trim(), std::process::id());
        let owner = String::from_utf8(hold.owner().to_vec()).expect("a text");
        assert_eq!(server.owners(&server.key).await, [&*owner]);
        assert!(owner.starts_with(&begin), "{owner}");
        assert_eq!(stage::actor_of(&owner), "me");
        hold.release().await.expect("it was held");
        let hold = locks.on(&server.key).lock().await.expect("the lock");
        assert!(hold.owner().starts_with(begin.as_bytes()), "{hold:?}");
        hold.release().await.expect("it was held");
    }

    /// A release in the background ends no later hold.
    pub async fn a_dropped_hold_is_taken_again(server: Server) {
        let locks = server.locks_for(LONG);
        for _ in 0..200 {
            drop(locks.on(&server.key).wait(LONG).try_lock().await.expect("an answer").expect("it is free"));
        }
        let hold = locks.on(&server.key).actor("me").lock().await.expect("the lock");
        await_kept(&server, &hold, 1).await;
        hold.release().await.expect("it was held");
    }

    pub async fn many_over_several_slots(server: Server) {
        let locks = server.locks();
        let keys: Vec<String> = (0..4).map(|i| format!("{{{i}{}}}", server.key.trim_start_matches('{'))).collect();
        let backwards: Vec<String> = keys.iter().rev().cloned().collect();
        let work = |keys: Vec<String>| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..15 {
                    let holds = locks.many(&keys, None).await.expect("the locks");
                    assert_eq!(holds.len(), 4);
                    release_all(holds).await.expect("they were held");
                }
            })
        };
        let (one, two) = (work(keys.clone()), work(backwards));
        one.await.expect("no panic");
        two.await.expect("no panic");
        let granted: Option<Vec<u64>> = server.ask_at(&keys[2], "DLOCK.ACQUIRE KEY other 600000").await;
        granted.expect("it is free");
        let refused = locks.many(&keys, Some(Duration::from_millis(500))).await;
        assert!(matches!(refused, Err(Error::Timeout { .. })));
        for (key, owners) in keys.iter().zip([vec![], vec![], vec!["other"], vec![]]) {
            until("the others are given back", || async { server.owners(key).await == owners }).await;
        }
    }

    pub async fn a_thousand_waits_in_one_session(server: Server) {
        let locks = server.locks_for(LONG);
        server.hold("").await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..1000 {
            let (locks, key, served) = (locks.clone(), server.key.clone(), served.clone());
            let request = locks.on(&key).actor(format!("{i}"));
            tasks.push(tokio::spawn(async move {
                let hold = request.lock().await.expect("the lock");
                served.lock().expect("no panic").push(i);
                hold.release().await.expect("it was held");
            }));
        }
        server.await_queued(1000).await;
        let queue = server.info().await.queue;
        assert!(queue.iter().all(|place| text(place, "in") == text(&queue[0], "in")));
        let in_line: Vec<u32> =
            queue.iter().map(|place| stage::actor_of(&text(place, "owner")).parse().expect("a number")).collect();
        server.hand_over("other").await;
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(*served.lock().expect("no panic"), in_line);
        server.await_gone().await;
    }

    /// Terms and names, as the leaders have written them.
    async fn written(server: &Server) -> Vec<(u64, String)> {
        let log: Vec<String> = server.ask_at(&format!("{}:log", server.key), "LRANGE KEY 0 -1").await;
        let lines = log.iter().map(|line| line.split_once(' ').expect("two words"));
        lines.map(|(term, name)| (term.parse().expect("a number"), name.to_owned())).collect()
    }

    async fn await_writes(server: &Server, name: &str) {
        let count = || async { written(server).await.iter().filter(|(_, who)| who == name).count() };
        let before = count().await;
        until("it writes", || async { count().await > before }).await;
    }

    /// One leader is killed, one is stopped, one's path is silent, one's is cut.
    pub async fn no_two_lead(server: Server) {
        let address = server.addresses();
        let (silent, cut) = (control(format!("path {address}")).await, control(format!("path {address}")).await);
        let at = [("killed", &address), ("stopped", &address), ("silent", &silent), ("cut", &cut)];
        let mut processes: HashMap<&str, Process> =
            at.into_iter().map(|(name, at)| (name, Process::start_at(&server, at, name))).collect();
        let watcher = Election::new(&server.locks(), &server.key, "watcher").expect("a name");
        let (mut now, mut seen) = (None, HashSet::new());
        while seen.len() < 4 {
            now = tokio::time::timeout(PATIENCE, watcher.observe(&now, Duration::from_millis(20)))
                .await
                .expect("somebody leads")
                .expect("who leads");
            let Some((name, _)) = now.clone().filter(|(name, _)| !seen.contains(name)) else { continue };
            await_writes(&server, &name).await;
            match name.as_str() {
                "stopped" => processes[&*name].signal("-STOP"),
                "silent" => drop(control(format!("silence {silent}")).await),
                "killed" => drop(processes.remove("killed")),
                _ => {
                    // It continues to lead over another connection.
                    control(format!("cut {cut}")).await;
                    await_writes(&server, "cut").await;
                    drop(processes.remove("cut"));
                }
            }
            seen.insert(name);
        }
        // Those that believed to lead find out.
        control(format!("sound {silent}")).await;
        processes["stopped"].signal("-CONT");
        // One of the two may lead on. The other has stepped down, and leads again when the first is killed.
        for _ in 0..2 {
            until("one of them leads", || async {
                watcher.leader().await.expect("who leads").is_some_and(|(name, _)| processes.contains_key(&*name))
            })
            .await;
            let (name, _) = watcher.leader().await.expect("who leads").expect("somebody");
            await_writes(&server, &name).await;
            drop(processes.remove(&*name));
        }
        let (mut last, mut names) = (0, HashMap::new());
        for (term, name) in written(&server).await {
            assert!(term >= last, "term {term} after {last}");
            assert_eq!(names.entry(term).or_insert_with(|| name.clone()), &name);
            last = term;
        }
        assert!(names.len() >= 4, "{names:?}"); // the last that is stopped or silenced may lead on under its term
        control(format!("close {silent}")).await;
        control(format!("close {cut}")).await;
    }
}
