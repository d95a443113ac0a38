//! The processes of this machine, as `/proc` has them; none where there is no `/proc`.

use nix::unistd::{getpid, Pid};
use std::collections::BTreeSet;
use std::fs;

/// One process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub pid: Pid,
    pub parent: Pid,
    pub group: Pid,
}

/// Returns all processes.
pub(crate) fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?))
}

/// Returns the parent of a process.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    read(pid.as_raw()).map(|process| process.parent)
}

/// Returns all processes below this one.
pub(crate) fn below() -> BTreeSet<Pid> {
    let all: Vec<Process> = all().collect();
    let (mut below, mut count) = (BTreeSet::from([getpid()]), 0);
    while below.len() > count {
        count = below.len();
        let more = all.iter().filter(|process| below.contains(&process.parent));
        let more: Vec<Pid> = more.map(|process| process.pid).collect();
        below.extend(more);
    }
    below.remove(&getpid());
    below
}

fn read(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have blanks and parentheses of its own.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(1);
    let mut number = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
    Some(Process {
        pid: Pid::from_raw(pid),
        parent: number()?,
        group: number()?,
    })
}

/// Returns whether this process was started with a signal ignored, as by `nohup`.
pub(crate) fn ignores(signal: i32) -> bool {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
