//! ZooKeeper's recipe: an ephemeral sequential node for each request, and each watches the one before its own.

use std::collections::HashMap;
use std::time::Duration;

use zookeeper_client::{Acls, Client as Library, CreateMode, LockOptions, LockPrefix};

use crate::failure::Failure;
use crate::locks::client::{Client, Lifetime, Step};

/// The default of its own command line, and the shortest that a server grants by default (two ticks).
const TIMEOUT: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(4));

/// A session of one client.
pub struct Session {
    library: Library,
    nodes: HashMap<usize, String>,
}

impl Session {
    /// Connects.
    pub async fn open(port: u16, lifetime: Lifetime) -> Result<Session, Failure> {
        let timeout = match lifetime {
            Lifetime::Default => TIMEOUT.0,
            Lifetime::Short => TIMEOUT.1,
        };
        let connector = Library::connector().with_session_timeout(timeout);
        Ok(Session {
            library: connector.connect(&format!("127.0.0.1:{port}")).await?,
            nodes: HashMap::new(),
        })
    }

    async fn take(&mut self, lock: usize) -> Result<(), Failure> {
        let directory = format!("/lock-{lock:06}");
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
        let prefix = LockPrefix::new_curator(&directory, "lock-")?;
        let held = self.library.lock(prefix, b"", options).await?;
        self.nodes.insert(lock, held.lock_path().to_owned());
        // Dropping it would delete the node in the background, at an unknown time.
        std::mem::forget(held);
        Ok(())
    }
}

impl Client for Session {
    fn acquire(&mut self, lock: usize) -> Step<'_> {
        Box::pin(self.take(lock))
    }

    fn release(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let node = self.nodes.remove(&lock).ok_or("the lock is not held")?;
            Ok(self.library.delete(&node, None).await?)
        })
    }
}
