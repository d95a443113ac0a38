//! The token clock: one ever-rising number for fencing tokens and for places in queues.

use crate::types::{Arrival, Now, Token};

/// Hands out numbers that rise over all locks and databases, restarts and promotions included.
///
/// The next number is `max(last + 1, wall clock in microseconds)`: no state needs to survive a restart as long as the
/// wall clock is not behind the last grant, and a number then also tells, to the microsecond, when it was handed out.
#[derive(Debug, Clone, Default)]
pub struct TokenClock {
    last: u64,
}

/// A stored number further ahead of the wall clock than this did not come from a healthy server (one day).
const TRUSTED_AHEAD_US: u64 = 86_400_000_000;

impl TokenClock {
    /// Returns the next fencing token, above all numbers that were given or observed.
    pub fn token(&mut self, now: Now) -> Token {
        Token(self.next(now))
    }

    /// Returns the number of the next place in a queue, which rises like tokens.
    pub fn arrival(&mut self, now: Now) -> Arrival {
        Arrival(self.next(now))
    }

    fn next(&mut self, now: Now) -> u64 {
        self.last = (self.last + 1).max(now.us.min(Token::END.0));
        self.last
    }

    /// Notes a number of another server, or of this one before its restart, so that the next is above it. Ignores one that is
    /// more than a day ahead of `now`.
    pub fn observe(&mut self, number: u64, now: Now) {
        if plausible(number, now) {
            self.last = self.last.max(number);
        }
    }

    /// Returns the last number that was given, observed or followed.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Notes a number of the primary's. It counts whatever this server's own clock says.
    pub fn follow(&mut self, number: u64) {
        if Token::may_be(number) {
            self.last = self.last.max(number);
        }
    }
}

/// Returns true if a token from outside can be genuine: not zero, and at most a day ahead of `now`.
pub fn plausible(number: u64, now: Now) -> bool {
    Token::may_be(number) && number <= now.us.saturating_add(TRUSTED_AHEAD_US)
}
