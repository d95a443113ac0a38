//! A world that is driven step by step; every promise is checked after each step.

use crate::client::Client;
use crate::invariants::{self, Broken};
use crate::snapshot::{Holder, Picture};
use crate::world::{Op, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::refusal::escaped;
use dlock_engine::{Millis, Policy, SteadyMs};

/// Connections have ids from 1 to this.
pub const CONNECTIONS: u64 = 5;

/// Longer than any lease, window or quarantine that can be asked for.
const LONG_MS: Millis = 31 * 86_400_000;

/// A world, and the steps taken in it.
pub struct Story {
    pub world: World,
    before: Picture,
    told: Vec<String>,
}

impl Story {
    pub fn new() -> Story {
        let mut world = World::new(Policy::default());
        let before = Picture::take(&mut world);
        Story {
            world,
            before,
            told: Vec::new(),
        }
    }

    /// Notes a step, for the report of a failure.
    pub fn tell(&mut self, what: String) {
        self.told.push(what);
    }

    /// Ends the story with a failure.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{}\n\n{what}", self.told.join("\n"));
    }

    /// Sends a command on a connection. A waiting one cannot send: then the command is a script's.
    pub fn send(&mut self, id: u64, words: &[&[u8]]) -> Result<Reply, Error> {
        let client = match self.world.blocks(id) || id > CONNECTIONS {
            true => Client::script(CONNECTIONS + id),
            false => Client::connection(id),
        };
        let db = u32::from(id == CONNECTIONS);
        let answer = self.world.send(client, db, words);
        let shown: Vec<String> = words.iter().map(|word| escaped(word, 40)).collect();
        self.tell(format!("{client:?}: {} -> {answer:?}", shown.join(" ")));
        answer
    }

    /// Processes everything that is due, and checks every promise. `orderly` as for [`invariants::check`].
    pub fn look(&mut self, orderly: bool) {
        self.world.tick();
        let after = Picture::take(&mut self.world);
        let checked = invariants::check(&self.before, &after, orderly)
            .and_then(|()| invariants::round_trip(&self.world));
        if let Err(Broken(rule, what)) = checked {
            self.fail(&format!("{rule:?}: {what}"));
        }
        self.before = after;
    }

    /// Returns everything that a refused command must leave unchanged. An expired lease counts as ended whether its key still
    /// exists or not.
    pub fn state(&self) -> String {
        let mut state = format!(
            "{} wait, {} places",
            self.world.waits.len(),
            self.before.places
        );
        for (name, row) in &self.before.rows {
            let live = |hold: &&Holder| hold.deadline > self.before.now;
            let holders: Vec<&Holder> = row.holders.iter().filter(live).collect();
            if !holders.is_empty() || !row.queue.is_empty() || row.upgrade.is_some() {
                let queue = (&row.upgrade, &row.queue);
                state.push_str(&format!("\n{name:?}: {holders:?} {queue:?}"));
            }
        }
        state
    }

    /// Ends all connections, lets all times run out, and checks that nothing is left.
    pub fn end(&mut self) {
        self.tell("the end".into());
        self.world.only_time = false;
        self.world.configure(|policy| {
            policy.grants = true;
            policy.quarantine_until = SteadyMs(0);
        });
        self.look(true);
        self.world.only_time = false;
        for id in 1..=CONNECTIONS {
            self.world.dies(id);
        }
        self.look(true);
        for _ in 0..3 {
            self.world.pass(LONG_MS);
            self.world.expire_keys();
            self.look(true);
        }
        self.world.alter(Op::Flush(None));
        self.look(false);
        if let Err(Broken(rule, what)) = invariants::no_leak(&self.world) {
            self.fail(&format!("{rule:?}: {what}"));
        }
    }
}
