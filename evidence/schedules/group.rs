//! The servers of one schedule, each behind a door. All links are held back until a step lets data through.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_evidence::group;
use dlock_harness::redis::Value;
use dlock_harness::{
    await_until, command, reply_of, stat, until, Clock, Network, ServerBuilder, Wire, PATIENCE,
};
use dlock_protocol::action::Kept;
use dlock_protocol::conduct::{Conduct, LEASE};

/// No replica and no primary gives the other up by itself: only steps end links. In seconds.
const FOR_EVER: u64 = 3_600;

/// How long an answer waits for replicas at least, in ms: longer than any schedule.
const ACK_TIMEOUT_MS: u64 = 600_000;

/// The configuration of a group.
pub struct Start<'a> {
    pub program: &'a OsString,
    /// The module, and the clause that it lacks.
    pub module: &'a Path,
    pub without: Option<&'a str>,
    pub conduct: Conduct,
    pub replicas: u8,
    pub tick: Duration,
    /// Whether each server has a clock of its own.
    pub has_clocks: bool,
    /// The servers that write an AOF.
    pub logs: Vec<usize>,
}

impl Start<'_> {
    /// Configures one of the servers.
    fn configure(&self, number: usize, mut builder: ServerBuilder) -> ServerBuilder {
        let conduct = &self.conduct;
        let mut arguments = Vec::new();
        if conduct.replicas > 0 {
            arguments.extend(["replicas".to_owned(), self.replicas.to_string()]);
            arguments.extend(["ack-timeout-ms".to_owned(), ACK_TIMEOUT_MS.to_string()]);
        }
        if conduct.quarantine > 0 {
            // Of moments until all are together: it cannot be shortened later.
            arguments.extend(["quarantine-ms".to_owned(), "1".to_owned()]);
        }
        for argument in arguments {
            builder = builder.module_argument(argument);
        }
        if conduct.min_replicas > 0 {
            // A lag is counted in whole seconds, and steps take time.
            let lag = ms(self.tick, conduct.lag) / 1_000 + 2;
            builder = builder
                .config("min-replicas-to-write", conduct.min_replicas)
                .config("min-replicas-max-lag", lag);
        }
        if self.logs.contains(&number) {
            builder = builder.config("appendonly", "yes");
        }
        if let Some(clause) = self.without {
            builder = builder.environment("DLOCK_WITHOUT", clause);
        }
        builder
    }
}

struct Node {
    one: group::Node,
    clock: Option<Clock>,
    /// The server that it follows; itself if it is a primary.
    master: usize,
    /// Its saved data, by the entry at that time: the length of the AOF, or a copy of the RDB.
    saved: HashMap<u8, Saved>,
}

enum Saved {
    Length(u64),
    Copy(PathBuf),
}

/// A primary, which is 0, and its replicas.
pub struct Group {
    nodes: Vec<Node>,
    /// Connections that have asked for a resynchronisation in a replica's name.
    unheard: Vec<Wire>,
    // Its doors close when it is dropped.
    network: Network,
}

/// How a replica has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    Partially,
    Fully,
}

