//! Sentinels, which watch a primary and promote a replica.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::machine::patience::{await_until, PATIENCE};
use crate::machine::port;
use crate::machine::process;
use crate::servers::program::server_program;
use crate::talk::ask::Ask;
use crate::talk::wire::Wire;

/// The name under which Sentinels watch the primary.
pub const PRIMARY: &str = "locks";

/// A running Sentinel. It is killed when this value is dropped.
pub struct Sentinel {
    port: u16,
    child: Child,
    directory: TempDir,
}

/// The configuration of a Sentinel.
pub struct Watch {
    /// The primary's port.
    pub port: u16,
    /// The number of Sentinels that must find it down.
    pub quorum: usize,
    /// How long it may be silent before a Sentinel finds it down.
    pub down_after_ms: u64,
    /// The server's program, if it is not the environment's.
    pub program: Option<std::ffi::OsString>,
}

impl Sentinel {
    /// Starts a Sentinel and waits until it answers.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn start(watch: &Watch) -> Sentinel {
        let directory = tempfile::Builder::new()
            .prefix("dlock-sentinel-")
            .tempdir()
            .expect("a directory in the temporary one");
        let port = port::free();
        let config = directory.path().join("sentinel.conf");
        let text = format!(
            "bind 127.0.0.1\nport {port}\ndir \"{directory}\"\n\
             sentinel monitor {PRIMARY} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {PRIMARY} {down_after}\n\
             sentinel failover-timeout {PRIMARY} {failover_timeout}\n\
             sentinel parallel-syncs {PRIMARY} 2\n",
            directory = directory.path().display(),
            primary = watch.port,
            quorum = watch.quorum,
            down_after = watch.down_after_ms,
            failover_timeout = 2 * watch.down_after_ms,
        );
        fs::write(&config, text).expect("the directory can be written to");
        let log =
            File::create(directory.path().join("sentinel.log")).expect("the log can be written");
        let program = watch.program.clone().unwrap_or_else(server_program);
        let mut command = Command::new(program);
        command
            .arg(&config)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a spare file descriptor"))
            .stderr(log);
        let child = process::spawn(command).expect("the server's program can be started");
        let sentinel = Sentinel {
            port,
            child,
            directory,
        };
        await_until("the Sentinel answers", PATIENCE, || {
            sentinel.try_connection().is_some()
        });
        sentinel
    }

    fn try_connection(&self) -> Option<Wire> {
        Wire::open(self.port, PATIENCE).ok()
    }

    /// Returns a connection to it.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn connection(&self) -> Wire {
        self.try_connection().expect("the Sentinel answers")
    }

    /// Returns the Sentinel's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the Sentinel's log.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.directory.path().join("sentinel.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the primary's port, as the Sentinel reports it.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn primary(&self) -> u16 {
        let mut connection = self.connection();
        let line = format!("SENTINEL get-master-addr-by-name {PRIMARY}");
        let (_, port): (String, u16) = connection.ask(&line);
        port
    }

    /// Returns the numbers of other Sentinels and of replicas that it knows.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn knows(&self) -> (usize, usize) {
        let mut connection = self.connection();
        let mut count = |what: &str| {
            let all: Vec<redis::Value> = connection.ask(&format!("SENTINEL {what} {PRIMARY}"));
            all.len()
        };
        (count("SENTINELS"), count("REPLICAS"))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
