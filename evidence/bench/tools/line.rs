//! A connection that costs the benchmark little.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dlock_harness::{command, connect, PATIENCE};

use crate::failure::Failure;
use crate::tools::replies::{Check, Pattern};

/// The buffer of lines with much traffic: more than the server sends at once.
const WIDE: usize = 64 * 1024;

/// The buffer of lines that mostly wait, of which there are thousands.
const NARROW: usize = 256;

/// Commands that are sent together, and the expected replies.
pub struct Batch {
    /// The commands as they go over the wire.
    pub bytes: Vec<u8>,
    /// The reply, or replies, to one of the commands.
    pub reply: Pattern,
    /// How many times the reply is expected.
    pub times: usize,
}

/// A plain TCP connection: it sends prepared bytes and compares the answer with the expected one. It parses and allocates nothing
/// in between, so that the client does not slow the server down.
pub struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
    numbers: Vec<u64>,
}

impl Line {
    /// Opens a line for batches, to a server on this machine.
    pub fn wide(port: u16) -> Result<Line, Failure> {
        Line::connect(port, WIDE)
    }

    /// Opens a line for single replies, to a server on this machine.
    pub fn narrow(port: u16) -> Result<Line, Failure> {
        Line::connect(port, NARROW)
    }

    fn connect(port: u16, buffer: usize) -> Result<Line, Failure> {
        Ok(Line {
            stream: connect(Ipv4Addr::LOCALHOST, port, PATIENCE)?,
            buffer: vec![0; buffer],
            numbers: Vec::new(),
        })
    }

    /// Sends, and does not wait for the reply.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Waits until `pattern` has come `times` times, and nothing else.
    pub fn expect(&mut self, pattern: &Pattern, times: usize) -> Result<(), Failure> {
        let mut check = Check::new(pattern, times);
        while !check.is_complete() {
            let count = self.stream.read(&mut self.buffer)?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            check.feed(&self.buffer[..count])?;
        }
        self.numbers = check.numbers;
        Ok(())
    }

    /// Returns the numbers that `@` stood for in what came last.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Sends, and waits for the one reply.
    pub fn exchange(&mut self, bytes: &[u8], reply: &Pattern) -> Result<(), Failure> {
        self.send(bytes)?;
        self.expect(reply, 1)
    }

    /// Subscribes to a channel.
    pub fn subscribe(&mut self, channel: &str) -> Result<(), Failure> {
        let length = channel.len();
        self.exchange(
            &command(&format!("SUBSCRIBE {channel}")).get_packed_command(),
            &Pattern::new(&format!(
                "*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n"
            )),
        )
    }

    /// Reads a reply of one line without its end.
    pub fn reply(&mut self) -> Result<String, Failure> {
        let mut used = 0;
        while !self.buffer[..used].ends_with(b"\r\n") {
            let count = self.stream.read(&mut self.buffer[used..])?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            used += count;
        }
        Ok(String::from_utf8_lossy(&self.buffer[..used - 2]).into_owned())
    }

    /// Waits until data comes, and discards all that has arrived; or until the timeout.
    pub fn wait_for_news(&mut self, timeout: Duration) -> Result<(), Failure> {
        self.stream.set_read_timeout(Some(timeout))?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Shuts the connection down.
    pub fn close(&self, how: Shutdown) -> Result<(), Failure> {
        Ok(self.stream.shutdown(how)?)
    }

    /// Sends all commands of the batch at once and waits for their replies.
    ///
    /// The server reads while it answers and buffers its unread answers, so that sending never waits for reading.
    pub fn run(&mut self, batch: &Batch) -> Result<(), Failure> {
        self.send(&batch.bytes)?;
        self.expect(&batch.reply, batch.times)
    }

    /// Sends a command for each of the numbers, many at once, and waits for the replies, all of which are alike.
    pub fn run_each(
        &mut self,
        count: usize,
        reply: &str,
        mut line_of: impl FnMut(usize) -> String,
    ) -> Result<(), Failure> {
        const AT_ONCE: usize = 1_000;
        let reply = Pattern::new(reply);
        for start in (0..count).step_by(AT_ONCE) {
            let numbers = start..count.min(start + AT_ONCE);
            self.run(&Batch {
                times: numbers.len(),
                reply: reply.clone(),
                bytes: numbers
                    .flat_map(|number| command(&line_of(number)).get_packed_command())
                    .collect(),
            })?;
        }
        Ok(())
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