impl Group {
    /// Starts the servers. All replicas have all data, count, and are held back from now on.
    pub fn start(start: &Start) -> Group {
        let network = Network::new();
        let count = usize::from(start.replicas) + 1;
        let nodes: Vec<Node> = (0..count)
            .map(|number| Node::start(&network, number, start))
            .collect();
        let mut group = Group {
            nodes,
            unheard: Vec::new(),
            network,
        };
        for replica in 1..count {
            group.follow(replica, 0);
        }
        for replica in 1..count {
            await_until("the replica has all", PATIENCE, || {
                group.is_up(replica) && group.has_all(replica)
            });
        }
        let conduct = &start.conduct;
        let confirms = conduct.replicas > 0;
        if confirms {
            await_until("all replicas count", PATIENCE, || {
                stat(&group.nodes[0].one.server, "replicas_counting") == u64::from(start.replicas)
            });
            for node in &group.nodes {
                await_until("nobody counts late", PATIENCE, || {
                    stat(&node.one.server, "joins_count_late_ms") == 0
                        && stat(&node.one.server, "closed_left_ms") == 0
                });
            }
        }
        let quarantine = ms(start.tick, conduct.quarantine);
        for number in 0..count {
            if !confirms && quarantine > 0 {
                group.say(number, "CONFIG SET dlock.quarantine-ms 0");
            }
            group.say(
                number,
                &format!("CONFIG SET dlock.quarantine-ms {quarantine}"),
            );
            group.say(number, "CONFIG REWRITE");
        }
        if conduct.min_replicas > 0 {
            // Once a second the primary counts the replicas that have acknowledged lately.
            sleep(Duration::from_millis(1_500));
        }
        for replica in 0..count {
            for other in 0..replica {
                let (one, other) = (group.nodes[replica].one.party, group.nodes[other].one.party);
                group.network.cut(&[one], &[other]);
            }
        }
        group
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn port(&self, number: usize) -> u16 {
        self.nodes[number].one.server.port()
    }

    pub fn master(&self, number: usize) -> usize {
        self.nodes[number].master
    }

    /// Returns the servers' logs, one after the other, and the servers that each knows.
    pub fn logs(&self) -> String {
        let logs = self.nodes.iter().enumerate();
        let logs = logs.map(|(number, node)| {
            let known = match self.ask(number, "INFO replication") {
                Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
                other => format!("{other:?}"),
            };
            format!("--- server {number}\n{}{known}", node.one.server.log())
        });
        logs.collect()
    }

    /// Sends a line to a server. Returns its answer, or the error's text.
    pub fn ask(&self, number: usize, line: &str) -> Result<Value, String> {
        let mut wire =
            Wire::open(self.port(number), PATIENCE).map_err(|error| error.to_string())?;
        let value = command(line).query::<Value>(&mut wire);
        value.map_err(|error| error.to_string()).and_then(reply_of)
    }

    fn say(&self, number: usize, line: &str) {
        if let Err(error) = self.ask(number, line) {
            panic!("{line}: {error}");
        }
    }

    /// Lets the link of these two through until the condition holds, and no longer.
    fn let_through(
        &self,
        one: usize,
        other: usize,
        bound: Duration,
        condition: impl FnMut() -> bool,
    ) -> bool {
        let (one, other) = (self.nodes[one].one.party, self.nodes[other].one.party);
        self.network.mend(one, other);
        let came_true = until(bound, condition);
        self.network.cut(&[one], &[other]);
        came_true
    }

    /// Returns true if a replica follows its master, and has acknowledged its data.
    fn is_up(&self, replica: usize) -> bool {
        let master = &self.nodes[self.master(replica)];
        let info = self.nodes[replica].one.server.info("replication");
        info.get("master_link_status") == Some("up")
            && info.get("master_port") == Some(&master.one.door.port().to_string())
            && master.followed_by(&self.nodes[replica]).as_deref() == info.get("slave_repl_offset")
    }

    /// Returns true if a replica has all its master's data, and the master knows.
    fn has_all(&self, replica: usize) -> bool {
        let master = &self.nodes[self.master(replica)];
        let info = master.one.server.info("replication");
        let all = info.text("master_repl_offset").to_owned();
        let has = self.nodes[replica].one.server.info("replication");
        has.get("slave_repl_offset") == Some(&all)
            && master.followed_by(&self.nodes[replica]) == Some(all)
    }

    /// Lets a replica receive everything that its master has sent, and acknowledge it.
    pub fn catch_up(&self, replica: usize, bound: Duration) -> bool {
        let master = self.master(replica);
        master != replica && self.let_through(replica, master, bound, || self.has_all(replica))
    }

    /// Lets a replica acknowledge that it lives, as it does once a second.
    pub fn live(&self, replica: usize) {
        let end = Instant::now() + Duration::from_millis(1_200);
        let over = || Instant::now() >= end;
        self.let_through(replica, self.master(replica), PATIENCE, over);
    }

    /// Lets a replica join its master, if it is accepted. Returns how, as the master counts.
    pub fn join(&self, replica: usize, bound: Duration) -> Option<Joined> {
        let master = self.master(replica);
        if master == replica {
            return None;
        }
        let partial = || -> u64 {
            let stats = self.nodes[master].one.server.info("stats");
            stats.number("sync_partial_ok")
        };
        let before = partial();
        let joined = self.let_through(replica, master, bound, || self.is_up(replica));
        joined.then(|| match partial() > before {
            true => Joined::Partially,
            false => Joined::Fully,
        })
    }

    /// Makes the master see a replica join by a partial resynchronisation, of which the replica does not learn.
    pub fn join_unheard(&mut self, replica: usize) -> bool {
        let (master, joiner) = (self.master(replica), &self.nodes[replica]);
        let info = joiner.one.server.info("replication");
        let next = info.number::<u64>("slave_repl_offset") + 1;
        let mut wire = Wire::open(self.port(master), PATIENCE).expect("the server runs");
        for words in [
            format!("listening-port {}", joiner.one.door.port()),
            "ip-address 127.0.0.1".to_owned(),
            "capa eof capa psync2".to_owned(),
        ] {
            wire.send(&format!("REPLCONF {words}"));
            wire.read().expect("the server knows REPLCONF");
        }
        wire.send(&format!("PSYNC {} {next}", info.text("master_replid")));
        let accepted = wire.read_line().starts_with("+CONTINUE");
        self.unheard.push(wire);
        accepted
    }

    /// Makes the followers of this server notice that the link is gone.
    fn lose_followers(&self, number: usize) {
        for other in 0..self.count() {
            if other != number && self.master(other) == number {
                self.break_link(other);
            }
        }
    }

    /// Ends a replica's link; the master does not notice yet.
    fn break_link(&self, replica: usize) {
        // There may be none.
        let _ = self.ask(replica, "CLIENT KILL TYPE master");
    }

    /// Ends the link of a master's only replica, at both of its ends.
    pub fn end_link(&self, replica: usize) {
        self.break_link(replica);
        let _ = self.ask(self.master(replica), "CLIENT KILL TYPE replica");
    }

    pub fn promote(&mut self, number: usize) {
        self.lose_followers(number);
        self.say(number, "REPLICAOF NO ONE");
        self.nodes[number].master = number;
    }

    pub fn follow(&mut self, number: usize, master: usize) {
        self.lose_followers(number);
        let port = self.nodes[master].one.door.port();
        self.say(number, &format!("REPLICAOF 127.0.0.1 {port}"));
        self.nodes[number].master = master;
    }

    /// Sets a server's clock ahead.
    pub fn put_ahead(&self, number: usize, by: Duration) {
        let clock = self.nodes[number].clock.as_ref();
        let clock = clock.expect("the schedule has a step of a clock");
        clock.step(
            &mut self.nodes[number].one.server.connection(),
            by.as_millis() as i64,
        );
    }

    /// Saves the data that a server has on its disk at this entry.
    pub fn save(&mut self, number: usize, at: u8, anew: bool) {
        let saved = match anew {
            true => Saved::Length(
                fs::metadata(self.nodes[number].one.server.aof())
                    .expect("an AOF")
                    .len(),
            ),
            false => {
                // A copy for a replica may be under way.
                await_until("the RDB is saved", PATIENCE, || {
                    self.ask(number, "SAVE").is_ok()
                });
                let directory = self.nodes[number].one.server.dir();
                let copy = directory.join(format!("at-{at}.rdb"));
                fs::copy(directory.join("dump.rdb"), &copy).expect("an RDB");
                Saved::Copy(copy)
            }
        };
        self.nodes[number].saved.insert(at, saved);
    }

    /// Kills a process, and restarts it with its data of this entry, or with nothing.
    pub fn restart(&mut self, number: usize, kept: Kept, at: Option<u8>) -> Result<(), String> {
        self.lose_followers(number);
        self.say(number, "CONFIG REWRITE");
        let node = &mut self.nodes[number];
        node.one.server.kill9();
        let rdb = node.one.server.dir().join("dump.rdb");
        match (kept, at.and_then(|at| node.saved.get(&at))) {
            (Kept::Nothing, _) => {
                // There may be none.
                let _ = fs::remove_file(rdb);
            }
            (Kept::Less(_), Some(Saved::Copy(copy))) => {
                fs::copy(copy, rdb).expect("the directory can be written to");
            }
            (Kept::LessAnew(_), Some(Saved::Length(length))) => {
                let log = File::options().write(true).open(node.one.server.aof());
                log.and_then(|log| log.set_len(*length)).expect("an AOF");
            }
            _ => return Err("nothing was saved there".to_owned()),
        }
        node.one.server.restart();
        Ok(())
    }
}

/// Returns the length of these ticks in milliseconds.
pub fn ms(tick: Duration, ticks: i16) -> u64 {
    tick.as_millis() as u64 * u64::try_from(ticks).unwrap_or(0)
}

impl Node {
    fn start(network: &Network, number: usize, start: &Start) -> Node {
        let (one, clock) = group::Node::start(network, number, |builder, door| {
            let builder = builder
                .program(start.program)
                .module(start.module)
                .config("replica-announce-ip", "127.0.0.1")
                .config("replica-announce-port", door.port())
                .config("repl-ping-replica-period", FOR_EVER)
                .config("repl-timeout", FOR_EVER);
            let builder = start.configure(number, builder);
            if !start.has_clocks {
                return (builder.start(), None);
            }
            let program = start.program.to_string_lossy();
            let (server, clock) = Clock::of(builder.environment("DLOCK_REDIS_SERVER", program));
            (server, Some(clock))
        });
        if let Some(clause) = start.without {
            let said = format!("planted: without {clause}: Some(");
            assert!(one.server.log().contains(&said), "the module lacks nothing");
        }
        Node {
            one,
            clock,
            master: number,
            saved: HashMap::new(),
        }
    }

    /// Returns the offset that a replica has acknowledged to this server, if it is online.
    fn followed_by(&self, replica: &Node) -> Option<String> {
        let info = self.one.server.info("replication");
        let port = format!(",port={},", replica.one.door.port());
        // The last is the newest.
        let mut lines = (0..8)
            .rev()
            .filter_map(|at| info.get(&format!("slave{at}")));
        let line = lines.find(|line| line.contains(&port))?;
        let field = |name: &str| {
            let mut fields = line.split(',');
            fields.find_map(|field| field.strip_prefix(name).map(str::to_owned))
        };
        (field("state=")? == "online").then(|| field("offset="))?
    }
}

/// Returns the lease of the clients, in milliseconds.
pub fn lease_ms(tick: Duration) -> u64 {
    ms(tick, LEASE)
}
