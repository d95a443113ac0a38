//! etcd: its own lock, and the steps of that lock with another watch.
//!
//! etcd's lock orders keys by their revision, and each client waits for the deletion of the one before its own. Its own code
//! begins to watch at the revision at which it read the keys. That one is in the past already, so the server takes the watcher
//! for one that lags, and serves those only ten times a second. A watch that begins at the *next* revision misses nothing, and is
//! notified at once.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{
    Client as Library, Compare, CompareOp, EventType, GetOptions, LockOptions, PutOptions,
    SortOrder, SortTarget, Txn, TxnOp, WatchOptions,
};

use crate::failure::Failure;
use crate::locks::client::{Client, Lifetime, Step};

/// The lifetime of etcd's own sessions (Go's `concurrency.NewSession`), and the shortest that a server grants, in seconds.
const TTL_S: (i64, i64) = (60, 2);

/// Connects, with a lease that is kept alive as long as this process lives.
async fn connect(port: u16, lifetime: Lifetime) -> Result<(Library, i64), Failure> {
    let mut library = Library::connect([format!("127.0.0.1:{port}")], None).await?;
    let ttl_s = match lifetime {
        Lifetime::Default => TTL_S.0,
        Lifetime::Short => TTL_S.1,
    };
    let lease = library.lease_grant(ttl_s, None).await?.id();
    let (mut keeper, mut answers) = library.lease_keep_alive(lease).await?;
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(ttl_s as u64) / 3);
        loop {
            ticks.tick().await;
            if keeper.keep_alive().await.is_err() || answers.message().await.is_err() {
                return;
            }
        }
    });
    Ok((library, lease))
}

fn name(lock: usize) -> String {
    format!("lock:{lock:06}")
}

/// The service's own lock: one request, and the server does the rest.
pub struct Recipe {
    library: Library,
    lease: i64,
    keys: HashMap<usize, Vec<u8>>,
}

impl Recipe {
    /// Connects.
    pub async fn open(port: u16, lifetime: Lifetime) -> Result<Recipe, Failure> {
        let (library, lease) = connect(port, lifetime).await?;
        Ok(Recipe {
            library,
            lease,
            keys: HashMap::new(),
        })
    }
}

impl Client for Recipe {
    fn acquire(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let options = LockOptions::new().with_lease(self.lease);
            let answer = self.library.lock(name(lock), Some(options)).await?;
            self.keys.insert(lock, answer.key().to_vec());
            Ok(())
        })
    }

    fn release(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let key = self.keys.remove(&lock).ok_or("the lock is not held")?;
            self.library.unlock(key).await?;
            Ok(())
        })
    }
}

/// The steps of the lock, taken by the client.
pub struct Watching {
    library: Library,
    lease: i64,
}

impl Watching {
    /// Connects.
    pub async fn open(port: u16, lifetime: Lifetime) -> Result<Watching, Failure> {
        let (library, lease) = connect(port, lifetime).await?;
        Ok(Watching { library, lease })
    }

    fn key(&self, lock: usize) -> String {
        format!("{}/{:x}", name(lock), self.lease)
    }

    async fn wait(&mut self, lock: usize) -> Result<(), Failure> {
        let key = self.key(lock);
        let is_new = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(
            key.as_str(),
            "",
            Some(PutOptions::new().with_lease(self.lease)),
        );
        let answer = self
            .library
            .txn(Txn::new().when([is_new]).and_then([put]))
            .await?;
        if !answer.succeeded() {
            return Err("the lock is held by this client".into());
        }
        let mine = answer.header().ok_or("no header")?.revision();
        loop {
            let last_before = GetOptions::new()
                .with_prefix()
                .with_keys_only()
                .with_limit(1)
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_max_create_revision(mine - 1);
            let prefix = format!("{}/", name(lock));
            let answer = self.library.get(prefix, Some(last_before)).await?;
            let Some(before) = answer.kvs().first() else {
                return Ok(());
            };
            let next = answer.header().ok_or("no header")?.revision() + 1;
            let options = WatchOptions::new().with_start_revision(next);
            let mut events = self.library.watch(before.key(), Some(options)).await?;
            loop {
                let message = events.message().await?.ok_or("the watch has ended")?;
                let mut events = message.events().iter();
                if events.any(|event| event.event_type() == EventType::Delete) {
                    break;
                }
            }
        }
    }
}

impl Client for Watching {
    fn acquire(&mut self, lock: usize) -> Step<'_> {
        Box::pin(self.wait(lock))
    }

    fn release(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let answer = self.library.delete(self.key(lock), None).await?;
            match answer.deleted() {
                1 => Ok(()),
                _ => Err("the lock was not held".into()),
            }
        })
    }
}
