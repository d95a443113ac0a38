//! Programs that run with a server, such as exporters.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::machine::patience::PATIENCE;
use crate::machine::port;
use crate::machine::process;

/// How often another port is tried if the program ends instead of listening.
const PORT_TRIES: u32 = 5;

/// A program that answers HTTP on a port of its own on the loopback interface, with a directory of its own. It is killed
/// when this value is dropped.
pub struct Daemon {
    child: Child,
    port: u16,
    directory: TempDir,
}

impl Daemon {
    /// Starts the program that `command` makes for a port and a directory, and returns when it listens.
    ///
    /// # Panics
    /// If it does not listen.
    #[track_caller]
    pub fn start(command: impl Fn(u16, &Path) -> Command) -> Daemon {
        let mut log = String::new();
        for _ in 0..PORT_TRIES {
            match Daemon::try_start(&command) {
                Ok(daemon) => return daemon,
                Err(said) => log = said,
            }
        }
        panic!("the program did not start; it said:\n{log}");
    }

    fn try_start(command: impl Fn(u16, &Path) -> Command) -> Result<Daemon, String> {
        let directory = tempfile::Builder::new()
            .prefix("dlock-")
            .tempdir()
            .expect("a directory in the temporary one");
        let port = port::free();
        let mut command = command(port, directory.path());
        let log = File::create(log_of(directory.path())).expect("the log can be written");
        command
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a spare file descriptor"))
            .stderr(log);
        let child = process::spawn(command).expect("the program can be started");
        let mut daemon = Daemon {
            child,
            port,
            directory,
        };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = daemon.child.try_wait().expect("a child can be waited for");
            if ended.is_some() || Instant::now() > end {
                return Err(daemon.log());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Returns the program's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the program's output since its start.
    pub fn log(&self) -> String {
        let bytes = fs::read(log_of(self.directory.path())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a GET of this path. Returns the status and the body.
    ///
    /// # Errors
    /// If no whole answer comes.
    pub fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // In HTTP 1.0 the body ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "--- said by the program on port {}:\n{}",
                self.port,
                self.log()
            );
        }
        // The program may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(directory: &Path) -> PathBuf {
    directory.join("daemon.log")
}
