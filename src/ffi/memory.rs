//! Memory that the compiler cannot watch: state of the main thread, where every callback of the server runs, and values that the
//! server owns.

use dlock_engine::broken;
use std::cell::{RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value that only the server's main thread touches.
pub(crate) struct MainThread<T>(RefCell<T>);

// SAFETY: the server calls its modules from its main thread only. Other threads may only free values (`callbacks::data_type`),
// which touches no `MainThread`.
unsafe impl<T> Sync for MainThread<T> {}
// SAFETY: as above; nothing moves it between threads.
unsafe impl<T> Send for MainThread<T> {}

impl<T> MainThread<T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        MainThread(RefCell::new(value))
    }

    /// Borrows a value that is never borrowed across a call of the server. Panics in debug builds, and reports and returns None
    /// otherwise, if it is already borrowed.
    pub(crate) fn borrow(&self) -> Option<RefMut<'_, T>> {
        let value = self.try_borrow_mut();
        if value.is_none() {
            broken!("what no call of the server is made with is not borrowed");
        }
        value
    }

    /// Borrows the value, unless a caller further up the stack works with it: then a callback must leave its message elsewhere.
    pub(crate) fn try_borrow_mut(&self) -> Option<RefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}

/// A value with another owner, behind a pointer, or a value of one's own.
///
/// The engine changes locks that the keyspace owns, and makes new ones. It takes the keyspace's own type for both
/// (`Keyspace::Value`), and so contains no `unsafe` itself.
///
/// A reference to the owner's value lives only as long as a borrow of this, and this never frees it.
#[derive(Debug)]
pub(crate) struct MaybeOwned<T>(Storage<T>);

#[derive(Debug)]
enum Storage<T> {
    Elsewhere(NonNull<T>),
    Here(Box<T>),
}

impl<T> MaybeOwned<T> {
    /// Wraps a value that has another owner.
    ///
    /// # Safety
    /// Until this is dropped the value stays where it is, and nobody else touches it.
    pub(crate) unsafe fn borrowed(value: NonNull<T>) -> MaybeOwned<T> {
        MaybeOwned(Storage::Elsewhere(value))
    }

    /// Returns the value if it is one's own; a borrowed one is its owner's again.
    pub(crate) fn into_owned(self) -> Option<Box<T>> {
        match self.0 {
            Storage::Elsewhere(_) => None,
            Storage::Here(value) => Some(value),
        }
    }
}

impl<T> From<Box<T>> for MaybeOwned<T> {
    fn from(value: Box<T>) -> MaybeOwned<T> {
        MaybeOwned(Storage::Here(value))
    }
}

impl<T: Default> Default for MaybeOwned<T> {
    fn default() -> MaybeOwned<T> {
        MaybeOwned(Storage::Here(Box::default()))
    }
}

impl<T> Deref for MaybeOwned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            // SAFETY: it is there, and nobody else touches it (see `borrowed`); the borrow of `self` keeps `deref_mut` away.
            Storage::Elsewhere(value) => unsafe { value.as_ref() },
            Storage::Here(value) => value,
        }
    }
}

impl<T> DerefMut for MaybeOwned<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            // SAFETY: as above; the borrow of `self` is the only one.
            Storage::Elsewhere(value) => unsafe { value.as_mut() },
            Storage::Here(value) => value,
        }
    }
}
