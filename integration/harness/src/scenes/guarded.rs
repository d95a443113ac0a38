//! A lock that no step of a test may touch.

use crate::scenes::blocked::Blocked;
use crate::scenes::shorthand::{assert_hands_over, kept};
use crate::servers::server::Server;
use crate::talk::ask::{Ask, Grant};
use crate::talk::wire::Wire;

/// A lock that alice holds once, with a ticket for bob and a waiter, carol.
pub struct Guarded {
    before: (String, i64),
    /// The token of alice's hold.
    pub token: u64,
    carol: Blocked,
}

impl Guarded {
    /// Makes the lock, named `guarded`.
    #[track_caller]
    pub fn new(server: &Server, connection: &mut Wire) -> Guarded {
        let (token, _): Grant = connection.ask("DLOCK.ACQUIRE guarded alice 600000");
        connection.run("DLOCK.FAIRACQUIRE guarded bob CLAIM 600000");
        let carol = Blocked::start(server, "DLOCK.ACQUIRE guarded carol 600000 BLOCK 0");
        let before = kept(connection, "guarded");
        Guarded {
            before,
            token,
            carol,
        }
    }

    /// Asserts that the lock has not changed.
    #[track_caller]
    pub fn assert_untouched(&self, connection: &mut Wire) {
        assert_eq!(kept(connection, "guarded"), self.before);
        let held: (u64, u64, u64) = connection.ask("DLOCK.HELD guarded alice");
        assert_eq!((held.0, held.1), (self.token, 1));
        let place: Option<u64> = connection.ask("DLOCK.POSITION guarded carol");
        assert_eq!(place, Some(1));
    }

    /// Asserts that the lock is untouched and works, and leaves the server empty.
    #[track_caller]
    pub fn assert_intact(self, server: &Server, connection: &mut Wire) {
        self.assert_untouched(connection);
        assert!(self.carol.is_blocked(server));
        connection.run("DLOCK.RELEASE guarded alice");
        let (next, _): Grant = connection.ask("DLOCK.FAIRACQUIRE guarded bob 600000");
        assert!(next > self.token);
        connection.run("DLOCK.RELEASE guarded bob");
        assert!(self.carol.reply::<Grant>().0 > next);
        connection.run("DLOCK.RELEASE guarded carol");
        assert_hands_over(server, connection);
    }
}
