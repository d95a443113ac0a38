//! Waiting in a session: one connection asks for all owners, another one keeps the session and reads the grants.

use std::rc::Rc;

use dlock_harness::{Ask, Grant, Server, Wire};

use crate::failure::Failure;
use crate::tools::errand::{owners, Errand};
use crate::tools::line::Line;
use crate::tools::meter::Meter;
use crate::way::{way, Figure, Named, Opened, Way};

/// Hand-overs in a sample.
const HANDOVERS: usize = 20_000;

/// The session of the waits.
const SESSION: &str = "bench";

const WAIT: Errand = Errand {
    commands: &["DLOCK.ACQUIRE {key} {owner} 86400000 BLOCK 0 IN bench"],
    reply: QUEUED,
};

const LEAVE_AND_WAIT: Errand = Errand {
    commands: &[
        "DLOCK.RELEASE {key} {owner}",
        "DLOCK.ACQUIRE {key} {owner} 86400000 BLOCK 0 IN bench",
    ],
    reply: ":0\r\n*3\r\n:0\r\n:#\r\n:#\r\n",
};

/// The reply to a request that waits in a session.
pub const QUEUED: &str = "*3\r\n:0\r\n:#\r\n:#\r\n";

/// Opens both queues, with a server each.
pub fn open() -> Opened {
    let mut ways: Vec<Named> = Vec::new();
    for (name, key, queued) in [
        ("release → row, 100 wait in a session", "few", 100),
        ("release → row, 100,000 wait in a session", "many", 100_000),
    ] {
        let server = Rc::new(Server::start());
        ways.push(way(name, Rows::new(key, queued, server)?));
    }
    Ok(ways)
}

/// Makes all but the first of these owners wait for the lock that the first one takes.
pub fn queue_up(
    server: &Server,
    line: &mut Line,
    key: &str,
    owners: &[String],
) -> Result<(), Failure> {
    let (first, others) = owners.split_first().ok_or("there are no owners")?;
    let take = format!("DLOCK.ACQUIRE {key} {first} 86400000");
    let _: Grant = server.connection().ask(&take);
    WAIT.once(line, key, others)
}

/// A lock, and the owners that hold it in turn.
struct Rows {
    key: &'static str,
    owners: Rc<Vec<String>>,
    holder: usize,
    line: Line,
    listener: Listener,
    server: Rc<Server>,
}

impl Rows {
    fn new(key: &'static str, queued: usize, server: Rc<Server>) -> Result<Rows, Failure> {
        let owners = owners(queued + 1);
        let mut line = Line::wide(server.port())?;
        let listener = Listener::new(&server, key);
        queue_up(&server, &mut line, key, &owners)?;
        Ok(Rows {
            key,
            owners,
            holder: 0,
            line,
            listener,
            server,
        })
    }
}

impl Way for Rows {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let turns = self.owners.iter().cycle().skip(self.holder);
        let turns: Vec<String> = turns.take(HANDOVERS).cloned().collect();
        let batches = LEAVE_AND_WAIT.batches(self.key, &turns);
        let before = Meter::read(&self.server);
        for batch in &batches {
            self.line.run(batch)?;
            self.listener.hear(batch.times, |key| {
                let is_ours = key == self.key;
                is_ours
                    .then_some(())
                    .ok_or("another lock was granted".into())
            })?;
        }
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        self.holder = (self.holder + HANDOVERS) % self.owners.len();
        Ok(vec![("cpu µs", cpu_us / HANDOVERS as f64)])
    }
}

/// A row of a session: number, word, key, owner, token, milliseconds left.
type Row = (u64, String, String, String, u64, u64);

/// The connection that keeps a session and reads its rows.
pub struct Listener {
    connection: Wire,
    session: &'static str,
    /// A key, for the routing of the command.
    key: String,
    /// The id of the session, and the last row that was read.
    seen: (u64, u64),
}

impl Listener {
    /// Begins the session. It is alive as long as the listener lives, for ten minutes after it was last heard at most.
    pub fn new(server: &Server, key: &str) -> Listener {
        Listener::of(server, key, SESSION)
    }

    /// Begins a session of another name.
    pub fn of(server: &Server, key: &str, session: &'static str) -> Listener {
        let mut listener = Listener {
            connection: server.connection(),
            session,
            key: key.to_owned(),
            seen: (0, 0),
        };
        listener.read(1);
        listener
    }

    /// Keeps the session, and returns the rows that were not read before: at once if there are any, or after this time.
    fn read(&mut self, wait_ms: u64) -> Vec<Row> {
        let ((id, last), key, session) = (self.seen, &self.key, self.session);
        let line = format!("DLOCK.SESSION {key} {session} 600000 SEEN {id} {last} BLOCK {wait_ms}");
        let (id, last, _, rows): (u64, u64, Option<u64>, Vec<Row>) = self.connection.ask(&line);
        self.seen = (id, last);
        rows
    }

    /// Keeps the session, in which there must be no news: every lock was released by its token.
    pub fn keep(&mut self) -> Result<(), Failure> {
        match &self.read(1)[..] {
            [] => Ok(()),
            [row, ..] => Err(format!("the session has the row {row:?}").into()),
        }
    }

    /// Waits for `count` grants, and passes the lock of each on.
    pub fn hear(
        &mut self,
        count: usize,
        mut tell: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut left = count;
        while left > 0 {
            for (_, word, key, ..) in self.read(10_000) {
                match &*word {
                    "granted" => {
                        tell(&key)?;
                        left = left
                            .checked_sub(1)
                            .ok_or("more was granted than there was")?;
                    }
                    // By an owner's name alone, as here: its program need not have done it.
                    "released" => {}
                    word => return Err(format!("the session has the row {word:?}").into()),
                }
            }
        }
        Ok(())
    }
}
