//! One server, run event by event as the module runs it, and the connections that are blocked at it.

use super::replica::Replica;
use crate::client::Client;
use crate::keys::Value;
use crate::server::{Data, Server};
use crate::world::{Op, BEGIN_MS};
use dlock_commands::change::{many, session};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::{
    ClientId, Loss, Millis, Name, NoAck, Now, Outcome, Output, Policy, Receiver, Refusal,
    RequestId, WallMs,
};
use std::collections::BTreeMap;

/// What a connection is answered.
pub type Answer = Result<Reply, Error>;

#[derive(Debug, Clone)]
pub struct Node {
    pub server: Server,
    pub now: Now,
    /// The replica that confirms, where one has to.
    pub replica: Option<Replica>,
    /// The connections that are blocked, by their requests.
    blocked: BTreeMap<RequestId, u64>,
    /// What blocked connections were answered, until a test takes it.
    pub heard: Vec<(u64, Answer)>,
}

/// A row of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub number: u64,
    pub word: &'static str,
    pub key: String,
    pub owner: String,
    pub token: u64,
    pub left: Millis,
}

impl Row {
    /// Returns true if it tells an owner of a lock.
    pub fn grants(&self, key: &str, owner: &str) -> bool {
        self.word == "granted" && self.key == key && self.owner == owner
    }
}

