//! Random numbers from a seed.

/// A generator of 64-bit numbers (splitmix64): a seed gives one run on every machine.
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

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Returns true if tests may take minutes: `make check-long`.
pub fn is_long() -> bool {
    std::env::var_os("DLOCK_LONG").is_some()
}

/// Returns the seeds of a randomized test: the first `few`, with `DLOCK_LONG` all up to `all`, or those in `DLOCK_SEED`, one
/// number or a range (`1..5000`).
fn seeds(few: u64, all: u64) -> std::ops::Range<u64> {
    let number = |text: &str| {
        text.parse::<u64>()
            .expect("DLOCK_SEED is a number, or two with .. between")
    };
    let Ok(asked) = std::env::var("DLOCK_SEED") else {
        return 1..1 + if is_long() { all } else { few };
    };
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&asked)..number(&asked) + 1,
    }
}

/// Runs a test for `count` seeds; a failure names the seed that reproduces it.
pub fn for_seeds(count: u64, test: impl Fn(u64) -> Result<(), String> + Sync) {
    for_some_seeds(count, count, test);
}

/// Runs a test that takes long: for `all` seeds with `DLOCK_LONG`, otherwise for a few.
pub fn for_some_seeds(few: u64, all: u64, test: impl Fn(u64) -> Result<(), String> + Sync) {
    let seeds = seeds(few, all);
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let work = || loop {
        let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        if let Err(fault) = test(seed) {
            panic!("{fault}\n\nto reproduce it: DLOCK_SEED={seed}");
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
