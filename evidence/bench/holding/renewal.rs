//! Twenty thousand holds that the server renews by itself (`RENEW … AUTO`), about once a second each.

use std::thread::sleep;
use std::time::Duration;

use dlock_harness::{stat, Server};

use crate::tools::line::Line;
use crate::tools::meter::Meter;
use crate::way::{way, Opened};

const HOLDS: usize = 20_000;

/// The server renews after a quarter to a third of it, depending on the hold's token.
const LEASE_MS: u64 = 3_500;

/// The duration of a sample.
const WINDOW: Duration = Duration::from_secs(2);

/// Opens a server that does nothing else.
pub fn open() -> Opened {
    let server = Server::start();
    let mut line = Line::wide(server.port())?;
    line.run_each(HOLDS, "*2\r\n:#\r\n:1\r\n", |number| {
        format!("DLOCK.ACQUIRE renewal:{number} owner-{number} 86400000")
    })?;
    line.run_each(HOLDS, ":#\r\n", |number| {
        format!("DLOCK.RENEW renewal:{number} owner-{number} {LEASE_MS} AUTO 0")
    })?;
    Ok(vec![way("20,000 holds, AUTO", move || {
        // The end of the connection would end the renewals.
        let (server, _line) = (&server, &line);
        let before = stat(server, "auto_renewals_total");
        let cpu_us = Meter::cpu_us(server, || {
            sleep(WINDOW);
            Ok(())
        })?;
        let renewed = (stat(server, "auto_renewals_total") - before) as f64;
        if stat(server, "auto_renewed") != HOLDS as u64 || renewed < HOLDS as f64 {
            return Err("holds were lost, or not renewed".into());
        }
        Ok(vec![
            // An idle server's needs are included.
            ("cpu µs a renewal", cpu_us / renewed),
            ("renewals a second", renewed / WINDOW.as_secs_f64()),
        ])
    })])
}
