//! The lead of a replica's clock over its primary's.

use crate::types::{Millis, Now, SteadyMs};

/// The length of a period. The estimate is the least difference in the current period and the one before it.
const PERIOD_MS: Millis = 30_000;

/// The fewest numbers that an estimate needs: one that was delayed on its way says little.
const FEWEST_NUMBERS: u32 = 5;

/// The lead that is too much: after a promotion this server would end leases that early.
const TOO_MUCH_MS: Millis = 50;

/// Estimates the lead from the numbers that a primary hands out. They are times of its clock and arrive a little later, so the
/// smallest difference to this server's clock is the lead plus the shortest time on the way.
#[derive(Debug, Clone, Default)]
pub struct ClockLead {
    // When the current period began.
    began: SteadyMs,
    current: Period,
    previous: Period,
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
            let ended = std::mem::take(&mut self.current);
            self.previous = if age > 2 * PERIOD_MS {
                Period::default()
            } else {
                ended
            };
        }
        if self.current.count == 0 {
            self.began = now.steady();
        }
        let ahead = now.us.saturating_sub(number);
        self.current.least_us = match self.current.count {
            0 => ahead,
            _ => self.current.least_us.min(ahead),
        };
        self.current.count = self.current.count.saturating_add(1);
    }

    /// Returns by how many milliseconds this server's clock is ahead at most; 0 if it is behind, or if too little is known. The
    /// current period and the one before it count: no number that came more than three periods ago.
    pub fn ms(&self, now: Now) -> Millis {
        let age = now.steady().since(self.began);
        let periods = [(self.current, 2 * PERIOD_MS), (self.previous, PERIOD_MS)].into_iter();
        let known = periods.filter(|(period, most)| period.count > 0 && age <= *most);
        let known = known.map(|(period, _)| period);
        let count: u32 = known.clone().map(|period| period.count).sum();
        match known.map(|period| period.least_us).min() {
            Some(least) if count >= FEWEST_NUMBERS => least / 1000,
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
