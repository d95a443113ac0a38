//! The lead of a replica's clock over its primary's.

use crate::types::{Millis, Now, SteadyMs};

/// The length of a period. The least lead within it counts.
const PERIOD_MS: Millis = 30_000;

/// The fewest numbers that an estimate needs: one that was held up on its way says little.
const LEAST: u32 = 5;

/// The lead that is too much: after a promotion this server would end leases that early.
const TOO_MUCH_MS: Millis = 50;

/// Estimates the lead from the numbers that a primary hands out. They are times of its clock and arrive a little later, so the
/// smallest difference to this server's clock is the time of the way plus the lead.
#[derive(Debug, Clone, Default)]
pub struct ClockLead {
    began: SteadyMs,
    now: Period,
    before: Period,
    warned: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Period {
    least_us: u64,
    count: u32,
}

impl ClockLead {
    /// Takes in a number that the primary has just handed out.
    pub fn observe(&mut self, number: u64, now: Now) {
        let age = now.steady().since(self.began);
        if age > PERIOD_MS {
            let ended = std::mem::take(&mut self.now);
            self.before = if age > 2 * PERIOD_MS {
                Period::default()
            } else {
                ended
            };
        }
        if self.now.count == 0 {
            self.began = now.steady();
        }
        let ahead = now.us.saturating_sub(number);
        self.now.least_us = match self.now.count {
            0 => ahead,
            _ => self.now.least_us.min(ahead),
        };
        self.now.count = self.now.count.saturating_add(1);
    }

    /// Returns by how many milliseconds this server's clock is ahead at most; 0 if too little is known. Numbers that came more than
    /// two periods ago say nothing.
    pub fn ms(&self, now: Now) -> Millis {
        let age = now.steady().since(self.began);
        let periods = [(self.now, 2 * PERIOD_MS), (self.before, PERIOD_MS)].into_iter();
        let known = periods.filter(|(period, most)| period.count > 0 && age <= *most);
        let known = known.map(|(period, _)| period);
        let count: u32 = known.clone().map(|period| period.count).sum();
        match known.map(|period| period.least_us).min() {
            Some(least) if count >= LEAST => least / 1000,
            _ => 0,
        }
    }

    /// Returns the lead in milliseconds if it is too much and was not at the last call: once as long as it lasts.
    pub fn begins_to_matter(&mut self, now: Now) -> Option<Millis> {
        let lead = self.ms(now);
        let warned = std::mem::replace(&mut self.warned, lead > TOO_MUCH_MS);
        (self.warned && !warned).then_some(lead)
    }
}
