//! Ten thousand holds that end with their connections, all at once, each with somebody who waits for it; and as many
//! connections that hold nothing, since the server needs its time for those too.

use std::net::Shutdown;
use std::time::Instant;

use dlock_integration::{await_until, command, Server, PATIENCE};

use crate::failure::Failure;
use crate::line::Line;
use crate::mass;
use crate::notice::{Listener, QUEUED};
use crate::pause::{milliseconds, Pauses};
use crate::replies::Pattern;
use crate::way::{Figure, Opened, Way};

const SESSIONS: usize = 10_000;

/// The way.
pub const ENDS: &str = "10,000 sessions end at once";
/// Connections that hold nothing.
pub const PLAIN_ENDS: &str = "10,000 connections end at once";

/// How long it takes until all locks are the next one's.
pub const HANDED_OVER: &str = "handed over after ms";

/// A server for each.
pub fn open() -> Opened {
    let server = mass::start();
    Ok(vec![
        Box::new(Ends {
            line: Line::wide(server.port())?,
            listener: Listener::new(&server, "news")?,
            server,
        }),
        Box::new(PlainEnds {
            server: mass::start(),
        }),
    ])
}

struct Ends {
    line: Line,
    listener: Listener,
    server: Server,
}

impl Way for Ends {
    fn name(&self) -> &str {
        ENDS
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let holders = self.holders()?;
        self.line.run_each(SESSIONS, QUEUED, |number| {
            format!("DLOCK.ACQUIRE session:{number} next-{number} 3600000 NOTIFY news")
        })?;
        let listener = &mut self.listener;
        let (handed_over, pauses) = Pauses::during(&self.server, || {
            let start = Instant::now();
            for holder in &holders {
                holder.close(Shutdown::Both)?;
            }
            listener.hear(SESSIONS, |_| Ok(()))?;
            Ok(start.elapsed())
        })?;
        self.line.run_each(SESSIONS, ":0\r\n", |number| {
            format!("DLOCK.RELEASE session:{number} next-{number}")
        })?;
        let handed_over = vec![(HANDED_OVER, milliseconds(handed_over))];
        Ok([handed_over, pauses.figures()].concat())
    }
}

impl Ends {
    /// Each on a connection of its own, with a lock that it has for as long as it stays.
    fn holders(&self) -> Result<Vec<Line>, Failure> {
        let granted = Pattern::new("*2\r\n:#\r\n:1\r\n");
        let holder = |number| {
            let mut line = Line::narrow(self.server.port())?;
            let take = format!("DLOCK.ACQUIRE session:{number} holder-{number} 3600000 SESSION");
            line.exchange(&command(&take).get_packed_command(), &granted)?;
            Ok(line)
        };
        (0..SESSIONS).map(holder).collect()
    }
}

struct PlainEnds {
    server: Server,
}

impl Way for PlainEnds {
    fn name(&self) -> &str {
        PLAIN_ENDS
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let ping = command("PING").get_packed_command();
        let pong = Pattern::new("+PONG\r\n");
        let connect = |_| {
            let mut line = Line::narrow(self.server.port())?;
            line.exchange(&ping, &pong)?;
            Ok(line)
        };
        let lines: Result<Vec<Line>, Failure> = (0..SESSIONS).map(connect).collect();
        let lines = lines?;
        let ((), pauses) = Pauses::during(&self.server, || {
            for line in &lines {
                line.close(Shutdown::Both)?;
            }
            await_until("all are gone", PATIENCE, || {
                let clients = self.server.info("clients");
                clients.number::<usize>("connected_clients") < SESSIONS / 2
            });
            Ok(())
        })?;
        Ok(pauses.figures())
    }
}
