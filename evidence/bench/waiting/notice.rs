//! Waiting by a channel: one connection asks for all owners, another one receives the grants.

use std::io::Read;
use std::net::TcpStream;
use std::rc::Rc;

use dlock_integration::{Ask, Grant, Server};

use crate::failure::Failure;
use crate::tools::errand::{owners, Errand};
use crate::tools::line::Line;
use crate::tools::meter::Meter;
use crate::way::{Figure, Opened, Way};

/// Hand-overs in a sample.
const HANDOVERS: usize = 20_000;

const WAIT: Errand = Errand {
    commands: &["DLOCK.ACQUIRE {key} {owner} 86400000 NOTIFY {key}"],
    reply: QUEUED,
};

const LEAVE_AND_WAIT: Errand = Errand {
    commands: &[
        "DLOCK.RELEASE {key} {owner}",
        "DLOCK.ACQUIRE {key} {owner} 86400000 NOTIFY {key}",
    ],
    reply: ":0\r\n*3\r\n:0\r\n:#\r\n:#\r\n",
};

/// The reply to a request that waits by a channel.
pub const QUEUED: &str = "*3\r\n:0\r\n:#\r\n:#\r\n";

/// Opens both queues on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (name, key, queued) in [
        ("release → message, 100 wait by NOTIFY", "few", 100),
        ("release → message, 100,000 wait by NOTIFY", "many", 100_000),
    ] {
        ways.push(Box::new(Notices::new(name, key, queued, &server)?));
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
struct Notices {
    name: &'static str,
    key: &'static str,
    owners: Rc<Vec<String>>,
    holder: usize,
    line: Line,
    listener: Listener,
    server: Rc<Server>,
}

impl Notices {
    fn new(
        name: &'static str,
        key: &'static str,
        queued: usize,
        server: &Rc<Server>,
    ) -> Result<Notices, Failure> {
        let owners = owners(queued + 1);
        let mut line = Line::wide(server.port())?;
        queue_up(server, &mut line, key, &owners)?;
        Ok(Notices {
            name,
            key,
            owners,
            holder: 0,
            line,
            listener: Listener::new(server, key)?,
            server: Rc::clone(server),
        })
    }
}

impl Way for Notices {
    fn name(&self) -> &str {
        self.name
    }

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

/// A subscriber to all grants.
pub struct Listener {
    /// The beginning of every message, up to its length.
    header: Vec<u8>,
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Listener {
    /// Subscribes to the grants on this channel.
    pub fn new(server: &Server, channel: &str) -> Result<Listener, Failure> {
        let mut line = Line::wide(server.port())?;
        let name = format!("${}\r\n{channel}\r\n", channel.len());
        line.subscribe(channel)?;
        Ok(Listener {
            header: format!("*3\r\n$7\r\nmessage\r\n{name}$").into_bytes(),
            stream: line.into_stream(),
            bytes: Vec::new(),
        })
    }

    /// Waits for `count` grants, and passes the lock of each on.
    pub fn hear(
        &mut self,
        count: usize,
        mut tell: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut left = count;
        let mut piece = vec![0; 64 * 1024];
        while left > 0 {
            let length = self.stream.read(&mut piece)?;
            if length == 0 {
                return Err("the server closed the connection".into());
            }
            self.bytes.extend_from_slice(&piece[..length]);
            let mut start = 0;
            while let Some((key, length)) = message(&self.header, &self.bytes[start..])? {
                tell(key)?;
                start += length;
                left = left
                    .checked_sub(1)
                    .ok_or("more was granted than there was")?;
            }
            self.bytes.drain(..start);
        }
        Ok(())
    }
}

/// Returns the granted lock, and the length of the message in bytes; none if it is not complete. As in `granted 1795266194973614
/// 5:stock 3:bob`.
fn message<'b>(header: &[u8], bytes: &'b [u8]) -> Result<Option<(&'b str, usize)>, Failure> {
    let Some(rest) = bytes.get(header.len()..) else {
        return Ok(None);
    };
    let Some(digits) = rest.iter().position(|&byte| byte == b'\r') else {
        return Ok(None);
    };
    let text = rest.get(digits + 2..);
    let length: usize = std::str::from_utf8(&rest[..digits])?.parse()?;
    let Some((text, _)) = text.and_then(|text| text.split_at_checked(length + 2)) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(text)?;
    let key = text
        .strip_prefix("granted ")
        .and_then(|text| text.split(' ').nth(1)?.split_once(':'))
        .filter(|_| bytes.starts_with(header));
    let (_, key) = key.ok_or_else(|| format!("{text:?} was heard"))?;
    Ok(Some((key, header.len() + digits + 2 + length + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$";
    const GRANT: &str =
        "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$27\r\ngranted 12345 5:stock 3:bob\r\n";

    #[test]
    fn messages_are_read_when_they_are_complete() {
        for end in 0..GRANT.len() {
            assert_eq!(
                message(HEADER, &GRANT.as_bytes()[..end]).expect("so far well"),
                None
            );
        }
        let two = [GRANT, GRANT].concat();
        let read = message(HEADER, two.as_bytes()).expect("a message");
        assert_eq!(read, Some(("stock", GRANT.len())));
        let timeout = GRANT.replace("granted 12345", "timeout 0    ");
        assert!(message(HEADER, timeout.as_bytes()).is_err());
    }
}
