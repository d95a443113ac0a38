//! Something that is measured, again and again.

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
}

/// The ways of a group, ready to be measured.
pub type Opened = Result<Vec<Box<dyn Way>>, Failure>;

/// Ways that are measured side by side.
pub struct Group {
    /// What the tables call it.
    pub name: &'static str,
    /// How often it is opened, and how many rounds there are each time.
    pub effort: Effort,
    /// Starts servers and makes all ready.
    pub open: Box<dyn Fn() -> Opened>,
}

/// How often a group is measured.
///
/// Rounds follow each other on the same servers. A *sitting* starts new ones: where a process happens to lie
/// in memory makes it faster or slower by some percent for as long as it lives, and that is to be seen in the
/// spread.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Sittings and rounds in each.
    pub full: (usize, usize),
    /// The same when there is little time.
    pub quick: (usize, usize),
}
