//! dlock, by the usual Redis library of Rust programs.

use redis::aio::MultiplexedConnection;
use redis::{cmd, Client as Library, Cmd};

use crate::failure::Failure;
use crate::locks::client::{Client, Lifetime, Step};

/// A connection of one client.
pub struct Connection {
    connection: MultiplexedConnection,
    owner: String,
    waits: bool,
    lifetime: Lifetime,
}

impl Connection {
    /// Connects.
    pub async fn open(
        port: u16,
        number: usize,
        waits: bool,
        lifetime: Lifetime,
    ) -> Result<Connection, Failure> {
        let library = Library::open(format!("redis://127.0.0.1:{port}"))?;
        let config = redis::AsyncConnectionConfig::new()
            // A wait may take any time.
            .set_response_timeout(std::time::Duration::from_secs(3_600));
        Ok(Connection {
            connection: library
                .get_multiplexed_async_connection_with_config(&config)
                .await?,
            owner: format!(
                "6f9619ff-8b86-d011-b42d-{:012}:{number}",
                std::process::id()
            ),
            waits,
            lifetime,
        })
    }

    fn request(&self, lock: usize) -> Cmd {
        let mut request = cmd("DLOCK.ACQUIRE");
        request.arg(key(lock)).arg(&self.owner).arg("BLOCK").arg(0);
        if self.lifetime == Lifetime::Short {
            request.arg("EPHEMERAL");
        }
        request
    }
}

impl Client for Connection {
    fn acquire(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let request = self.request(lock);
            if !self.waits {
                let _: (u64, u64) = request.query_async(&mut self.connection).await?;
                return Ok(());
            }
            // Both at once: the second runs when the first has been answered.
            let mut both = redis::pipe();
            both.add_command(request).cmd("WAIT").arg(1).arg(1_000);
            let (_, replicas): ((u64, u64), u64) = both.query_async(&mut self.connection).await?;
            if replicas == 0 {
                return Err("no replica has the grant".into());
            }
            Ok(())
        })
    }

    fn release(&mut self, lock: usize) -> Step<'_> {
        Box::pin(async move {
            let mut request = cmd("DLOCK.RELEASE");
            request.arg(key(lock)).arg(&self.owner);
            let _: u64 = request.query_async(&mut self.connection).await?;
            Ok(())
        })
    }
}

fn key(lock: usize) -> String {
    format!("lock:{lock:06}")
}
