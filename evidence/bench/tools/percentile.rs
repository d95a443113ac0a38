//! The distribution of many durations.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::way::Figure;

/// One in a hundred takes longer.
pub const P99: &str = "p99 µs";
/// The longest.
pub const MAX: &str = "max µs";

/// Longer durations count as this.
const LONGEST_NS: u64 = 600_000_000_000;

/// Nanoseconds, to three digits.
pub struct Durations(Histogram<u64>);

impl Durations {
    /// Makes an empty distribution.
    pub fn new() -> Durations {
        Durations(Histogram::new_with_max(LONGEST_NS, 3).expect("bounds that are in order"))
    }

    /// Adds a duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanos);
    }

    /// Returns all figures.
    pub fn figures(&self) -> Vec<Figure> {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        vec![
            ("p50 µs", at(0.5)),
            (P99, at(0.99)),
            ("p99.9 µs", at(0.999)),
            (MAX, at(1.0)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_thousand_durations() {
        let mut durations = Durations::new();
        for micros in 1..=1_000 {
            durations.record(Duration::from_micros(micros));
        }
        for ((name, value), wanted) in durations
            .figures()
            .into_iter()
            .zip([500.0, 990.0, 999.0, 1_000.0])
        {
            assert!((value - wanted).abs() <= wanted / 500.0, "{name}: {value}");
        }
    }
}
