//! A value that somebody else owns, or one's own.
//!
//! The engine works on locks that the keyspace owns, and makes new ones. What it takes for that is the keyspace's own type
//! (`Keyspace::Value`), so that it contains no `unsafe` itself.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value that is worked on through a pointer to where its owner has it, or a value of one's own.
///
/// There is no reference to the owner's value but for the length of a borrow of this, and it is never freed by this.
#[derive(Debug)]
pub(crate) struct MaybeOwned<T>(Place<T>);

#[derive(Debug)]
enum Place<T> {
    Elsewhere(NonNull<T>),
    Here(Box<T>),
}

impl<T> MaybeOwned<T> {
    /// A value that somebody else owns.
    ///
    /// # Safety
    /// Until this is dropped the value stays where it is, and nobody else touches it.
    pub(crate) unsafe fn borrowed(value: NonNull<T>) -> MaybeOwned<T> {
        MaybeOwned(Place::Elsewhere(value))
    }

    /// The value if it is one's own; from here on the other is its owner's again.
    pub(crate) fn into_owned(self) -> Option<Box<T>> {
        match self.0 {
            Place::Elsewhere(_) => None,
            Place::Here(value) => Some(value),
        }
    }
}

impl<T> From<Box<T>> for MaybeOwned<T> {
    fn from(value: Box<T>) -> MaybeOwned<T> {
        MaybeOwned(Place::Here(value))
    }
}

impl<T: Default> Default for MaybeOwned<T> {
    fn default() -> MaybeOwned<T> {
        MaybeOwned(Place::Here(Box::default()))
    }
}

impl<T> Deref for MaybeOwned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            // SAFETY: it is there, and nobody else touches it (see `borrowed`); the borrow of `self` keeps `deref_mut` away.
            Place::Elsewhere(value) => unsafe { value.as_ref() },
            Place::Here(value) => value,
        }
    }
}

impl<T> DerefMut for MaybeOwned<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            // SAFETY: as above; the borrow of `self` is the only one.
            Place::Elsewhere(value) => unsafe { value.as_mut() },
            Place::Here(value) => value,
        }
    }
}
