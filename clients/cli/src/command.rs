//! The command that works under a lock: where it is, and the last steps of a new process before it becomes the command.

use crate::out::tell;
use crate::terminal::Terminal;
use crate::{LOST, USAGE};
use nix::errno::Errno;
use nix::unistd::{access, getpgrp, AccessFlags};
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where programs are without `PATH`.
const PATH: &str = "/bin:/usr/bin";

/// The shell that runs scripts without `#!`.
const SHELL: &str = "/bin/sh";

/// Returns the file of such a program, which exec would find. So a job that cannot run fails before it waits for a lock.
///
/// # Errors
/// There is none, or it may not be run.
pub(crate) fn find(program: &str) -> io::Result<PathBuf> {
    if program.contains('/') {
        return is_executable(Path::new(program)).map(|()| program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for directory in env::split_paths(&path) {
        let directory = match directory.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => directory,
        };
        let file = directory.join(program);
        match is_executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => why = error,
            Err(_) => {}
        }
    }
    Err(why)
}

fn is_executable(file: &Path) -> io::Result<()> {
    if file.metadata()?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    access(file, AccessFlags::X_OK).map_err(io::Error::from)
}

/// The exit code where a command cannot be run.
pub(crate) fn code_of(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// In a new process, which leads a process group: takes the terminal if it is meant to, dies with its parent, then is the command.
/// Returns only if that cannot be run.
pub(crate) fn replace(parent: i32, foreground: bool, words: &[String]) -> u8 {
    #[cfg(target_os = "linux")]
    // Should the parent be killed, it could not say so.
    if let Err(error) = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL) {
        tell!("the command would outlive this process: {error}");
    }
    if nix::unistd::getppid().as_raw() != parent {
        return LOST;
    }
    if let (true, Some(terminal)) = (foreground, Terminal::open()) {
        terminal.give(getpgrp());
    }
    let [program, rest @ ..] = words else {
        return USAGE;
    };
    let mut error = Command::new(program).args(rest).exec();
    // A script without `#!`: execvp(3) has the shell run it, but not in every libc.
    if error.raw_os_error() == Some(Errno::ENOEXEC as i32) {
        if let Ok(file) = find(program) {
            error = Command::new(SHELL).arg(file).args(rest).exec();
        }
    }
    tell!("{program}: {error}");
    code_of(&error)
}
