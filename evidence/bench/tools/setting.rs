//! How a server keeps what it does.

use std::rc::Rc;

use dlock_integration::{Server, ServerBuilder};

/// How a server keeps what it does.
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
    /// The server that is measured.
    pub server: Rc<Server>,
    _replica: Option<Server>,
}

impl Stage {
    /// A server that is there already.
    pub fn of(server: &Rc<Server>) -> Stage {
        Stage {
            server: Rc::clone(server),
            _replica: None,
        }
    }
}

impl Setting {
    /// Starts what it takes.
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
        // A rewrite in the middle of a sample would be paid by whoever is measured just then.
        .config("auto-aof-rewrite-percentage", "0")
}
