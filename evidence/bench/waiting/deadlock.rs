//! The search for deadlocks: the cost of a long chain of owners, and its share of every wait.

use std::rc::Rc;

use dlock_harness::{Ask, Grant, Queued, Server, Wire};

use crate::failure::Failure;
use crate::tools::errand::{owners, Errand, Errands};
use crate::tools::line::Line;
use crate::tools::meter::Meter;
use crate::waiting::session::{Listener, QUEUED};
use crate::way::{way, Figure, Named, Opened, Way};

/// Owners in the chain, each of whom waits for the next one.
const CHAIN: usize = 1_000;

/// Owners in a chain that is longer than the bound of one search.
const LONG_CHAIN: usize = 60_000;

/// The number of searches in a sample.
const LOOKS: usize = 100;

/// The number of owners that wait in turn.
const OWNERS: usize = 1_000;

const LEASE_MS: u64 = 86_400_000;

/// Opens all chains.
pub fn open_chain() -> Opened {
    Ok(vec![
        way(
            "a circle of 1,000 owners, refused",
            Chain::new(CHAIN, true)?,
        ),
        way(
            "a chain of 1,000 owners, let wait",
            Chain::new(CHAIN, false)?,
        ),
        way(
            "a chain of 60,000 owners, let wait",
            Chain::new(LONG_CHAIN, false)?,
        ),
    ])
}

/// A chain: owner n holds lock n and waits for lock n + 1, and the last one waits for nothing.
///
/// All of them wait in a session: so none of them can act but the last one.
struct Chain {
    owners: usize,
    closed: bool,
    connection: Wire,
    server: Server,
    // It keeps the session of their waits.
    _listener: Listener,
}

impl Chain {
    fn new(owners: usize, closed: bool) -> Result<Chain, Failure> {
        let server = Server::start();
        let mut connection = server.connection();
        if owners == CHAIN {
            // The search must reach the end of the chain.
            connection.run("CONFIG SET dlock.deadlock-max-steps 1000000");
        }
        let listener = Listener::new(&server, "chain");
        let mut line = Line::wide(server.port())?;
        line.run_each(owners, "*2\r\n:#\r\n:1\r\n", |number| {
            format!("DLOCK.ACQUIRE chain:{number} {number} {LEASE_MS}")
        })?;
        // Owner 0 is not yet in the chain that it would close, or begin.
        line.run_each(owners - 2, QUEUED, |number| wait(number + 1, number + 2))?;
        let _: Queued = connection.ask(&wait(owners, 0));
        if closed {
            let _: Queued = connection.ask(&wait(0, 1));
        }
        Ok(Chain {
            owners,
            closed,
            connection,
            server,
            _listener: listener,
        })
    }

    /// Sends a request whose search follows the whole chain.
    fn look(&mut self) -> Result<(), Failure> {
        if self.closed {
            let refusal = self.connection.refusal(&wait(self.owners - 1, 0));
            if !refusal.starts_with("DEADLOCK") {
                return Err(refusal.into());
            }
        } else {
            let (granted, ..): Queued = self.connection.ask(&wait(0, 1));
            if granted != 0 {
                return Err("it was granted, not queued".into());
            }
            self.connection.run("DLOCK.CANCEL chain:1 0");
        }
        Ok(())
    }
}

/// Returns the request of an owner that must wait for a lock.
fn wait(owner: usize, lock: usize) -> String {
    format!("DLOCK.ACQUIRE chain:{lock} {owner} {LEASE_MS} BLOCK 0 IN bench")
}

impl Way for Chain {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        self.connection.run("CONFIG RESETSTAT");
        let before = Meter::read(&self.server);
        for _ in 0..LOOKS {
            self.look()?;
        }
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        let calls = self.server.info("commandstats");
        let fields = calls.text("cmdstat_dlock.acquire").split(',');
        let time = fields
            .filter_map(|field| field.strip_prefix("usec_per_call="))
            .find_map(|time| time.parse().ok());
        let time = time.ok_or("the server does not tell its time")?;
        Ok(vec![
            // By the server's own clock: it includes other load of the machine.
            ("command µs", time),
            ("cpu µs", cpu_us / LOOKS as f64),
        ])
    }
}

/// A wait and its end.
const WAIT: Errand = Errand {
    commands: &[
        "DLOCK.ACQUIRE {key} {owner} 86400000 BLOCK 0 IN bench",
        "DLOCK.CANCEL {key} {owner}",
    ],
    reply: "*3\r\n:0\r\n:0\r\n:#\r\n:1\r\n",
};

/// Opens a server with deadlock detection, and one without.
pub fn open_wait() -> Opened {
    let owners = owners(OWNERS);
    let mut ways: Vec<Named> = Vec::new();
    for (detection, name, name_with_stake) in [
        (
            "yes",
            "wait + cancel, detection on",
            "wait + cancel with a wanted hold, detection on",
        ),
        (
            "no",
            "wait + cancel, detection off",
            "wait + cancel with a wanted hold, detection off",
        ),
    ] {
        for (name, with_stake) in [(name, false), (name_with_stake, true)] {
            let server = Rc::new(Server::start());
            let mut connection = server.connection();
            connection.run(&format!("CONFIG SET dlock.deadlock-detection {detection}"));
            let _: Grant = connection.ask(&format!("DLOCK.ACQUIRE wanted holder {LEASE_MS}"));
            let listener = Listener::new(&server, "wanted");
            if with_stake {
                for owner in owners.iter() {
                    let take = format!("DLOCK.ACQUIRE own:{owner} {owner} {LEASE_MS}");
                    let _: Grant = connection.ask(&take);
                    let want = format!(
                        "DLOCK.ACQUIRE own:{owner} other:{owner} {LEASE_MS} BLOCK 0 IN bench"
                    );
                    let _: Queued = connection.ask(&want);
                }
            }
            let mut errands = Errands::new(WAIT, "wanted", &owners, &server)?;
            ways.push(way(name, move || {
                // It keeps the session meanwhile.
                let _ = &listener;
                errands.sample()
            }));
        }
    }
    Ok(ways)
}
