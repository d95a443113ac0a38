//! `process ADDRESS KEY session|plain`: takes a lock and holds it until it is killed. The tests kill it.

use dlock_redis::Locks;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [addresses, key, how] = &words[..] else { panic!("three words") };
    let clients = addresses.split(',').map(|address| redis::Client::open(format!("redis://{address}/")).unwrap());
    let request = Locks::new(clients.collect::<Vec<_>>()).expect("good settings").on(key);
    let request = if how == "session" { request.session() } else { request };
    let _hold = request.lock().await.expect("the lock");
    std::future::pending::<()>().await;
}
