// SPDX-License-Identifier: MIT
//! What is wished for, as words of commands.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{cmd, Cmd};

use crate::settings::{millis, Settings};
use crate::ties::Id;

/// One owner's wish for one lock, as words of commands.
pub(crate) struct Want {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) limit: Vec<String>,
    pub(crate) session: bool,
    pub(crate) settings: Settings,
    /// There are other masters: a failure is told at once.
    pub(crate) vote: bool,
    /// The token and the holds of this owner before: those are not ours to give back.
    outer: Mutex<(u64, u64)>,
}

impl Want {
    pub(crate) fn new(key: Vec<u8>, owner: Vec<u8>, limit: Vec<String>, session: bool, settings: Settings) -> Want {
        Want { key, owner, limit, session, settings, vote: false, outer: Mutex::default() }
    }

    pub(crate) fn for_a_vote(self) -> Want {
        Want { vote: true, ..self }
    }

    pub(crate) fn outer(&self) -> (u64, u64) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn within(&self, token: u64, holds: u64) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner) = (token, holds);
    }

    /// What its hold under this token is tied by.
    pub(crate) fn id(&self, token: u64) -> Id {
        (self.key.clone(), token)
    }

    pub(crate) fn command(&self, name: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(&self.key).arg(&self.owner);
        command
    }

    fn auto<'a>(&self, command: &'a mut Cmd) -> &'a mut Cmd {
        if self.session {
            command.arg("SESSION");
        }
        command.arg("AUTO").arg(millis(self.settings.auto))
    }

    pub(crate) fn take(&self, at_once: bool) -> Cmd {
        let mut command = self.command(if at_once { "DLOCK.ACQUIRE" } else { "DLOCK.FAIRACQUIRE" });
        self.auto(command.arg(millis(self.settings.lease)));
        if !at_once {
            command.arg("CLAIM").arg(millis(self.settings.claim));
        }
        command.arg("HOLDS").arg(self.outer().1 + 1).arg(&self.limit);
        command
    }

    pub(crate) fn wait(&self, how: &[&str], block: Option<Duration>) -> Cmd {
        let mut command = self.command("DLOCK.FAIRACQUIRE");
        command.arg(millis(self.settings.first())).arg(how);
        if let Some(block) = block {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("CLAIM").arg(millis(self.settings.claim));
        command.arg("HOLDS").arg(self.outer().1 + 1).arg(&self.limit);
        command
    }

    pub(crate) fn renew(&self, token: u64) -> Cmd {
        let mut command = self.command("DLOCK.RENEW");
        self.auto(command.arg(millis(self.settings.lease)).arg("TOKEN").arg(token));
        command
    }

    pub(crate) fn release(&self, token: u64) -> Cmd {
        let mut command = self.command("DLOCK.RELEASE");
        command.arg("HOLDS").arg(self.outer().1);
        if token > 0 {
            command.arg("TOKEN").arg(token);
        }
        command
    }
}
