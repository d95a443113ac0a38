//! One server, run event by event as the module runs it, and the connections that are blocked at it.

use crate::client::Client;
use crate::keys::Value;
use crate::server::Server;
use crate::world::{Op, BEGIN_MS};
use dlock_commands::change::{many, session};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::{ClientId, Millis, Name, Now, Outcome, Policy, Receiver, RequestId, WallMs};
use std::collections::BTreeMap;

/// What a connection is answered.
pub type Answer = Result<Reply, Error>;

#[derive(Debug, Clone)]
pub struct Node {
    pub server: Server,
    pub now: Now,
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
        Node {
            server: Server::new(true, policy),
            now: Now {
                us: BEGIN_MS * 1000,
                steady_us: 0,
            },
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
        while engine.unsettled() {
            engine.settle_dirty(keys, now, 16);
        }
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
        self.server.keys.close();
        let over = self.ttls().filter(|(_, end)| *end <= self.now.wall());
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.server.alter(&Op::Del(name), self.now);
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
        self.server.alter(op, self.now);
        self.settle();
    }

    /// Makes the server a replica, and at once a primary again.
    pub fn change_roles(&mut self) {
        self.server.engine.demote(self.now);
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
        self.settle();
    }

    /// Ends an event: the engine tells the sessions, and the server writes the keys and answers the connections.
    fn end_event(&mut self) {
        self.server.engine.tell_sessions(self.now);
        let (_, outputs) = self.server.work_off();
        for output in outputs {
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
            Outcome::News(news) => Ok(session::reply(&news, self.now)),
            other => panic!("nobody asked for {other:?}"),
        }
    }
}
