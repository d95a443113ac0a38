// SPDX-License-Identifier: MIT
//! Where the locks are, and how one gets there: all of it by the redis crate's own means.

#[cfg(feature = "sentinel")]
use std::sync::Arc;

#[cfg(feature = "sentinel")]
use futures_util::future::BoxFuture;
#[cfg(feature = "sentinel")]
use redis::RedisResult;
use redis::{Client, ConnectionAddr, ConnectionInfo};

use crate::error::{Error, Result};
#[cfg(feature = "sentinel")]
use crate::link::ANOTHER;

/// Where the locks are. From a [`redis::Client`] (its URL says TLS, user, password, database), from several of them
/// (nodes of a cluster, or a primary and its replicas), or from a `redis::sentinel::SentinelClient`.
#[derive(Clone)]
pub struct Servers(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Seeds(Vec<Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<tokio::sync::Mutex<redis::sentinel::SentinelClient>>),
}

impl From<Client> for Servers {
    fn from(client: Client) -> Servers {
        Servers(Kind::Seeds(vec![client]))
    }
}

impl From<Vec<Client>> for Servers {
    fn from(clients: Vec<Client>) -> Servers {
        Servers(Kind::Seeds(clients))
    }
}

#[cfg(feature = "sentinel")]
impl From<redis::sentinel::SentinelClient> for Servers {
    fn from(client: redis::sentinel::SentinelClient) -> Servers {
        Servers(Kind::Sentinel(Arc::new(tokio::sync::Mutex::new(client))))
    }
}

impl Servers {
    pub(crate) fn checked(self) -> Result<Servers> {
        match &self.0 {
            Kind::Seeds(seeds) if seeds.is_empty() => Err(Error::invalid("servers", "must have at least one client")),
            _ => Ok(self),
        }
    }

    /// Returns the names of the nodes that the program has named.
    pub(crate) fn seeds(&self) -> Vec<String> {
        match &self.0 {
            Kind::Seeds(seeds) => seeds.iter().map(|seed| seed.get_connection_info().addr().to_string()).collect(),
            #[cfg(feature = "sentinel")]
            Kind::Sentinel(_) => vec!["the primary".into()],
        }
    }

    /// Returns how one connects to that node.
    pub(crate) async fn find(&self, name: &str) -> Result<ConnectionInfo> {
        let (client, named) = match &self.0 {
            Kind::Seeds(seeds) => {
                let same = seeds.iter().find(|seed| seed.get_connection_info().addr().to_string() == name);
                let seed =
                    same.or_else(|| seeds.first()).ok_or_else(|| Error::invalid("servers", "must not be empty"))?;
                (seed.clone(), same.is_some())
            }
            // Bounded: one that hangs keeps the others waiting. Boxed: its queries are so deep that a program's own futures would
            // be too deep for the compiler.
            #[cfg(feature = "sentinel")]
            Kind::Sentinel(sentinel) => {
                let asked: BoxFuture<'_, RedisResult<Client>> =
                    Box::pin(async { sentinel.lock().await.async_get_client().await });
                let client = tokio::time::timeout(2 * ANOTHER, asked).await.map_err(|_| Error::silent())??;
                (client, true)
            }
        };
        let info = client.get_connection_info().clone();
        let mut addr = info.addr().clone();
        if let (false, Some((to, at))) = (named, name.rsplit_once(':')) {
            match &mut addr {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    (*host, *port) = (to.to_owned(), at.parse().unwrap_or(*port));
                }
                _ => {}
            }
        }
        Ok(info.set_addr(addr))
    }
}

/// The cluster's slot of a key: CRC-16 of the first non-empty `{…}` in it, or of all of it.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % 16384
}
