//! Something that is measured, again and again.

use std::time::Duration;

use crate::failure::Failure;

/// A number, and what it says, its unit included: `("cpu µs", 1.2)`.
pub type Figure = (&'static str, f64);

/// Something that is measured, again and again, in turn with others of its group.
pub trait Way {
    /// What the tables call it.
    fn name(&self) -> &str;

    /// Measures once.
    ///
    /// # Errors
    /// When a server does not answer as it should.
    fn sample(&mut self) -> Result<Vec<Figure>, Failure>;

    /// Does what makes the first sample like the others: a sample that does not count, where nothing less will do.
    ///
    /// # Errors
    /// The same.
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.sample().map(drop)
    }
}

/// A way that is no more than how it is measured once.
pub fn way(
    name: &'static str,
    sample: impl FnMut() -> Result<Vec<Figure>, Failure> + 'static,
) -> Box<dyn Way> {
    struct Sampled<F>(&'static str, F);

    impl<F: FnMut() -> Result<Vec<Figure>, Failure>> Way for Sampled<F> {
        fn name(&self) -> &str {
            self.0
        }

        fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
            (self.1)()
        }
    }

    Box::new(Sampled(name, sample))
}

/// The ways of a group, ready to be measured.
pub type Opened = Result<Vec<Box<dyn Way>>, Failure>;

/// Ways that are measured side by side.
pub struct Group {
    /// What the tables call it.
    pub name: &'static str,
    /// How much of it is measured.
    pub effort: Effort,
    /// Starts servers and makes all ready.
    pub open: Box<dyn Fn() -> Opened>,
}

/// How much of a group is measured.
#[derive(Clone, Copy)]
pub struct Effort {
    /// When there is time.
    pub full: Stint,
    /// When there is little; none where that is too little.
    pub quick: Option<Stint>,
    /// Whether the first sample must not be the first that a server has to do with it. What is made ready anew for
    /// every sample, for longer than it is measured, needs nothing before.
    pub warms_up: bool,
}

/// Sittings, and rounds in each.
///
/// Rounds follow each other on the same servers. A *sitting* starts new ones: where a process happens to lie
/// in memory makes it faster or slower by some percent for as long as it lives, and that is to be seen in the
/// spread.
#[derive(Clone, Copy)]
pub struct Stint {
    /// How often servers are started.
    pub sittings: usize,
    /// Rounds on each of them.
    pub rounds: usize,
    /// The group's share of the time: when it is over, no further round begins. So a machine that is slow or busy
    /// measures less, and does not take much longer.
    pub share: Duration,
}

impl Effort {
    /// Sittings, rounds in each, and the share in seconds. Nothing when there is little time.
    pub const fn full(sittings: usize, rounds: usize, share_s: u64) -> Effort {
        Effort {
            full: Stint::new(sittings, rounds, share_s),
            quick: None,
            warms_up: true,
        }
    }

    /// The same when there is little time.
    pub const fn quick(self, sittings: usize, rounds: usize, share_s: u64) -> Effort {
        Effort {
            quick: Some(Stint::new(sittings, rounds, share_s)),
            ..self
        }
    }

    /// The same from a cold start.
    pub const fn cold(self) -> Effort {
        Effort {
            warms_up: false,
            ..self
        }
    }

    /// What is to be done.
    pub fn stint(&self, is_quick: bool) -> Option<Stint> {
        if is_quick {
            self.quick
        } else {
            Some(self.full)
        }
    }
}

impl Stint {
    const fn new(sittings: usize, rounds: usize, share_s: u64) -> Stint {
        Stint {
            sittings,
            rounds,
            share: Duration::from_secs(share_s),
        }
    }
}
