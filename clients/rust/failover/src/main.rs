// SPDX-License-Identifier: MIT
//! One client in a run of failovers. It keeps ten locks and takes turns on others while primaries come and go. It prints when it
//! has each lock, frees it and loses it, by the machine's monotonic clock. It ends with its input.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use dlock_redis::{release_all, Hold, Locks, Servers, Settings};
use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelServerType};
use rustix::time::{clock_gettime, ClockId};
use tokio::sync::watch::{channel, Receiver};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long the end may wait for one thing.
const BOUND: Duration = Duration::from_secs(1);

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn connect() -> Result<Locks, Box<dyn Error>> {
    let lease = Duration::from_millis(var("DLOCK_LEASE_MS").parse()?);
    let settings = Settings::new().lease(lease).hang_timeout(Duration::from_secs(20));
    let urls = |addresses: String| addresses.split(',').map(|one| format!("redis://{one}/")).collect::<Vec<_>>();
    let servers: Servers = if let Ok(sentinels) = std::env::var("DLOCK_SENTINELS") {
        SentinelClient::build(urls(sentinels), "locks".to_owned(), None, SentinelServerType::Master)?.into()
    } else {
        let nodes = urls(var("DLOCK_CLUSTER"));
        Servers::cluster(|| ClusterClient::builder(nodes.clone()))?
    };
    Ok(Locks::with_settings(servers, settings)?)
}

/// Writes the line at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads it");
}

/// Says what has happened to a hold, and when.
fn tell(what: &str, hold: &Hold) {
    let time = clock_gettime(ClockId::Monotonic);
    let micros = time.tv_sec * 1_000_000 + time.tv_nsec / 1000;
    say(&format!("{what} {} {} {micros}", String::from_utf8_lossy(hold.key()), hold.token()));
}

/// Prints the error, and pauses.
async fn complain(key: &str, error: dlock_redis::Error) {
    eprintln!("{key}: {}", error.to_string().replace('\n', "; "));
    sleep(Duration::from_millis(100)).await;
}

/// Works for that time, or until the hold is lost.
async fn work(hold: &Hold, time: Duration) {
    if let Ok(reason) = timeout(time, hold.lost()).await {
        tell("lost", hold);
        eprintln!("{hold:?}: {reason}");
    }
}

async fn take(locks: &Locks, key: &str) -> Hold {
    loop {
        match locks.on(key).lock().await {
            Ok(hold) => return hold,
            Err(error) => complain(key, error).await,
        }
    }
}

/// Takes one lock after the other, works under it, and releases it, until the end. `next` says which one, for how long, and the
/// pause after it.
async fn turns(locks: Locks, mut end: Receiver<()>, next: impl Fn() -> (String, Duration, Duration)) {
    loop {
        let (key, time, pause) = next();
        let hold = tokio::select! {
            _ = end.changed() => return,
            hold = take(&locks, &key) => hold,
        };
        tell("have", &hold);
        work(&hold, time).await;
        tell("free", &hold);
        if let Err(error) = hold.release().await {
            complain(&key, error).await;
        }
        sleep(pause).await;
    }
}

/// Holds it until the end. Returns what is held then.
async fn keep(hold: Hold, mut end: Receiver<()>) -> Option<Hold> {
    tokio::select! {
        biased;
        reason = hold.lost() => {
            tell("lost", &hold);
            eprintln!("{hold:?}: {reason}");
            None
        }
        _ = end.changed() => {
            say(&format!("kept {} {}", String::from_utf8_lossy(hold.key()), hold.token()));
            Some(hold)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (locks, tag) = (connect()?, var("DLOCK_TAG"));
    let (running, end) = channel(()); // the end is that the first one is dropped
    let mut kept = JoinSet::new();
    for at in 0..10 {
        kept.spawn(keep(take(&locks, &format!("{{{tag}}}kept:rust:{at}")).await, end.clone()));
    }
    say("ready");
    let mut workers = JoinSet::new();
    for _ in 0..2 {
        let tag = tag.clone();
        workers.spawn(turns(locks.clone(), end.clone(), move || {
            let time = Duration::from_micros(rand::random_range(5_000..15_000));
            (format!("{{{tag}}}turn:{}", rand::random_range(0..3)), time, Duration::ZERO)
        }));
    }
    workers.spawn(turns(locks.clone(), end.clone(), move || {
        (format!("{{{tag}}}own:rust"), Duration::from_millis(5), Duration::from_millis(20))
    }));

    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await?; // nothing is read
    drop(running);
    let held = kept.join_all().await.into_iter().flatten().collect();
    let _ = timeout(BOUND, async { while workers.join_next().await.is_some() {} }).await;
    workers.shutdown().await;
    say("end");
    let _ = timeout(BOUND, release_all(held)).await;
    std::process::exit(0); // whether or not a server has answered
}
