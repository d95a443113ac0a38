//! How long a server does not answer during a burst of work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{command, Ask, Server, Wire};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::replies::Pattern;
use crate::way::Figure;

/// The time from one PING to the next.
const INTERVAL: Duration = Duration::from_micros(500);

/// The observed pauses.
pub struct Pauses {
    longest: Duration,
    event_ms: f64,
}

impl Pauses {
    /// Runs `work`, and observes the server meanwhile.
    pub fn during<T>(
        server: &Server,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, Pauses), Failure> {
        let mut line = Line::narrow(server.port())?;
        let mut connection = server.connection();
        connection.run("CONFIG SET latency-monitor-threshold 1");
        connection.run("LATENCY RESET");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let pings = scope.spawn(|| -> Result<Duration, Failure> {
                let ping = command("PING").get_packed_command();
                let pong = Pattern::new("+PONG\r\n");
                let mut longest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    line.exchange(&ping, &pong)?;
                    longest = longest.max(start.elapsed());
                    thread::sleep(INTERVAL);
                }
                Ok(longest)
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            let longest = pings.join().map_err(|_| "the pings have panicked")??;
            let event_ms = longest_event_ms(&mut connection);
            Ok((done?, Pauses { longest, event_ms }))
        })
    }

    /// Returns the longest time for which the server did not answer a PING, as a client sees it; and the longest event of the
    /// module, as the server's latency monitor reports it.
    pub fn figures(&self) -> Vec<Figure> {
        vec![
            ("longest pause ms", milliseconds(self.longest)),
            ("longest event ms", self.event_ms),
        ]
    }
}

/// Returns the longest event; 0 if none took a millisecond.
fn longest_event_ms(connection: &mut Wire) -> f64 {
    let latest: Vec<(String, u64, u64, f64)> = connection.ask("LATENCY LATEST");
    latest
        .into_iter()
        .find(|(event, ..)| event == "dlock-event")
        .map_or(0.0, |(.., longest_ms)| longest_ms)
}

/// Returns a duration as a figure.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
