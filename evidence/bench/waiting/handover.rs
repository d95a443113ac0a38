//! From one holder to the next: the time from a release to the reply of the first waiter, compared with the time from a
//! publication to the message at a subscriber.
//!
//! Both are measured alike: one thread sends on one connection and then reads from another, so that no thread has to wake a
//! second one. The clock runs from just before the send to just after the read. Both sides also use equally many connections in
//! turn: a recently used one is answered faster than the least recently used of thousands, by the kernel too, and that is no
//! merit of either.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use dlock_harness::{command, Server};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::meter::Meter;
use crate::tools::percentile::Durations;
use crate::tools::replies::Pattern;
use crate::waiting::mass;
use crate::way::{way, Figure, Opened, Way};

/// Hand-overs in a sample: enough for one in a thousand.
pub const HANDOVERS: usize = 1_000;

/// Longer than any measurement.
const LEASE_MS: u64 = 3_600_000;

/// Server CPU per hand-over: for a lock the hand-over and queueing again, for a message the publication, and for both the two
/// PINGs that separate them.
pub const CPU: &str = "cpu µs";

/// The lock with a short queue.
pub const QUEUE_100: &str = "release → waiter, 100 queued";
/// Opens all ways on one server, so that all have equally many connections.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let queue = |queued| Queue::new(queued, &server);
    let channels = |count| Channels::new(count, &server);
    Ok(vec![
        way(QUEUE_100, queue(100)?),
        way("publish → subscriber, 100 in turn", channels(100)?),
        way("release → waiter, 3,000 queued", queue(3_000)?),
        way("publish → subscriber, 3,000 in turn", channels(3_000)?),
    ])
}

/// Opens a queue as long as the default limit of a server's connections.
pub fn open_crowded() -> Opened {
    let server = Rc::new(mass::start());
    let queue = |queued| Queue::new(queued, &server);
    Ok(vec![
        way(QUEUE_100, queue(100)?),
        way("release → waiter, 10,000 queued", queue(10_000)?),
    ])
}

/// A lock with its holder and its waiters, the first of them in front.
pub struct Queue {
    holder: Client,
    waiters: VecDeque<Client>,
    bystander: Bystander,
    granted: Pattern,
    released: Pattern,
    server: Rc<Server>,
}

struct Client {
    line: Line,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl Client {
    /// Connects the client of this number for this lock. Those of another lock are other owners: an owner that waits releases
    /// nothing.
    fn new(server: &Server, key: &str, queued: usize, number: usize) -> Result<Client, Failure> {
        let owner = format!("6f9619ff-8b86-d011-b42d-{queued:012}:{number:05}");
        let acquire = format!("DLOCK.ACQUIRE {key} {owner} {LEASE_MS} BLOCK 0");
        let release = format!("DLOCK.RELEASE {key} {owner}");
        Ok(Client {
            line: Line::narrow(server.port())?,
            acquire: command(&acquire).get_packed_command(),
            release: command(&release).get_packed_command(),
        })
    }
}

impl Queue {
    /// Makes a held lock of its own with `queued` waiters.
    fn new(queued: usize, server: &Rc<Server>) -> Result<Queue, Failure> {
        Queue::of(&format!("queue:{queued}"), queued, server)
    }

