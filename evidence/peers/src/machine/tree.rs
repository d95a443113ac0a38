//! The resources of processes and all their children, as the kernel reports them, so that no service accounts for itself.

use std::collections::HashMap;
use std::fs;

use nix::unistd::{sysconf, SysconfVar};

/// Returns these processes and all their descendants.
pub fn of(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(parent) = field(pid, 4) {
            children.entry(parent as u32).or_default().push(pid);
        }
    }
    let mut all = roots.to_vec();
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    all
}

/// Returns the microseconds of processor time that they have used so far, in user and in kernel mode, including ended children.
pub fn cpu_us(roots: &[u32]) -> f64 {
    let ticks_per_s = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let ticks: u64 = of(roots)
        .into_iter()
        .map(|pid| {
            (14..=17)
                .filter_map(|number| field(pid, number))
                .sum::<u64>()
        })
        .sum();
    ticks as f64 * 1e6 / ticks_per_s as f64
}

/// Returns their bytes of memory, with each shared page counted in parts.
pub fn memory(roots: &[u32]) -> f64 {
    let kilobytes = of(roots).into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find(|line| line.starts_with("Pss:"))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    });
    kilobytes.sum::<f64>() * 1024.0
}

/// Returns a field of `/proc/PID/stat`, counted from 1. The second is a name in brackets, which may contain anything.
fn field(pid: u32, number: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = text.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(number - 3)?.parse().ok()
}
