//! A client of any service.

use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;

use crate::failure::Failure;
use crate::locks::{dlock, etcd, postgres, zookeeper};

/// A step of a client.
pub type Step<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Takes locks, waiting as long as necessary, and releases them.
pub trait Client: Send {
    /// Takes the lock of this number.
    fn acquire(&mut self, lock: usize) -> Step<'_>;
    /// Releases the lock of this number.
    fn release(&mut self, lock: usize) -> Step<'_>;
}

/// How a client's death is detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// The default.
    Default,
    /// The shortest sensible setting.
    Short,
}

/// A client: a command line passes it to the process that is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The service, and the way to use it.
    pub kind: Kind,
    /// The port of its first node.
    pub port: u16,
}

/// The service, and the way to use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// This module.
    Dlock,
    /// This module, with a server that answers when a replica has the grant (`dlock.replicas`).
    DlockReplicas,
    /// This module, and `WAIT 1` after each grant.
    DlockWait,
    /// Advisory locks.
    Postgres,
    /// The service's own lock.
    EtcdRecipe,
    /// The steps of the service's own lock, by the client, with the watch at the next revision.
    EtcdWatch,
    /// Ephemeral sequential nodes.
    ZooKeeper,
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Dlock, "dlock"),
    (Kind::DlockReplicas, "dlock-replicas"),
    (Kind::DlockWait, "dlock-wait"),
    (Kind::Postgres, "postgres"),
    (Kind::EtcdRecipe, "etcd-recipe"),
    (Kind::EtcdWatch, "etcd-watch"),
    (Kind::ZooKeeper, "zookeeper"),
];

impl Address {
    /// Connects a client.
    pub async fn connect(
        self,
        number: usize,
        lifetime: Lifetime,
    ) -> Result<Box<dyn Client>, Failure> {
        let Address { kind, port } = self;
        Ok(match kind {
            Kind::Dlock | Kind::DlockReplicas => {
                Box::new(dlock::Connection::open(port, number, false, lifetime).await?)
            }
            Kind::DlockWait => {
                Box::new(dlock::Connection::open(port, number, true, lifetime).await?)
            }
            Kind::Postgres => Box::new(postgres::Connection::open(port).await?),
            Kind::EtcdRecipe => Box::new(etcd::Recipe::open(port, lifetime).await?),
            Kind::EtcdWatch => Box::new(etcd::Watching::open(port, lifetime).await?),
            Kind::ZooKeeper => Box::new(zookeeper::Session::open(port, lifetime).await?),
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind);
        write!(f, "{}:{}", name.map_or("", |(_, name)| name), self.port)
    }
}

impl FromStr for Address {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Address, Failure> {
        let (name, port) = text.split_once(':').ok_or("an address is KIND:PORT")?;
        let kind = KINDS.iter().find(|(_, known)| *known == name);
        Ok(Address {
            kind: kind.ok_or("no such kind of client")?.0,
            port: port.parse()?,
        })
    }
}
