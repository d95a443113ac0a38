//! What a program's unit tests do without a server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_redis::{release_all, Election, Error, FakeLocks};
use redis::{cmd, Value};

#[tokio::test]
async fn a_lock_is_taken_and_given_back() {
    let fake = FakeLocks::new();
    let hold = fake.locks().on("stock").lock().await.expect("the lock");
    assert!(fake.locks().on("stock").try_lock().await.expect("an answer").is_none());
    let timed = fake.locks().on("stock").wait(Duration::from_millis(50)).lock().await;
    assert!(matches!(timed, Err(Error::Timeout { cause: None, .. })), "{timed:?}");
    hold.guard(cmd("SET").arg("left").arg(41)).await.expect("it is held");
    assert_eq!(fake.commands(), [["SET", "left", "41"].map(|word| word.as_bytes().to_vec())]);
    fake.reply_with(|words| Value::BulkString(words[1].clone()));
    let left = hold.guard(cmd("GET").arg("left")).await.expect("it is held");
    assert_eq!(left, Value::BulkString(b"left".to_vec()));
    hold.release().await.expect("it was held");
    assert!(!fake.locks().is_held("stock").await.expect("an answer"));
}

#[tokio::test]
async fn those_who_wait_are_served_in_order() {
    let (fake, order) = (FakeLocks::new(), Arc::new(Mutex::new(Vec::new())));
    let first = fake.locks().on("stock").lock().await.expect("the lock");
    let mut waits = Vec::new();
    for number in 0..5 {
        let (locks, order) = (fake.locks().clone(), order.clone());
        waits.push(tokio::spawn(async move {
            let hold = locks.on("stock").lock().await.expect("the lock");
            order.lock().expect("no panic").push(number);
            hold.release().await.expect("it was held");
        }));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(first);
    for wait in waits {
        wait.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_loss_is_told() {
    let fake = FakeLocks::new();
    let hold = fake.locks().on("stock").lock().await.expect("the lock");
    fake.lose("stock");
    assert_eq!(hold.lost().await, "forced");
    assert!(matches!(hold.guard(cmd("SET").arg("left").arg(40)).await, Err(Error::Fenced(_))));
    assert!(matches!(hold.release().await, Err(Error::NotHeld(_))));
}

#[tokio::test]
async fn semaphores_periods_several_locks_and_leaders() {
    let fake = FakeLocks::new();
    let locks = fake.locks();
    let two = || locks.on("shop").limit(3).permits(2);
    let hold = two().lock().await.expect("the lock");
    assert!(two().try_lock().await.expect("an answer").is_none());
    hold.release_after(Duration::from_millis(300)).await.expect("it was held");
    assert!(two().try_lock().await.expect("an answer").is_none());
    let holds = locks.many(&["shop", "stock"], None).await.expect("the locks");
    assert_eq!(holds.len(), 2);
    release_all(holds).await.expect("they were held");
    let election = Election::new(locks, "office", "me").expect("a name");
    let led = election.lead(|hold| async move { hold.token() }).await.expect("it led");
    assert!(led > 0 && !election.is_leader());
}
