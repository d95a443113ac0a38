//! `process ADDRESSES KEY ephemeral|plain`: takes a lock and holds it until it is killed. `process ADDRESSES KEY NAME`:
//! is a candidate, and writes its term by guarded writes as long as it leads. The tests kill them.

use std::time::Duration;

use dlock_redis::{Election, Locks, Settings};

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [addresses, key, how] = &words[..] else { panic!("three words") };
    let clients = addresses.split(',').map(|address| redis::Client::open(format!("redis://{address}/")).unwrap());
    let clients = clients.collect::<Vec<_>>();
    if how != "ephemeral" && how != "plain" {
        return lead(clients, key, how).await;
    }
    let request = Locks::new(clients).expect("good settings").on(key);
    let request = if how == "ephemeral" { request.ephemeral() } else { request };
    let _hold = request.lock().await.expect("the lock");
    std::future::pending::<()>().await;
}

async fn lead(clients: Vec<redis::Client>, key: &str, name: &str) {
    let settings = Settings::new().lease(Duration::from_secs(3)).hang_timeout(Duration::from_secs(6));
    let leader = Election::new(&Locks::with(clients, settings).expect("good settings"), key, name).expect("a name");
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
