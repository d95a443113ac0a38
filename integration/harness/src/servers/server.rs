//! A running server, its end and its restart.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use redis::Value;
use tempfile::TempDir;

use crate::machine::patience::{await_until, PATIENCE};
use crate::machine::port;
use crate::machine::process;
use crate::servers::builder::{ServerBuilder, StartError};
use crate::servers::program::version_of;
use crate::servers::version::Version;
use crate::talk::ask::Ask;
use crate::talk::info::Info;
use crate::talk::wire::Wire;

/// How often another port is tried if a port that was free a moment ago is taken.
const PORT_TRIES: u32 = 10;

/// The number of last log lines that a failed test prints.
const LOG_LINES: usize = 200;

/// A server of this test alone. It is killed when this value is dropped.
pub struct Server {
    builder: ServerBuilder,
    port: u16,
    directory: TempDir,
    child: Option<Child>,
    /// The harness' own connection, for INFO. Opened at its first use.
    observer: Mutex<Option<Wire>>,
}

/// The result of a start.
enum Launch {
    Ready,
    PortTaken,
    Ended,
}

impl Server {
    /// Returns a builder; [`ServerBuilder::start`] starts the server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }

    /// Starts a server with the module and the default configuration.
    #[track_caller]
    pub fn start() -> Server {
        Server::builder().start()
    }

    pub(super) fn launch(builder: ServerBuilder) -> Result<Server, StartError> {
        let directory = tempfile::Builder::new()
            .prefix("dlock-")
            .tempdir()
            .expect("a directory in the temporary one");
        let mut server = Server {
            builder,
            port: 0,
            directory,
            child: None,
            observer: Mutex::new(None),
        };
        for _ in 0..PORT_TRIES {
            server.port = port::free();
            let config = server.builder.config_file(server.port, server.dir());
            fs::write(server.config_path(), config).expect("the directory can be written to");
            match server.spawn() {
                Launch::Ready => return Ok(server),
                Launch::PortTaken => {}
                Launch::Ended => break,
            }
        }
        Err(StartError { log: server.log() })
    }

