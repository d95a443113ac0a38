//! The servers of a cell: their configuration, and what is observed of them.

use std::time::Duration;

use dlock_evidence::group::Node;
use dlock_harness::{until, ServerBuilder};

use crate::client::{log_of, LEASE_MS};
use crate::control::Planted;
use crate::history::{Applied, Left, Log};
use crate::run::Plan;
use crate::setting::NOTHING;

/// How long a failover or a move may take, and how long the servers may take afterwards to agree again.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The gauges that must be zero after all clients have ended.
const GAUGES: [&str; 7] = [
    "dlock_locks",
    "dlock_holders",
    "dlock_places_queued",
    "dlock_connections_waiting",
    "dlock_ephemeral",
    "dlock_auto_renewed",
    "dlock_sessions",
];

/// Configures a server of this cell.
pub fn configured(plan: &Plan, builder: ServerBuilder) -> ServerBuilder {
    let setting = match plan.planted {
        Some(Planted::NoSetting) => NOTHING,
        _ => plan.setting,
    };
    let builder = builder.program(&plan.program).config("hz", 50);
    setting.apply(builder, plan.replicas)
}

/// Ends the quarantine of the start, which is not measured. On all servers: a promoted one has its own from its start on where
/// replicas confirm answers.
pub fn end_quarantine(plan: &Plan, nodes: &[Node]) {
    if !plan.setting.confirms {
        set_quarantine(nodes, 0);
    }
    set_quarantine(nodes, plan.setting.quarantine_ms);
    // It must last beyond a restart.
    for node in nodes {
        node.say("CONFIG REWRITE");
    }
}

pub fn set_quarantine(nodes: &[Node], ms: u64) {
    for node in nodes {
        node.say(&format!("CONFIG SET dlock.quarantine-ms {ms}"));
    }
}

/// Returns the list written under a lock, if it can be read.
pub fn log(node: &Node, lock: &str) -> Option<Log> {
    Some(Log {
        lock: lock.into(),
        tokens: node.ask(&format!("LRANGE {} 0 -1", log_of(lock)))?,
    })
}

/// Returns a server's settings; `None` if it does not answer.
pub fn applied(node: &Node) -> Option<Applied> {
    let number = |name: &str| -> Option<u64> {
        let (_, value): (String, u64) = node.ask(&format!("CONFIG GET {name}"))?;
        Some(value)
    };
    Some(Applied {
        server: node.door.port().to_string(),
        to_write: number("min-replicas-to-write")?,
        max_lag: number("min-replicas-max-lag")?,
        quarantine_ms: number("dlock.quarantine-ms")?,
        replicas: number("dlock.replicas")?,
    })
}

/// Returns the servers' counts after all clients have ended. The leases of forgotten holds run out meanwhile.
pub fn gauges(nodes: &[Node]) -> Vec<Left> {
    let look = || -> Vec<Left> {
        let mut all = Vec::new();
        for node in nodes {
            let name = node.server.port().to_string();
            match node.info("dlock") {
                Some(info) => all.extend(GAUGES.map(|gauge| Left {
                    server: name.clone(),
                    gauge: gauge.into(),
                    value: info.number(gauge),
                })),
                None => all.push(Left {
                    server: name,
                    gauge: "does not answer".into(),
                    value: 1,
                }),
            }
        }
        all
    };
    let mut left = look();
    until(Duration::from_millis(3 * LEASE_MS), || {
        left = look();
        left.iter().all(|left| left.value == 0)
    });
    left
}

/// Returns the servers that ended by themselves, or logged an internal fault.
pub fn died(nodes: &mut [Node]) -> Vec<String> {
    let mut died = Vec::new();
    for node in nodes {
        let log = node.server.log();
        let mark = ["BUG REPORT", "panicked", "ASSERTION FAILED"]
            .into_iter()
            .find(|mark| log.contains(mark));
        if let Some(mark) = mark {
            died.push(format!("{} ({mark})", node.server.port()));
        } else if !node.server.is_running() {
            died.push(node.server.port().to_string());
        }
    }
    died
}
