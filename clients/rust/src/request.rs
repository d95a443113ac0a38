// SPDX-License-Identifier: MIT
//! One owner's request for one lock, in the words of the commands.

use std::time::Duration;

use redis::{cmd, Cmd};

use crate::renewals::Id;
use crate::settings::{millis, Settings};
use crate::state::Who;

/// Who may hold a lock together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Limit { limit: u64, permits: u64 },
    Shared,
}

impl Mode {
    /// Returns how many permits may be held at once.
    pub(crate) fn limit(self) -> u64 {
        match self {
            Mode::Exclusive => 1,
            Mode::Limit { limit, .. } => limit,
            Mode::Shared => u64::MAX,
        }
    }

    /// Returns how many of them its hold takes.
    pub(crate) fn permits(self) -> u64 {
        match self {
            Mode::Limit { permits, .. } => permits,
            Mode::Exclusive | Mode::Shared => 1,
        }
    }
}

/// One owner's request for one lock.
#[derive(Clone)]
pub(crate) struct AcquireRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    /// The owner's name without what another request of it may add, if the program has named it: it may re-enter.
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) mode: Mode,
    pub(crate) ephemeral: bool,
    pub(crate) settings: Settings,
    /// There are other masters: any failure is returned at once.
    pub(crate) vote: bool,
}

impl AcquireRequest {
    /// What its hold under this token is found by.
    pub(crate) fn id(&self, token: u64) -> Id {
        (self.key.clone(), token)
    }

    /// What its owner is found by, if the program has named it.
    pub(crate) fn who(&self) -> Option<Who> {
        Some((self.key.clone(), self.name.clone()?))
    }

    pub(crate) fn command(&self, name: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(&self.key).arg(&self.owner);
        command
    }

    fn auto(&self, command: &mut Cmd) {
        if self.ephemeral {
            command.arg("EPHEMERAL");
        }
        command.arg("AUTO").arg(millis(self.settings.hang_timeout));
    }

    /// Says HOLDS 1, so that a request that is sent again counts once.
    fn limits(&self, command: &mut Cmd) {
        command.arg("HOLDS").arg(1);
        match self.mode {
            Mode::Exclusive => &mut *command,
            Mode::Limit { limit, .. } => command.arg("LIMIT").arg(limit),
            Mode::Shared => command.arg("SHARED"),
        };
        // Older servers do not know the word.
        if self.mode.permits() > 1 {
            command.arg("PERMITS").arg(self.mode.permits());
        }
    }

    pub(crate) fn acquire(&self, once: bool) -> Cmd {
        let mut command = self.command(if once { "DLOCK.ACQUIRE" } else { "DLOCK.FAIRACQUIRE" });
        command.arg(millis(self.settings.lease));
        self.auto(&mut command);
        if !once {
            command.arg("CLAIM").arg(millis(self.settings.queue_grace));
        }
        self.limits(&mut command);
        command
    }

    pub(crate) fn wait(&self, channel: &str, block: Option<Duration>) -> Cmd {
        let mut command = self.command("DLOCK.FAIRACQUIRE");
        command.arg(millis(self.settings.first())).arg("NOTIFY").arg(channel);
        if let Some(block) = block {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("CLAIM").arg(millis(self.settings.queue_grace));
        self.limits(&mut command);
        command
    }

    pub(crate) fn renew(&self, token: u64) -> Cmd {
        let mut command = self.command("DLOCK.RENEW");
        command.arg(millis(self.settings.lease)).arg("TOKEN").arg(token);
        self.auto(&mut command);
        command
    }

    /// Without a token: whatever this owner holds.
    pub(crate) fn release(&self, token: Option<u64>) -> Cmd {
        let mut command = self.command("DLOCK.RELEASE");
        command.arg("HOLDS").arg(0);
        if let Some(token) = token {
            command.arg("TOKEN").arg(token);
        }
        command
    }
}
