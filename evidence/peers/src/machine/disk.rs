//! How long the machine needs to sync a small write to the disk, and a way to extend that.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The time that a run adds to each `fsync` and `fdatasync` of a server.
pub const ADDED: Duration = Duration::from_millis(1);

/// Returns the median time to write 4 KiB to a file and sync them to the disk.
pub fn sync_time() -> Result<Duration, Failure> {
    let mut file = tempfile::tempfile()?;
    file.write_all(&[0; 4096])?;
    let mut times: Vec<Duration> = (0..200).map(|_| one(&file)).collect::<Result<_, _>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn one(file: &File) -> Result<Duration, Failure> {
    let start = Instant::now();
    file.write_all_at(&[1; 4096], 0)?;
    file.sync_data()?;
    Ok(start.elapsed())
}

/// Returns the command with [`ADDED`] in each of its syncs. The tracer is no parent: the server's process id is that of the
/// command, and the tracer ends with it. Other system calls are not stopped.
pub fn slowed(command: &[String]) -> Vec<String> {
    let tracer = [
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-qqq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync,fdatasync",
        "-e",
    ];
    let injection = format!("inject=fsync,fdatasync:delay_exit={}", ADDED.as_micros());
    let tracer = tracer.map(str::to_owned).into_iter();
    tracer
        .chain([injection])
        .chain(command.iter().cloned())
        .collect()
}

/// Returns true if this machine allows it.
pub fn can_slow() -> bool {
    let command = slowed(&["true".to_owned()]);
    let (program, arguments) = command.split_first().expect("a program");
    Command::new(program)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
