//! A lock over three masters that know nothing of each other.

mod stage;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_redis::{Error, Quorum, QuorumHold, Settings};
use redis::{cmd, Client, Value};
use stage::{connect, control, until, Server, Single, LEASE, PATIENCE};

/// A quorum of the three masters by paths, so that each can die or fall silent alone.
struct Masters {
    key: String,
    straight: Vec<Client>,
    paths: Vec<String>,
}

fn run<F: std::future::Future<Output = ()>>(test: impl FnOnce(Masters) -> F) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let addresses = std::env::var("DLOCK_MASTERS").expect("use `make clients`");
        let (mut paths, mut straight) = (Vec::new(), Vec::new());
        for address in addresses.split(',') {
            paths.push(control(format!("path {address}")).await);
            straight.push(Client::open(format!("redis://{address}/")).expect("an address"));
        }
        let masters = Masters { key: Server::new(Single).key, straight, paths: paths.clone() };
        test(masters).await;
        for path in paths {
            control(format!("close {path}")).await;
        }
    });
}

impl Masters {
    /// A loaded machine answers in its own time.
    fn quorum(&self) -> Quorum {
        self.quorum_within(Duration::from_secs(5))
    }

    fn quorum_within(&self, bound: Duration) -> Quorum {
        let clients = self.paths.iter().map(|path| Client::open(format!("redis://{path}/")).expect("an address"));
        let settings = Settings::new().lease(2 * LEASE).hang_timeout(Duration::from_secs(30)).reply_timeout(bound);
        Quorum::with_settings(clients.collect(), settings).expect("good settings")
    }

    /// Takes the lock at all of them. On a busy machine one may answer too late.
    async fn lock_everywhere(&self) -> QuorumHold {
        let quorum = self.quorum();
        for _ in 0..10 {
            let hold = quorum.lock(&self.key, PATIENCE).await.expect("the lock");
            if (0..3).all(|at| hold.at(at).is_some()) {
                return hold;
            }
            hold.release().await.expect("it was held");
        }
        panic!("one master does not vote");
    }

    async fn ask<T: redis::FromRedisValue>(&self, master: usize, words: &str) -> T {
        let mut connection = connect(&self.straight[master]).await.expect("it is there");
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(if word == "KEY" { &self.key } else { word });
        }
        command.query_async(&mut connection).await.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    async fn is_free(&self, master: usize) -> bool {
        self.ask::<Value>(master, "DLOCK.INFO KEY").await == Value::Nil
    }

    async fn await_gone(&self) {
        for master in 0..3 {
            until("it is gone", || self.is_free(master)).await;
        }
    }

    async fn await_waits(&self, master: usize, count: usize) {
        until("so many wait", || async {
            let queue: Value = self.ask(master, "DLOCK.INFO KEY").await;
            format!("{queue:?}").matches("waited-ms").count() == count
        })
        .await;
    }

    async fn do_to(&self, what: &str, master: usize) {
        control(format!("{what} {}", self.paths[master])).await;
    }
}

/// The first is dead, or the second does not answer.
#[test]
fn quorum_a_majority_is_enough() {
    for (what, master) in [("close", 0), ("silence", 1), ("silence", 0)] {
        run(|masters| async move {
            let quorum = masters.quorum_within(Duration::from_secs(1));
            masters.do_to(what, master).await;
            let hold = quorum.lock(&masters.key, PATIENCE).await.expect("a majority");
            for at in 0..3 {
                assert_eq!(hold.at(at).is_none(), at == master);
            }
            assert!(!hold.is_lost() && hold.left() < 2 * LEASE);
            hold.release().await.expect("it was held");
            if what == "silence" {
                masters.do_to("sound", master).await;
            }
            masters.await_gone().await;
        });
    }
}

/// Two are dead; or another owner holds the lock at two.
#[test]
fn quorum_a_minority_is_not() {
    run(|masters| async move {
        let quorum = masters.quorum();
        masters.do_to("close", 0).await;
        masters.do_to("close", 2).await;
        let refused = quorum.lock(&masters.key, Duration::from_millis(500)).await;
        assert!(matches!(&refused, Err(Error::Unreachable(text)) if text.contains(';')), "{refused:?}");
        masters.await_gone().await;
    });
    run(|masters| async move {
        for master in [1, 2] {
            let _: Value = masters.ask(master, "DLOCK.ACQUIRE KEY other 600000").await;
        }
        let quorum = masters.quorum();
        assert!(quorum.try_lock(&masters.key, Duration::from_millis(500)).await.expect("an answer").is_none());
        assert!(matches!(quorum.lock(&masters.key, Duration::ZERO).await, Err(Error::Timeout { .. })));
        until("nothing is left at the first", || masters.is_free(0)).await;
        for master in [1, 2] {
            let _: Value = masters.ask(master, "DLOCK.RELEASE KEY other").await;
        }
        masters.await_gone().await;
    });
}