    /// Makes a held lock of this name with `queued` waiters.
    pub fn of(key: &str, queued: usize, server: &Rc<Server>) -> Result<Queue, Failure> {
        let granted = Pattern::new("*2\r\n:#\r\n:1\r\n");
        let mut bystander = Bystander::new(server)?;
        let mut holder = Client::new(server, key, queued, 0)?;
        holder.line.exchange(&holder.acquire, &granted)?;
        let mut waiters = VecDeque::with_capacity(queued);
        for number in 1..=queued {
            let mut waiter = Client::new(server, key, queued, number)?;
            waiter.line.send(&waiter.acquire)?;
            // The server reads its connections in no certain order, and the first waiter must be known.
            bystander.wait_for_quiet()?;
            waiters.push_back(waiter);
        }
        Ok(Queue {
            holder,
            waiters,
            bystander,
            granted,
            released: Pattern::new(":0\r\n"),
            server: Rc::clone(server),
        })
    }
}

impl Way for Queue {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let mut durations = Durations::new();
        let before = Meter::read(&self.server);
        for _ in 0..HANDOVERS {
            let mut next = self.waiters.pop_front().ok_or("nobody waits")?;
            self.bystander.wait_for_quiet()?;
            let start = Instant::now();
            self.holder.line.send(&self.holder.release)?;
            next.line.expect(&self.granted, 1)?;
            durations.record(start.elapsed());
            self.holder.line.expect(&self.released, 1)?;
            self.holder.line.send(&self.holder.acquire)?;
            self.waiters
                .push_back(std::mem::replace(&mut self.holder, next));
        }
        Ok(figures(&durations, &before, &self.server))
    }
}

/// Returns the figures of a sample.
pub fn figures(durations: &Durations, before: &Meter, server: &Server) -> Vec<Figure> {
    let cpu_us = Meter::read(server).cpu_us_since(before);
    let mut figures = durations.figures();
    figures.push((CPU, cpu_us / HANDOVERS as f64));
    figures
}

/// A publisher, and subscribers with a channel each.
struct Channels {
    publisher: Line,
    subscribers: Vec<Subscriber>,
    next: usize,
    bystander: Bystander,
    published: Pattern,
    server: Rc<Server>,
}

struct Subscriber {
    line: Line,
    publish: Vec<u8>,
    message: Pattern,
}

impl Subscriber {
    fn new(server: &Server, number: usize) -> Result<Subscriber, Failure> {
        let channel = format!("unlocked:{number:05}");
        let mut line = Line::narrow(server.port())?;
        line.subscribe(&channel)?;
        Ok(Subscriber {
            line,
            publish: command(&format!("PUBLISH {channel} 0")).get_packed_command(),
            message: Pattern::new(&format!(
                "*3\r\n$7\r\nmessage\r\n$14\r\n{channel}\r\n$1\r\n0\r\n"
            )),
        })
    }
}

impl Channels {
    fn new(count: usize, server: &Rc<Server>) -> Result<Channels, Failure> {
        // Several of these must have different channels.
        let numbers = count..2 * count;
        Ok(Channels {
            publisher: Line::narrow(server.port())?,
            subscribers: numbers
                .map(|number| Subscriber::new(server, number))
                .collect::<Result<_, _>>()?,
            next: 0,
            bystander: Bystander::new(server)?,
            published: Pattern::new(":1\r\n"),
            server: Rc::clone(server),
        })
    }
}

impl Way for Channels {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let mut durations = Durations::new();
        let before = Meter::read(&self.server);
        for _ in 0..HANDOVERS {
            self.next = (self.next + 1) % self.subscribers.len();
            let subscriber = &mut self.subscribers[self.next];
            self.bystander.wait_for_quiet()?;
            let start = Instant::now();
            self.publisher.send(&subscriber.publish)?;
            subscriber.line.expect(&subscriber.message, 1)?;
            durations.record(start.elapsed());
            self.publisher.expect(&self.published, 1)?;
        }
        Ok(figures(&durations, &before, &self.server))
    }
}

/// A connection whose PING is answered only after all earlier commands have been processed.
pub struct Bystander {
    line: Line,
    ping: Vec<u8>,
    pong: Pattern,
}

impl Bystander {
    /// Connects it.
    pub fn new(server: &Server) -> Result<Bystander, Failure> {
        Ok(Bystander {
            line: Line::narrow(server.port())?,
            ping: command("PING").get_packed_command(),
            pong: Pattern::new("+PONG\r\n"),
        })
    }

    /// Sends two PINGs: the server may have polled its connections between our last command and the first PING, and then answers
    /// the PING first.
    pub fn wait_for_quiet(&mut self) -> Result<(), Failure> {
        self.line.exchange(&self.ping, &self.pong)?;
        self.line.exchange(&self.ping, &self.pong)
    }
}
