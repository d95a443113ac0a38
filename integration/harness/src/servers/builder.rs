//! The configuration with which a server starts.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::machine::port;
use crate::servers::program::{module_path, server_program, version_of};
use crate::servers::server::Server;
use crate::servers::version::Version;

/// The configuration with which a server starts. By default it has the module, keeps nothing on disk and belongs to no cluster.
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    program: OsString,
    with_module: bool,
    module: PathBuf,
    module_arguments: Vec<String>,
    settings: Vec<(String, String)>,
    cluster: bool,
    environment: Vec<(String, String)>,
}

/// Why a server did not start.
#[derive(Debug)]
pub struct StartError {
    /// The server's log.
    pub log: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server ended before it was ready; its log:\n{}",
            self.log
        )
    }
}

impl std::error::Error for StartError {}

impl ServerBuilder {
    pub(super) fn new() -> ServerBuilder {
        ServerBuilder {
            program: server_program(),
            with_module: true,
            module: module_path(),
            module_arguments: Vec::new(),
            settings: Vec::new(),
            cluster: false,
            environment: Vec::new(),
        }
    }

    /// Sets another server program than the environment's.
    pub fn program(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// Leaves the module out.
    pub fn without_module(mut self) -> Self {
        self.with_module = false;
        self
    }

    /// Sets another module than the environment's: an earlier version.
    pub fn module(mut self, path: impl Into<PathBuf>) -> Self {
        self.module = path.into();
        self
    }

    /// Adds an argument after the module's path in `loadmodule`; arguments come in pairs (`max-queue`, `10`).
    pub fn module_argument(mut self, argument: impl ToString) -> Self {
        self.module_arguments.push(argument.to_string());
        self
    }

    /// Adds a line of the configuration file: `config("appendonly", "yes")`. Later ones win.
    pub fn config(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets a variable of the server's environment.
    pub fn environment(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Makes the server a cluster node. It serves no slot until [`Server::serve_all_slots`] or the test itself assigns some.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Returns the version of the server program.
    pub fn version(&self) -> Version {
        version_of(&self.program)
    }

    /// Starts the server and returns when it answers.
    ///
    /// # Panics
    /// If the server does not start; the message has its log.
    #[track_caller]
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server and returns when it answers.
    ///
    /// # Errors
    /// If the server ends instead, as it does over a bad configuration.
    #[track_caller]
    pub fn try_start(self) -> Result<Server, StartError> {
        if self.with_module {
            assert!(
                self.module.exists(),
                "there is no module at {}: run `make build`",
                self.module.display()
            );
        }
        Server::launch(self)
    }

    pub(super) fn program_name(&self) -> &OsString {
        &self.program
    }

    pub(super) fn variables(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Returns the configuration file. Settings go through a file, not the command line, so that CONFIG REWRITE works.
    pub(super) fn config_file(&self, port: u16, directory: &Path) -> String {
        let version = version_of(&self.program);
        let mut file = String::new();
        let mut line =
            |name: &str, value: &str| writeln!(file, "{name} {value}").expect("a String takes all");
        line("bind", "127.0.0.1");
        line("port", &port.to_string());
        line("dir", &quoted(directory));
        line("save", "\"\"");
        // An answered write is in the file when the process is killed. With `everysec` it need not be: the server writes without
        // waiting while it syncs an earlier write.
        line("appendfsync", "no");
        // A replica should not wait for others that might want this transfer.
        line("repl-diskless-sync-delay", "0");
        if version.has_redis_api(7, 0) {
            line("enable-module-command", "yes");
            line("enable-debug-command", "yes");
        }
        if self.cluster {
            line("cluster-enabled", "yes");
            // By default it is the port + 10000, which may not be free.
            line("cluster-port", &port::free().to_string());
            line("cluster-node-timeout", "2000");
        }
        if self.with_module {
            let module = self.module.canonicalize();
            let module = module.as_ref().unwrap_or(&self.module);
            line(
                "loadmodule",
                &format!("{} {}", quoted(module), self.module_arguments.join(" ")),
            );
        }
        for (name, value) in &self.settings {
            line(name, if value.is_empty() { "\"\"" } else { value });
        }
        file
    }
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}