#[test]
fn quorum_waits_in_one_queue() {
    run(|masters| async move {
        let quorum = masters.quorum();
        let hold = quorum.lock(&masters.key, PATIENCE).await.expect("the lock");
        let (order, mut waits) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for i in 0..4 {
            let (quorum, key, order) = (quorum.clone(), masters.key.clone(), order.clone());
            waits.push(tokio::spawn(async move {
                let hold = quorum.lock(&key, PATIENCE).await.expect("the lock");
                assert!((0..3).all(|at| hold.at(at).is_some()), "all vote");
                order.lock().expect("no panic").push(i);
                hold.release().await.expect("it was held");
            }));
            masters.await_waits(0, i + 1).await;
        }
        masters.await_waits(1, 0).await;
        hold.release().await.expect("it was held");
        for wait in waits {
            wait.await.expect("no panic");
        }
        assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3]);
        masters.await_gone().await;
    });
}

#[test]
fn quorum_is_kept_and_notices_the_loss() {
    run(|masters| async move {
        let hold = masters.lock_everywhere().await;
        until("it outlasts three leases at all", || async {
            let mut outlasts = true;
            for master in 0..3 {
                let info: std::collections::HashMap<String, Value> =
                    masters.ask(master, "DLOCK.INFO KEY COUNT 9").await;
                let holders: Vec<stage::Entry> =
                    redis::FromRedisValue::from_redis_value(info["holders"].clone()).expect("an array of maps");
                outlasts &= u128::from(stage::int(&holders[0], "held-ms")) > 3 * LEASE.as_millis();
            }
            outlasts
        })
        .await;
        let mut write = cmd("SET");
        write.arg(format!("{}:x", masters.key)).arg(1);
        let _: u64 = masters.ask(1, "DLOCK.FORCERELEASE KEY").await;
        until("it is told", || async { hold.at(1).is_some_and(dlock_redis::Hold::is_lost) }).await;
        assert!(!hold.is_lost(), "two are enough");
        let _: u64 = masters.ask(2, "DLOCK.FORCERELEASE KEY").await;
        tokio::time::timeout(PATIENCE, hold.lost()).await.expect("it is told");
        assert!(hold.is_lost());
        let refused = hold.at(2).expect("it voted").guard(&write).await;
        assert!(matches!(refused, Err(Error::Fenced(_))), "{refused:?}");
        hold.at(0).expect("it voted").guard(&write).await.expect("it is held there");
        assert!(matches!(hold.release().await, Err(Error::NotHeld(_))));
        masters.await_gone().await;
    });
}

#[test]
fn quorum_is_left_when_cancelled() {
    run(|masters| async move {
        let quorum = masters.quorum();
        let hold = quorum.lock(&masters.key, PATIENCE).await.expect("the lock");
        let start = || {
            let (quorum, key) = (quorum.clone(), masters.key.clone());
            tokio::spawn(async move { quorum.lock(&key, PATIENCE).await })
        };
        let cancelled = start();
        masters.await_waits(0, 1).await;
        let next = start();
        masters.await_waits(0, 2).await;
        cancelled.abort();
        masters.await_waits(0, 1).await;
        drop(hold);
        next.await.expect("no panic").expect("the lock").release().await.expect("it was held");
        masters.await_gone().await;
    });
}

/// A master does not answer in time, and continues later: it grants the request to nobody.
#[test]
fn quorum_gives_back_where_nobody_answered() {
    run(|masters| async move {
        let quorum = masters.quorum_within(Duration::from_millis(500));
        drop(quorum.lock(&masters.key, PATIENCE).await.expect("the lock")); // all are connected
        masters.await_gone().await;
        masters.do_to("silence", 0).await;
        masters.do_to("close", 1).await;
        let refused = quorum.lock(&masters.key, Duration::from_millis(1)).await;
        assert!(refused.is_err(), "{refused:?}");
        masters.do_to("sound", 0).await;
        masters.await_gone().await;
    });
}

/// Were it asked first again, the whole wait would be spent on it.
#[test]
fn quorum_asks_the_silent_one_last() {
    run(|masters| async move {
        let bound = Duration::from_millis(800);
        let quorum = masters.quorum_within(bound);
        masters.do_to("silence", 0).await;
        let mut passed_over = false;
        for _ in 0..5 {
            quorum.lock(&masters.key, PATIENCE).await.expect("a majority").release().await.expect("it was held");
            let began = std::time::Instant::now();
            quorum.lock(&masters.key, PATIENCE).await.expect("a majority").release().await.expect("it was held");
            // A busy machine may let the moment pass.
            passed_over |= began.elapsed() < bound;
        }
        assert!(passed_over);
        masters.do_to("sound", 0).await;
    });
}
