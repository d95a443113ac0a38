//! `process cluster|nodes ADDRESSES KEY hold`: takes a lock and holds it until it is killed. `process … NAME`: is a candidate, and
//! writes its term by guarded writes as long as it leads. The tests kill them.

use std::time::Duration;

use dlock_redis::{Election, Locks, Servers, Settings};
use redis::cluster::ClusterClient;
use redis::Client;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [place, addresses, key, how] = &words[..] else {
        eprintln!("usage: process cluster|nodes ADDRESSES KEY hold|NAME");
        std::process::exit(2);
    };
    let urls: Vec<String> = addresses.split(',').map(|address| format!("redis://{address}/")).collect();
    let servers = if place == "cluster" {
        Servers::cluster(|| ClusterClient::builder(urls.clone())).expect("addresses")
    } else {
        urls.into_iter().map(|url| Client::open(url).expect("an address")).collect::<Vec<_>>().into()
    };
    let settings = Settings::new().lease(Duration::from_secs(3)).hang_timeout(Duration::from_secs(6));
    let locks = Locks::with_settings(servers, settings).expect("good settings");
    if how != "hold" {
        return lead(&locks, key, how).await;
    }
    let _hold = locks.on(key).lock().await.expect("the lock");
    std::future::pending::<()>().await;
}

async fn lead(locks: &Locks, key: &str, name: &str) {
    let leader = Election::new(locks, key, name).expect("a name");
    loop {
        let Ok(Some(term)) = leader.campaign(None).await else { continue };
        while leader.is_leader() {
            let mut write = redis::cmd("RPUSH");
            write.arg(format!("{key}:log")).arg(format!("{term} {name}"));
            let _ = leader.guard(&write).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
