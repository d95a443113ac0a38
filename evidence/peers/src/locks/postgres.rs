//! PostgreSQL's advisory locks of a session.

use tokio_postgres::{Client as Library, NoTls, Statement};

use crate::failure::Failure;
use crate::locks::client::{Client, Step};

/// The user and the database.
pub const USER: &str = "postgres";

/// A connection of one client.
pub struct Connection {
    library: Library,
    lock: Statement,
    unlock: Statement,
}

impl Connection {
    /// Connects, and prepares both statements.
    pub async fn open(port: u16) -> Result<Connection, Failure> {
        let options = format!("host=127.0.0.1 port={port} user={USER} dbname={USER}");
        let (library, connection) = tokio_postgres::connect(&options, NoTls).await?;
        // It ends with the client.
        tokio::spawn(connection);
        let lock = library.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = library.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Connection {
            library,
            lock,
            unlock,
        })
    }
}

impl Client for Connection {
    fn acquire(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            self.library
                .query_one(&self.lock, &[&(lock as i64)])
                .await?;
            Ok(())
        })
    }

    fn release(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let row = self
                .library
                .query_one(&self.unlock, &[&(lock as i64)])
                .await?;
            match row.get(0) {
                true => Ok(()),
                false => Err("the lock was not held".into()),
            }
        })
    }
}
