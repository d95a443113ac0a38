//! When and where results were made: one line for every page of them.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::servers::server::Server;

/// When and where results were made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Made {
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
    /// The server's version; of several servers and programs, all versions.
    pub server: String,
    /// The module's version.
    pub module: String,
}

const UNKNOWN: &str = "unknown";

impl Made {
    /// Returns this machine, today, with the environment's server. To be called before the run, for the load.
    pub fn now() -> Made {
        let server = Server::start();
        Made {
            date: said("date", &["-u", "+%F"]),
            cpu: cpu().unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: said("uname", &["-srm"]),
            load: load(),
            server: server.version().to_string(),
            module: server
                .module_version()
                .unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }

    /// Returns the same with other servers and programs.
    pub fn with(self, versions: &[impl AsRef<str>]) -> Made {
        let versions: Vec<&str> = versions.iter().map(AsRef::as_ref).collect();
        Made {
            server: versions.join(", "),
            ..self
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Made {
            date,
            cpu,
            cores,
            kernel,
            load,
            server,
            module,
        } = self;
        write!(
            f,
            "dlock {module}, {date}, {server}, {cpu}, {cores} cores shared by servers and clients, {kernel}"
        )?;
        match load {
            Some(load) => write!(f, ", load before the run {load:.1}"),
            None => Ok(()),
        }
    }
}

fn cpu() -> Option<String> {
    let Ok(text) = fs::read_to_string("/proc/cpuinfo") else {
        return Some(said("sysctl", &["-n", "machdep.cpu.brand_string"]));
    };
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the output of a program.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| UNKNOWN.to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
