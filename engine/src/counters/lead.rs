//! By how much a replica's clock is ahead of its primary's.

use crate::types::{Millis, Now, SteadyMs};

/// How long a window is of which the least counts.
const WINDOW_MS: Millis = 30_000;

/// Numbers that must have come before anything is said: one that was held up on its way says little.
const LEAST: u32 = 5;

/// What the numbers tell that a primary hands out: they are times of its clock, and come here a little later. So the least that
/// this server's clock was ahead of them is the time of the way, and its lead.
#[derive(Debug, Clone, Default)]
pub struct ClockLead {
    began: SteadyMs,
    now: Window,
    before: Window,
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    least_us: u64,
    count: u32,
}

impl ClockLead {
    /// A number that the primary has just handed out has come.
    pub fn observe(&mut self, number: u64, now: Now) {
        if now.steady().since(self.began) > WINDOW_MS {
            self.before = std::mem::take(&mut self.now);
            self.began = now.steady();
        }
        let ahead = now.us.saturating_sub(number);
        self.now.least_us = match self.now.count {
            0 => ahead,
            _ => self.now.least_us.min(ahead),
        };
        self.now.count = self.now.count.saturating_add(1);
    }

    /// By how many milliseconds this server's clock is ahead at most; 0 if too little is known.
    pub fn ms(&self) -> Millis {
        let windows = [self.now, self.before];
        let known = windows.iter().filter(|window| window.count > 0);
        let count: u32 = known.clone().map(|window| window.count).sum();
        match known.map(|window| window.least_us).min() {
            Some(least) if count >= LEAST => least / 1000,
            _ => 0,
        }
    }
}
