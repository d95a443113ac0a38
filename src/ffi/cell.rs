//! State of the main thread: every callback of the server runs there.

use dlock_engine::broken;
use std::cell::{RefCell, RefMut};

/// A value that only the server's main thread touches.
pub(crate) struct MainThread<T>(RefCell<T>);

// SAFETY: the server calls its modules from its main thread only, but for the freeing of values (`callbacks::data_type`), which
// touches no `MainThread`.
unsafe impl<T> Sync for MainThread<T> {}
// SAFETY: as above; nothing moves it between threads.
unsafe impl<T> Send for MainThread<T> {}

impl<T> MainThread<T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        MainThread(RefCell::new(value))
    }

    /// Borrows a value of which no borrow is held across a call of the server. Panics in debug builds, and reports and returns None
    /// otherwise, if it is already borrowed.
    pub(crate) fn borrow(&self) -> Option<RefMut<'_, T>> {
        let value = self.try_borrow_mut();
        if value.is_none() {
            broken!("what no call of the server is made with is not borrowed");
        }
        value
    }

    /// Borrows the value, unless it is borrowed already: then a callback has come while a caller further up the stack works
    /// with it, and must leave its message elsewhere.
    pub(crate) fn try_borrow_mut(&self) -> Option<RefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}
