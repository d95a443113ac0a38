//! Numbers from a seed.

/// A generator of 64-bit numbers (splitmix64): the same seed gives the same run on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in so many cases of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// The seeds of a randomized test: the first `count`, or those in `DLOCK_SEED`, one number or a range (`1..5000`).
fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("DLOCK_SEED") else {
        return 1..count + 1;
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .expect("DLOCK_SEED is a number, or two with .. between")
    };
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&asked)..number(&asked) + 1,
    }
}

/// Runs a test for each seed; a failure names the seed that shows it again.
pub fn for_seeds(count: u64, test: impl Fn(u64) -> Result<(), String>) {
    for seed in seeds(count) {
        if let Err(fault) = test(seed) {
            panic!("{fault}\n\nto see it again: DLOCK_SEED={seed}");
        }
    }
}
