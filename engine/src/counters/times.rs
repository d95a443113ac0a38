//! How long something took, over all its instances.

use hdrhistogram::Histogram;

/// Longer times count as this long (2^42 µs are 50 days, more than the longest default lease).
const LONGEST_US: u64 = 1 << 42;

/// Digits that a percentile is right to: so it is off by less than one in a hundred, and all the counts take 38 KB.
const DIGITS: u8 = 2;

/// Times in microseconds, kept as counts in buckets whose width grows with the time.
#[derive(Debug, Clone)]
pub struct Times {
    counts: Histogram<u64>,
    sum_us: u64,
    longest_us: u64,
}

impl Times {
    /// Adds one. Runs in every release.
    pub fn record(&mut self, us: u64) {
        self.counts.saturating_record(us);
        self.sum_us = self.sum_us.saturating_add(us);
        self.longest_us = self.longest_us.max(us);
    }

    /// Returns how many times were added.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns their sum.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Returns the longest of them.
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }

    /// Returns the time that this many in a thousand did not exceed; 0 if there was none.
    pub fn per_mille(&self, part: u32) -> u64 {
        let bucket = self.counts.value_at_quantile(f64::from(part) / 1000.0);
        // A bucket's upper end may lie beyond all that was recorded.
        bucket.min(self.longest_us)
    }
}

impl Default for Times {
    fn default() -> Self {
        Times {
            // Not refused: both are constants within the crate's bounds.
            counts: Histogram::new_with_max(LONGEST_US, DIGITS).expect("sound bounds"),
            sum_us: 0,
            longest_us: 0,
        }
    }
}
