//! Twenty thousand holds that the server renews by itself (`RENEW … AUTO`), about once a second each.

use std::thread::sleep;
use std::time::Duration;

use dlock_integration::{stat, Server};

use crate::failure::Failure;
use crate::line::Line;
use crate::meter::Meter;
use crate::way::{Figure, Opened, Way};

const HOLDS: usize = 20_000;

/// Renewed when a quarter to a third of it has passed, as each hold's token says.
const LEASE_MS: u64 = 3_500;

/// How long a sample looks on.
const WINDOW: Duration = Duration::from_secs(2);

/// The way.
pub const RENEWALS: &str = "20,000 holds, AUTO";

/// Processor time of the server for each renewal. What an idle server needs is in it.
pub const CPU: &str = "cpu µs a renewal";

/// How many there were.
const RATE: &str = "renewals a second";

/// A server that does nothing else.
pub fn open() -> Opened {
    let server = Server::start();
    let mut line = Line::wide(server.port())?;
    line.run_each(HOLDS, "*2\r\n:#\r\n:1\r\n", |number| {
        format!("DLOCK.ACQUIRE renewal:{number} owner-{number} 86400000")
    })?;
    line.run_each(HOLDS, ":#\r\n", |number| {
        format!("DLOCK.RENEW renewal:{number} owner-{number} {LEASE_MS} AUTO 0")
    })?;
    Ok(vec![Box::new(Renewals {
        server,
        _line: line,
    })])
}

struct Renewals {
    server: Server,
    // Its end would be that of the renewals.
    _line: Line,
}

impl Way for Renewals {
    fn name(&self) -> &str {
        RENEWALS
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let renewed = || stat(&self.server, "auto_renewals_total");
        let (before, first) = (Meter::read(&self.server), renewed());
        sleep(WINDOW);
        let (cpu_us, last) = (Meter::read(&self.server).cpu_us_since(&before), renewed());
        let renewals = (last - first) as f64;
        if stat(&self.server, "auto_renewed") != HOLDS as u64 || renewals < HOLDS as f64 {
            return Err("holds were lost, or not renewed".into());
        }
        Ok(vec![
            (CPU, cpu_us / renewals),
            (RATE, renewals / WINDOW.as_secs_f64()),
        ])
    }
}
