//! What docs/clients.md shows and says of the `redis` crate: its example, and what the library does by itself.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_redis::{release_all, Election, Locks};
use redis::aio::MultiplexedConnection;
use redis::{cmd, AsyncConnectionConfig, Client, RedisResult, Value};

const PATIENCE: Duration = Duration::from_secs(60);

type Outcome = Result<(), Box<dyn Error>>;

fn client() -> Client {
    let address = std::env::var("DLOCK_SINGLE").expect("use `make clients`");
    Client::open(format!("redis://{address}/")).expect("an address")
}

/// A key of its own for each test.
fn key(test: &str) -> String {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{test}:{:x}", time.as_nanos())
}

async fn patient() -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    client().get_multiplexed_async_connection_with_config(&config).await
}

/// Whether the owner waits.
async fn await_queued(connection: &mut MultiplexedConnection, key: &str, owner: &str) -> Outcome {
    let end = Instant::now() + PATIENCE;
    loop {
        let place: Value = cmd("DLOCK.POSITION").arg(key).arg(owner).query_async(connection).await?;
        if place != Value::Nil {
            return Ok(());
        }
        assert!(Instant::now() < end, "{owner} does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn wait(connection: &MultiplexedConnection, key: &str, block_ms: u64) -> impl Future<Output = RedisResult<Value>> {
    let (mut connection, key) = (connection.clone(), key.to_owned());
    async move {
        let mut command = cmd("DLOCK.FAIRACQUIRE");
        command.arg(key).arg("waiter").arg(600_000).arg("BLOCK").arg(block_ms);
        command.query_async(&mut connection).await
    }
}

#[tokio::test]
async fn example() -> Outcome {
    let (stock, left) = (key("example"), key("left"));
    let locks = Locks::new(client())?;
    let hold = locks.on(&stock).wait(Duration::from_secs(5)).lock().await?; // Error::Timeout after 5 s
    let mut set = cmd("SET");
    set.arg(&left).arg(41);
    tokio::select! {
        _ = hold.lost() => println!("somebody else has it now"),
        // Runs only while the lock is held under this token: else Error::Fenced.
        done = hold.guard(&set) => println!("{:?}", done?),
    }
    hold.release().await?;
    if let Some(hold) = locks.on(&stock).shared().try_lock().await? {
        println!("{}", hold.token());
        hold.release().await?;
    }
    release_all(locks.many(&["a", "b"].map(|part| format!("{stock}:{part}")), None).await?).await?;
    let left: u64 = cmd("GET").arg(&left).query_async(&mut patient().await?).await?;
    assert_eq!(left, 41);
    Ok(())
}

#[tokio::test]
async fn a_leader_is_followed_by_the_next() -> Outcome {
    let (office, locks) = (key("office"), Locks::new(client())?);
    let leader = Election::new(&locks, &office, "one")?;
    let term = leader.campaign(None).await?.expect("no time-out");
    assert_eq!(leader.campaign(None).await?, Some(term));
    let next = Arc::new(Election::new(&locks, &office, "one")?); // another one, for all its name
    assert_eq!(next.campaign(Some(Duration::from_secs(1))).await?, None);
    assert!(!next.is_leader() && next.guard(cmd("SET").arg(&office).arg(1)).await.is_err());
    let before = next.leader().await?;
    assert_eq!(before, Some(("one".into(), term)));
    let follows = tokio::spawn({
        let next = next.clone();
        async move { next.campaign(None).await }
    });
    leader.guard(cmd("SET").arg(format!("{office}:x")).arg(1)).await?;
    tokio::join!(leader.lost(), async { leader.resign().await.expect("it led") });
    assert!(!leader.is_leader() && leader.term().is_none());
    let then = follows.await??.expect("no time-out");
    assert!(next.is_leader() && then > term);
    let seen = leader.observe(&before, Duration::from_millis(10)).await?;
    assert_eq!(seen, Some(("one".into(), then)));
    let _: Value = cmd("DLOCK.FORCERELEASE").arg(&office).query_async(&mut patient().await?).await?;
    next.lost().await;
    next.resign().await?;
    Ok(())
}

/// Work under a term, whose next term begins when the work is done, or is dropped with it.
#[tokio::test]
async fn work_ends_with_the_term() -> Outcome {
    let (office, locks) = (key("work"), Locks::new(client())?);
    let leader = Arc::new(Election::new(&locks, &office, "one")?);
    let data = format!("{office}:x");
    leader.lead(|hold| async move { hold.guard(cmd("SET").arg(data).arg(1)).await }).await??;
    assert_eq!(leader.leader().await?, None);
    let leads = tokio::spawn({
        let leader = leader.clone();
        async move { leader.lead(|_| std::future::pending::<()>()).await }
    });
    let end = Instant::now() + PATIENCE;
    while !leader.is_leader() {
        assert!(Instant::now() < end, "it does not lead");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _: Value = cmd("DLOCK.FORCERELEASE").arg(&office).query_async(&mut patient().await?).await?;
    let ended = leads.await?;
    assert!(matches!(ended, Err(dlock_redis::Error::NotHeld(_))), "{ended:?}");
    let given_up =
        tokio::time::timeout(Duration::from_millis(300), leader.lead(|_| std::future::pending::<()>())).await;
    assert!(given_up.is_err() && !leader.is_leader());
    Ok(())
}

/// The library gives up on the reply by itself; the connection stays open, and the lock is granted to nobody.
#[tokio::test]
async fn time_out_leaves_an_orphan() -> Outcome {
    let (key, mut other) = (key("orphan"), patient().await?);
    let _: Value = cmd("DLOCK.ACQUIRE").arg(&key).arg("holder").arg(600_000).query_async(&mut other).await?;
    // A connection that is kept, as a program keeps its one.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_millis(500)));
    let shared = client().get_multiplexed_async_connection_with_config(&config).await?;
    assert!(wait(&shared, &key, 60_000).await.is_err_and(|error| error.is_timeout()));
    await_queued(&mut other, &key, "waiter").await?;
    let _: Value = cmd("DLOCK.RELEASE").arg(&key).arg("holder").query_async(&mut other).await?;
    let orphan: Value = cmd("DLOCK.HELD").arg(&key).arg("waiter").query_async(&mut other).await?;
    assert_ne!(orphan, Value::Nil);
    drop(shared);
    Ok(())
}

/// Everything behind a wait waits too, the holder's release included.
#[tokio::test]
async fn wait_holds_up_the_connection() -> Outcome {
    let (key, mut shared) = (key("shared"), patient().await?);
    let _: Value = cmd("DLOCK.ACQUIRE").arg(&key).arg("holder").arg(600_000).query_async(&mut shared).await?;
    let waits = tokio::spawn(wait(&shared, &key, 3000));
    await_queued(&mut patient().await?, &key, "waiter").await?;
    let released: u64 = cmd("DLOCK.RELEASE").arg(&key).arg("holder").query_async(&mut shared).await?;
    assert_eq!(released, 0);
    assert_eq!(waits.await??, Value::Nil, "the time was up before the release was read");
    Ok(())
}
