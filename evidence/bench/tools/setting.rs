//! Where a server stores its data.

use std::rc::Rc;

use dlock_harness::{Server, ServerBuilder};

/// Where a server stores its data.
#[derive(Clone, Copy)]
pub enum Setting {
    /// In memory only.
    Memory,
    /// In an append-only file that reaches the disk within a second.
    AofEverysec,
    /// In an append-only file that reaches the disk before the reply leaves.
    AofAlways,
    /// On a replica too.
    Replica,
}

/// A server, and its replica if it has one.
pub struct Stage {
    /// The measured server.
    pub server: Rc<Server>,
    _replica: Option<Server>,
}

impl Stage {
    /// Wraps a running server.
    pub fn of(server: &Rc<Server>) -> Stage {
        Stage {
            server: Rc::clone(server),
            _replica: None,
        }
    }
}

impl Setting {
    /// Starts the server, and its replica if it has one.
    pub fn start(self) -> Stage {
        let server = match self {
            Setting::Memory | Setting::Replica => Server::builder(),
            Setting::AofEverysec => with_aof("everysec"),
            Setting::AofAlways => with_aof("always"),
        };
        let server = server.start();
        let replica = matches!(self, Setting::Replica).then(|| {
            let replica = Server::start();
            replica.replica_of(&server);
            replica
        });
        Stage {
            server: Rc::new(server),
            _replica: replica,
        }
    }
}

fn with_aof(fsync: &str) -> ServerBuilder {
    Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", fsync)
        // A rewrite in the middle of a sample would burden the way that is measured then.
        .config("auto-aof-rewrite-percentage", "0")
}