/// Returns the rows in the reply to a SESSION command.
pub fn rows(news: &Reply) -> Vec<Row> {
    let parts = |reply: &Reply| match reply {
        Reply::Array(parts) => parts.clone(),
        _ => Vec::new(),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let row = |row: &Reply| match &parts(row)[..] {
        [Reply::Integer(number), Reply::Text(word), Reply::Bulk(key), Reply::Bulk(owner), Reply::Integer(token), Reply::Integer(left)] => {
            Row {
                number: *number,
                word,
                key: text(key),
                owner: text(owner),
                token: *token,
                left: *left,
            }
        }
        other => panic!("this is no row: {other:?}"),
    };
    let rows = parts(news).get(3).map(parts);
    rows.unwrap_or_default().iter().map(row).collect()
}

impl Node {
    pub fn new(policy: Policy) -> Node {
        let (confirms, server) = (policy.confirms(), Server::new(true, policy));
        let now = Now {
            us: BEGIN_MS * 1000,
            steady_us: 0,
        };
        Node {
            replica: confirms.then(|| Replica::of(&server, now)),
            server,
            now,
            blocked: BTreeMap::new(),
            heard: Vec::new(),
        }
    }

    /// Returns true if a connection is blocked.
    pub fn is_blocked(&self, client: u64) -> bool {
        self.blocked.values().any(|its| *its == client)
    }

    /// Runs a command; none if it blocks its connection.
    pub fn send(&mut self, client: Client, words: &str) -> Option<Answer> {
        let words: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        let answer = self.server.run(self.now, 0, client, &words);
        if let Ok(Reply::Wait(id, _)) = answer {
            self.blocked.insert(id, client.id);
        }
        self.end_event();
        match answer {
            Ok(Reply::Wait(..)) => None,
            answer => Some(answer),
        }
    }

    /// Returns the rows of a session that nobody has seen. A copy is asked, so that the server does not notice.
    pub fn rows(&self, session: &str) -> Vec<Row> {
        let answer = self
            .clone()
            .send(Client::script(0), &format!("SESSION k {session} 1"));
        let Some(Ok(news)) = answer else {
            panic!("{session} has no rows: {answer:?}");
        };
        rows(&news)
    }

    /// Does what events have left to be done, as soon as the server accepts writes.
    pub fn settle(&mut self) {
        self.work_off();
        self.end_event();
    }

    fn work_off(&mut self) {
        let (now, Server { engine, keys, .. }) = (self.now, &mut self.server);
        // What is left then waits for its slot.
        while engine.unsettled() && engine.settle_dirty(keys, now, 16) {}
    }

    /// Lets time pass on a server that does nothing meanwhile.
    pub fn jump(&mut self, ms: Millis) {
        self.now.us += ms * 1000;
        self.now.steady_us += ms * 1000;
    }

    /// Processes everything that is due. The server removes the keys whose TTL has run out.
    pub fn tick(&mut self) {
        while self.server.engine.tick(self.now) {}
        self.work_off();
        self.end_event();
        let over = self.ttls().filter(|(_, end)| *end <= self.now.wall());
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.alter(&Op::Del(name));
        }
        self.settle();
    }

    /// Returns the keys with a TTL, and when it runs out.
    fn ttls(&self) -> impl Iterator<Item = (&Name, WallMs)> {
        let values = self.server.keys.values.iter();
        values.filter_map(|(name, value)| match value {
            Value::Lock(_, end) => Some((name, (*end)?)),
            Value::Other => None,
        })
    }

    /// Lets time pass on a server that is never late: it wakes whenever its engine has asked for it.
    pub fn pass(&mut self, ms: Millis) {
        let mut left = ms;
        while let Some(due) = self.due_in().filter(|due| *due <= left) {
            self.jump(due);
            left -= due;
            self.tick();
        }
        self.jump(left);
    }

    /// Returns in how many milliseconds the server has something to do.
    pub fn due_in(&self) -> Option<Millis> {
        let ttls = self.ttls().map(|(_, end)| end.since(self.now.wall()));
        self.server
            .engine
            .next_wakeup(self.now)
            .into_iter()
            .chain(ttls)
            .min()
    }

    /// Ends a connection; the server notices.
    pub fn dies(&mut self, client: u64) {
        let (now, engine) = (self.now, &mut self.server.engine);
        let its = self.blocked.iter().filter(|(_, other)| **other == client);
        for id in its.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.blocked.remove(&id);
            engine.leave(id, now);
        }
        engine.on_disconnect(ClientId(client), now);
        self.settle();
    }

    /// Performs an operation that is not the module's.
    pub fn alter(&mut self, op: &Op) {
        if let Some(replica) = &mut self.replica {
            replica.send(op.clone());
        }
        self.server.alter(op, self.now);
        self.settle();
    }

    /// Has the replica confirm what it has read, and read the rest, if its link works.
    pub fn replicate(&mut self, works: bool) {
        let Some(replica) = &mut self.replica else {
            return;
        };
        for (output, confirmed) in replica.read(works, self.now) {
            match confirmed {
                true => self.confirmed(output),
                false => self.not_confirmed(
                    output,
                    NoAck::Late {
                        confirmed: 0,
                        needed: 1,
                    },
                ),
            }
        }
        self.settle();
    }

    /// Sends an answer that is confirmed, if what it promises still holds.
    fn confirmed(&mut self, mut output: Output) {
        let (now, Server { engine, keys, .. }) = (self.now, &mut self.server);
        let mut promises = output.pending.promises.iter();
        if output.outcome == Outcome::Prolonged {
            engine.prolonged(promises.as_slice());
        } else if !promises.all(|promise| engine.stands(keys, now, promise)) {
            self.not_confirmed(output, NoAck::Ended);
        } else {
            engine.confirmed(&output.pending.promises, 0);
            output.pending.confirmed = true;
            engine.push_output(output);
        }
    }

    fn not_confirmed(&mut self, mut output: Output, why: NoAck) {
        if output.outcome == Outcome::Prolonged {
            return;
        }
        let engine = &mut self.server.engine;
        engine.not_confirmed(std::mem::take(&mut output.pending.promises));
        output.outcome = Outcome::Refused(Refusal::NoAck(why));
        engine.push_output(output);
    }

    /// Gives the slot of all locks away. Returns the locks, which leave with it.
    pub fn give_slot(&mut self, names: impl IntoIterator<Item = Name>) -> Data {
        let (data, Server { engine, keys, .. }) = (self.server.data(), &mut self.server);
        keys.away.extend(names);
        keys.values.clear();
        engine.on_slots_changed(|_| false);
        engine.on_locks_left(|_| true, Loss::Moved, self.now);
        self.settle();
        self.copy();
        data
    }

    /// Takes the slot with its locks. They are at the replica before anybody asks for them.
    pub fn take_slot(&mut self, data: Data) {
        self.server.keys.away.clear();
        for (name, value) in data {
            let (bytes, _) = value.expect("a lock");
            self.server.alter(&Op::Restore(name, bytes), self.now);
        }
        self.settle();
        self.copy();
    }

    fn copy(&mut self) {
        if let Some(replica) = &mut self.replica {
            replica.copy(&self.server, self.now);
        }
    }

    /// Sets by how much the server's clock is ahead of the true time.
    pub fn set_clock(&mut self, ahead_us: u64) {
        self.now.us = BEGIN_MS * 1000 + self.now.steady_us + ahead_us;
    }

    /// Lets the replica take over with what it has read, by a clock of its own.
    pub fn fail_over(&mut self, ahead_us: u64) {
        let policy = self.server.engine.policy().clone();
        let replica = self.replica.as_ref().expect("a replica");
        self.server = replica.server.clone();
        self.server.engine.set_policy(policy);
        self.set_clock(ahead_us);
        self.begin();
    }

    /// Makes the server a replica, and at once a primary again.
    pub fn change_roles(&mut self) {
        self.server.engine.demote();
        self.server.primary = false;
        self.server.follow_dirty(self.now);
        self.begin();
    }

    /// Restarts the server: it knows what its file has, or nothing.
    pub fn restart(&mut self) {
        self.server = self.server.reload(self.now);
        self.begin();
    }

    /// Makes the server decide. It has ended every blocked wait.
    fn begin(&mut self) {
        self.blocked.clear();
        self.server.primary = true;
        self.server.engine.promote();
        if let Some(replica) = &mut self.replica {
            replica.begin(&self.server, self.now);
        }
        self.settle();
    }

    /// Ends an event: the engine tells the sessions, and the server writes the keys and answers the connections.
    fn end_event(&mut self) {
        self.server.engine.tell_sessions(self.now);
        let (closed, outputs) = self.server.work_off();
        if let Some(replica) = &mut self.replica {
            let changed = closed.into_iter().filter(|its| !its.effect.is_empty());
            changed.for_each(|its| replica.send(Op::Effect(its.name, its.effect)));
        }
        for output in outputs {
            let replica = self.replica.as_mut();
            if let Some(replica) = replica.filter(|_| output.waits_for_replicas()) {
                replica.keep(output, self.now);
                continue;
            }
            let client = self.blocked.remove(&output.id);
            let client = client.filter(|_| matches!(output.to, Receiver::Connection));
            if let Some(client) = client {
                self.heard.push((client, self.answer(output.outcome)));
            }
        }
    }

    fn answer(&self, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Granted(grant) => Ok(Reply::Grant(grant.token, grant.holds, None)),
            Outcome::GrantedAll(grants) => Ok(many::tokens(&grants)),
            Outcome::TimedOut | Outcome::Cancelled => Ok(Reply::NullArray),
            Outcome::Replaced => Err(Error::Replaced),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Renewed(left, Some(id)) => {
                Ok(Reply::Array([left, id].map(Reply::Integer).to_vec()))
            }
            Outcome::News(news) => Ok(session::reply(&news, self.now)),
            other => panic!("nobody asked for {other:?}"),
        }
    }
}
