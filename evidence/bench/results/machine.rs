//! The machine of a run.

use std::fs;
use std::process::Command;
use std::thread;

use dlock_integration::Server;
use serde::{Deserialize, Serialize};

/// The machine and the programs of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The day, in UTC.
    #[serde(default)]
    pub date: String,
    /// Model of the processor.
    pub cpu: String,
    /// The number of processors that this process may use.
    pub cores: usize,
    /// Operating system.
    pub kernel: String,
    /// The number of processes that wanted to run just before, averaged over a minute, if known. With more than a few tenths the
    /// machine was busy with something else.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load: Option<f64>,
    /// The server's version.
    pub server: String,
    /// The module's version.
    pub module: String,
}

const UNKNOWN: &str = "unknown";

impl Machine {
    /// Returns this machine.
    pub fn this() -> Machine {
        let server = Server::start();
        Machine {
            date: output("date", &["-u", "+%F"]).unwrap_or_else(|| UNKNOWN.to_owned()),
            cpu: cpu().unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: output("uname", &["-sr"]).unwrap_or_else(|| UNKNOWN.to_owned()),
            load: load(),
            server: server.version().to_string(),
            module: server
                .module_version()
                .unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }
}

fn cpu() -> Option<String> {
    let Ok(text) = fs::read_to_string("/proc/cpuinfo") else {
        return output("sysctl", &["-n", "machdep.cpu.brand_string"]);
    };
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
