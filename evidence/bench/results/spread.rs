//! Statistics of many samples.

use serde::{Deserialize, Serialize};

/// The median of many samples, and their spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// A quarter of the samples lie below.
    pub lower: f64,
    /// A quarter of the samples lie above.
    pub upper: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The number of samples.
    pub samples: usize,
}

impl Spread {
    /// Computes the spread; none without samples.
    pub fn of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: rounded(quantile(&sorted, 0.5)?),
            lower: rounded(quantile(&sorted, 0.25)?),
            upper: rounded(quantile(&sorted, 0.75)?),
            min: rounded(*sorted.first()?),
            max: rounded(*sorted.last()?),
            samples: sorted.len(),
        })
    }

    /// Computes the ratios of two series, round by round: a disturbance affects both samples of a round.
    pub fn of_ratios(subject: &[f64], against: &[f64]) -> Option<Spread> {
        let ratios: Vec<f64> = subject.iter().zip(against).map(|(a, b)| a / b).collect();
        Spread::of(&ratios)
    }
}

/// Rounds to four digits: more than the precision of any measurement here, and files stay readable.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let decimals = 3 - value.abs().log10().floor() as i32;
    // Two powers, since a quotient of whole numbers has fewer digits than a product with 0.001.
    let (up, down) = (
        10_f64.powi(decimals.max(0)),
        10_f64.powi((-decimals).max(0)),
    );
    (value * up / down).round() * down / up
}

/// Returns a quantile, interpolated between its two neighbours.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let place = sorted.len().checked_sub(1)? as f64 * q;
    let (low, high) = (place.floor(), place.ceil());
    let below = sorted.get(low as usize)?;
    let above = sorted.get(high as usize)?;
    Some(below + (above - below) * (place - low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let check = |samples: &[f64], lower, median, upper| {
            let spread = Spread::of(samples).expect("there are samples");
            assert_eq!(
                (spread.lower, spread.median, spread.upper),
                (lower, median, upper),
                "{samples:?}"
            );
        };
        check(&[3.0], 3.0, 3.0, 3.0);
        check(&[2.0, 1.0], 1.25, 1.5, 1.75);
        check(&[5.0, 1.0, 4.0, 2.0, 3.0], 2.0, 3.0, 4.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn four_digits() {
        let check = |value: f64, text: &str| assert_eq!(rounded(value).to_string(), text);
        check(1.234567, "1.235");
        check(0.00123456, "0.001235");
        check(1_234_567.0, "1235000");
        check(0.0, "0");
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The second round was disturbed: both samples took twice the time.
        let spread = Spread::of_ratios(&[3.0, 6.0], &[2.0, 4.0]).expect("there are samples");
        assert_eq!((spread.min, spread.median, spread.max), (1.5, 1.5, 1.5));
    }
}
