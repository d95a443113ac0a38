//! An operation that is measured again and again.

use std::time::Duration;

use crate::failure::Failure;

/// A number and its meaning, with the unit: `("cpu µs", 1.2)`.
pub type Figure = (&'static str, f64);

/// An operation that is measured again and again, in turn with the other ways of its group.
pub trait Way {
    /// Measures once.
    ///
    /// # Errors
    /// If a server does not answer as expected.
    fn sample(&mut self) -> Result<Vec<Figure>, Failure>;

    /// Makes the first sample like the others. Unless a way needs less for that, this takes a sample that does not count.
    ///
    /// # Errors
    /// If a server does not answer as expected.
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.sample().map(drop)
    }
}

impl<F: FnMut() -> Result<Vec<Figure>, Failure>> Way for F {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        self()
    }
}

/// A way, and its name in the tables.
pub type Named = (&'static str, Box<dyn Way>);

/// Names a way.
pub fn way(name: &'static str, way: impl Way + 'static) -> Named {
    (name, Box::new(way))
}

/// The ways of a group, ready to be measured.
pub type Opened = Result<Vec<Named>, Failure>;

/// Ways that are compared with each other.
pub struct Group {
    /// The name in the tables.
    pub name: &'static str,
    /// The amount of measurement.
    pub effort: Effort,
    /// Starts servers and prepares the ways.
    pub open: Box<dyn Fn() -> Opened>,
}

/// The amount of measurement of a group.
#[derive(Clone, Copy)]
pub struct Effort {
    /// In a full run.
    pub full: Stint,
    /// In the quick run; none if even that takes too long.
    pub quick: Option<Stint>,
    /// Whether a way needs a warm-up, because its first sample must not be the server's first such work. A way that prepares for
    /// every sample, longer than it measures, needs none.
    pub warms_up: bool,
}

/// Sittings, and rounds in each.
///
/// Rounds follow each other on one set of servers. A *sitting* starts new ones: the position of a process in memory makes it
/// faster or slower by some percent for its life, and the spread should show that.
#[derive(Clone, Copy)]
pub struct Stint {
    /// The number of sittings.
    pub sittings: usize,
    /// The rounds of each.
    pub rounds: usize,
    /// The group's share of the time: when it is over, no further round begins. So a slow or busy machine measures less, and does
    /// not take much longer.
    pub share: Duration,
}

impl Effort {
    /// Returns the stint of this run.
    pub fn stint(&self, is_quick: bool) -> Option<Stint> {
        if is_quick {
            self.quick
        } else {
            Some(self.full)
        }
    }
}