    /// Starts the program and waits until it is ready or has ended.
    fn spawn(&mut self) -> Launch {
        let logged_before = self.log().len();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the log can be written");
        let mut command = Command::new(self.builder.program_name());
        command
            .arg(self.config_path())
            .current_dir(self.dir())
            .envs(self.builder.variables().iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a spare file descriptor"))
            .stderr(log);
        let child = process::spawn(command).expect("the server's program can be started");
        self.child = Some(child);
        self.forget_observer();
        let end = Instant::now() + PATIENCE;
        loop {
            if self.has_ended() {
                self.child = None;
                let log = self.log();
                let taken = log
                    .get(logged_before..)
                    .is_some_and(|log| log.contains("Address already in use"));
                return if taken {
                    Launch::PortTaken
                } else {
                    Launch::Ended
                };
            }
            if self.is_ready() {
                return Launch::Ready;
            }
            assert!(
                Instant::now() < end,
                "the server was not ready within {PATIENCE:?}; its log:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child
                .try_wait()
                .expect("a child can be waited for")
                .is_some(),
            None => true,
        }
    }

    /// Returns true if the server has loaded its data and is our child: while our child fails to get a port, another server on
    /// that port may answer.
    fn is_ready(&self) -> bool {
        let Ok(mut connection) = Wire::open(self.port, PATIENCE) else {
            return false;
        };
        let Ok(text) = redis::cmd("INFO").query::<String>(&mut connection) else {
            return false;
        };
        let info = Info::parse(&text);
        info.get("process_id") == Some(&self.pid().to_string()) && info.get("loading") == Some("0")
    }

    /// Opens a connection that speaks RESP2. A read that takes longer than [`PATIENCE`] fails.
    #[track_caller]
    pub fn connection(&self) -> Wire {
        match Wire::open(self.port, PATIENCE) {
            Ok(connection) => connection,
            Err(error) => panic!("cannot connect to port {}: {error}", self.port),
        }
    }

    /// Opens a connection that speaks RESP3.
    #[track_caller]
    pub fn connection_resp3(&self) -> Wire {
        self.greeted("HELLO 3")
    }

    /// Opens a connection to a database other than 0.
    #[track_caller]
    pub fn connection_in(&self, db: i64) -> Wire {
        self.greeted(&format!("SELECT {db}"))
    }

    /// Opens a connection of a user other than the default one.
    #[track_caller]
    pub fn connection_as(&self, user: &str, password: &str) -> Wire {
        self.greeted(&format!("AUTH {user} {password}"))
    }

    #[track_caller]
    fn greeted(&self, words: &str) -> Wire {
        let mut connection = self.connection();
        connection.run(words);
        connection
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the id of its process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Returns its working directory, where its files are.
    pub fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// Returns its configuration file. Changes take effect at the next [`restart`](Server::restart).
    pub fn config_path(&self) -> PathBuf {
        self.dir().join("server.conf")
    }

    /// Returns the file to which it appends its effects, if it has an AOF. Of several the newest: an older one may not have been
    /// removed yet.
    ///
    /// # Panics
    /// If it has none.
    #[track_caller]
    pub fn aof(&self) -> PathBuf {
        let files = fs::read_dir(self.dir().join("appendonlydir")).expect("it has an AOF");
        let paths = files.map(|file| file.expect("a file").path());
        let is_appended = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
        let newest = paths.filter(is_appended).max();
        newest.expect("a file that is written to")
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    /// Returns its log since its first start.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns its version, as the program prints it.
    pub fn version(&self) -> Version {
        version_of(self.builder.program_name())
    }

    /// Returns the version of the dlock that it has loaded, if any. It may have other modules as well.
    pub fn module_version(&self) -> Option<String> {
        let modules: Vec<Vec<Value>> = self.connection().ask("MODULE LIST");
        let name = Value::BulkString(b"dlock".to_vec());
        let ours = modules.iter().find(|module| module.contains(&name))?;
        let number = ours.iter().find_map(|value| match value {
            Value::Int(number) => Some(*number),
            _ => None,
        })?;
        // A development build has the digits of its commit; src/version.rs says where.
        if number >> 30 == 1 {
            let (major, minor) = (number >> 26 & 0xf, number >> 20 & 0x3f);
            return Some(format!("{major}.{minor}.0-dev+{:05x}", number & 0xf_ffff));
        }
        // Three parts, of which the last two have two digits: 1.2.3 is 10203.
        let (major, minor, patch) = (number / 10_000, number / 100 % 100, number % 100);
        Some(format!("{major}.{minor}.{patch}"))
    }

    /// Returns a section of INFO.
    #[track_caller]
    pub fn info(&self, section: &str) -> Info {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = observer.take().unwrap_or_else(|| self.connection());
        let text: String = connection.ask(&format!("INFO {section}"));
        *observer = Some(connection);
        Info::parse(&text)
    }

    fn forget_observer(&self) {
        *self.observer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits until exactly `count` clients are blocked, by whatever command.
    #[track_caller]
    pub fn await_blocked_clients(&self, count: usize) {
        await_until(&format!("{count} clients are blocked"), PATIENCE, || {
            self.info("clients").number::<usize>("blocked_clients") == count
        });
    }

    /// Waits until no client has this id.
    #[track_caller]
    pub fn await_client_gone(&self, id: u64) {
        let mut connection = self.connection();
        let line = format!("CLIENT LIST ID {id}");
        await_until("the client is gone", PATIENCE, || {
            connection.ask::<String>(&line).is_empty()
        });
    }

    /// Rewrites the AOF, and waits until it is written.
    #[track_caller]
    pub fn rewrite_aof(&self) {
        self.connection().run("BGREWRITEAOF");
        self.await_aof();
    }

    /// Waits until no rewrite of the AOF is due or under way, and the last one has succeeded.
    #[track_caller]
    pub fn await_aof(&self) {
        await_until("the AOF is written", PATIENCE, || {
            let state = self.info("persistence");
            state.number::<u64>("aof_rewrite_in_progress") == 0
                && state.number::<u64>("aof_rewrite_scheduled") == 0
                && state.text("aof_last_bgrewrite_status") == "ok"
        });
    }

    /// Kills the server as a power cut would: it neither saves nor says anything.
    pub fn kill9(&mut self) {
        self.forget_observer();
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Ends the server by SHUTDOWN, which saves as configured.
    ///
    /// # Panics
    /// If it refuses or takes too long.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        let mut connection = self.connection();
        // It answers only to refuse; otherwise the connection ends.
        if let Ok(reply) =
            redis::ConnectionLike::req_command(&mut connection, &redis::cmd("SHUTDOWN"))
        {
            panic!("SHUTDOWN was refused: {reply:?}");
        }
        self.await_exit()
    }

    /// Returns true if its process runs, even frozen.
    pub fn is_running(&mut self) -> bool {
        !self.has_ended()
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it still runs after [`PATIENCE`].
    #[track_caller]
    pub fn await_exit(&mut self) -> ExitStatus {
        self.forget_observer();
        let child = self.child.as_mut().expect("the server runs");
        let mut status = None;
        await_until("the server has ended", PATIENCE, || {
            status = child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        self.child = None;
        status.expect("the loop ended because of it")
    }

    /// Starts the server again in its directory, on its port, with its configuration file; stops it before if it still runs. Its
    /// earlier connections are dead.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn restart(&mut self) {
        if self.child.is_some() {
            self.stop();
        }
        await_until("the port is free again", PATIENCE, || match self.spawn() {
            Launch::Ready => true,
            Launch::PortTaken => false,
            Launch::Ended => panic!("the server did not come up again; its log:\n{}", self.log()),
        });
    }

    /// Stops the process without ending it, like a machine that hangs. [`thaw`](Server::thaw) resumes it.
    #[track_caller]
    pub fn freeze(&self) {
        process::stop(self.nix_pid());
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(self.nix_pid(), signal).expect("a child can be signalled");
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.pid()).expect("a process id is an i32"))
    }

    /// Makes the server a replica of `primary` and waits until it has all of the primary's data.
    #[track_caller]
    pub fn replica_of(&self, primary: &Server) {
        self.connection()
            .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
        self.wait_in_sync(primary);
    }

    /// Waits until the link to `primary` is up and no data is under way.
    #[track_caller]
    pub fn wait_in_sync(&self, primary: &Server) {
        await_until("the replica is in sync", PATIENCE, || {
            let ours = self.info("replication");
            ours.get("master_link_status") == Some("up")
                && ours.get("master_port") == Some(&primary.port.to_string())
                && ours.get("slave_repl_offset")
                    == primary.info("replication").get("master_repl_offset")
        });
    }

    /// Makes a replica a primary.
    #[track_caller]
    pub fn promote(&self) {
        self.connection().run("REPLICAOF NO ONE");
    }

    /// Returns the port of a cluster node for other nodes.
    pub fn bus_port(&self) -> u16 {
        let file = fs::read_to_string(self.config_path()).expect("the file is there");
        let mut lines = file.lines();
        let port = lines.find_map(|line| line.strip_prefix("cluster-port "));
        let port = port.and_then(|port| port.parse().ok());
        port.expect("the harness chose a port")
    }

    /// Makes a single cluster node serve all slots, and waits until it does.
    #[track_caller]
    pub fn serve_all_slots(&self) {
        let mut connection = self.connection();
        connection.run("CLUSTER ADDSLOTSRANGE 0 16383");
        await_until("the cluster is up", PATIENCE, || {
            connection
                .ask::<String>("CLUSTER INFO")
                .contains("cluster_state:ok")
        });
        self.trust_other_nodes();
    }

    /// Keeps a cluster node from declaring others dead that are slow because the machine is loaded. It starts with a short
    /// time-out, since it waits for that time before it serves.
    #[track_caller]
    pub fn trust_other_nodes(&self) {
        self.connection()
            .run("CONFIG SET cluster-node-timeout 120000");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!(
                "--- end of the log of the server on port {} ---\n{}\n---",
                self.port,
                tail.join("\n")
            );
        }
    }
}
