//! A process of a service, with a directory of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::spawn;
use nix::sys::signal::{kill, Signal};
use nix::unistd::{chown, Pid, Uid, User};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::machine::disk;
use crate::machine::tree;

/// How long a service may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed, and whose directory is removed, when this value is dropped.
pub struct Node {
    child: Child,
    port: u16,
    directory: TempDir,
}

/// Makes a directory for a node.
pub fn directory() -> Result<TempDir, Failure> {
    Ok(tempfile::Builder::new().prefix("dlock-peer-").tempdir()?)
}

/// Returns the first of these users that exists, for programs that refuse to be root; none if we are not root ourselves.
pub fn somebody_else(names: &[&str]) -> Result<Option<User>, Failure> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in names {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    Err(format!("there is none of these users: {}", names.join(", ")).into())
}

/// Gives a directory to that user.
pub fn give(directory: &Path, user: Option<&User>) -> Result<(), Failure> {
    match user {
        Some(user) => Ok(chown(directory, Some(user.uid), Some(user.gid))?),
        None => Ok(()),
    }
}

/// Returns a command that runs as that user.
pub fn command(words: &[String], user: Option<&User>) -> Result<Command, Failure> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    Ok(command)
}

impl Node {
    /// Starts a command; it listens on that port when it is ready (see [`Node::await_port`]).
    pub fn start(
        words: &[String],
        slowed: bool,
        user: Option<&User>,
        port: u16,
        directory: TempDir,
    ) -> Result<Node, Failure> {
        let words = if slowed {
            disk::slowed(words)
        } else {
            words.to_vec()
        };
        let log = File::create(log_of(directory.path()))?;
        let mut command = command(&words, user)?;
        command
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Node {
            child: spawn(command)?,
            port,
            directory,
        })
    }

    /// Waits until the node listens on its port.
    pub fn await_port(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > end {
                let log = fs::read(log_of(self.directory.path())).unwrap_or_default();
                return Err(format!("it did not start: {}", String::from_utf8_lossy(&log)).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Also kills its children: they would notice only later.
        for pid in tree::of(&[self.child.id()]).into_iter().rev() {
            if let Ok(pid) = i32::try_from(pid) {
                // It may have ended by itself.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }
}

fn log_of(directory: &Path) -> PathBuf {
    directory.join("node.log")
}
