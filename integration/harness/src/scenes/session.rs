//! A session, and the rows that its program reads.

use std::collections::VecDeque;
use std::time::Instant;

use crate::machine::patience::PATIENCE;
use crate::servers::server::Server;
use crate::talk::ask::Ask;
use crate::talk::wire::Wire;

/// A row: its number, the word, the key, the owner, the token, and the milliseconds that are left.
pub type Row = (u64, String, String, String, u64, u64);

/// The reply of `DLOCK.SESSION`: the id, the last row's number, the milliseconds that are left, the rows.
pub type News = (u64, u64, Option<u64>, Vec<Row>);

/// A session that a connection of its own keeps.
pub struct Session {
    wire: Wire,
    key: String,
    name: String,
    seen: (u64, u64),
    rows: VecDeque<Row>,
}

impl Session {
    /// Begins a session. The key says where, and is not used otherwise.
    #[track_caller]
    pub fn begin(server: &Server, key: &str, name: &str) -> Session {
        let mut session = Session {
            wire: server.connection(),
            key: key.to_owned(),
            name: name.to_owned(),
            seen: (0, 0),
            rows: VecDeque::new(),
        };
        session.read("");
        session
    }

    /// Returns its id.
    pub fn id(&self) -> u64 {
        self.seen.0
    }

    /// Keeps it, and tells the server that the rows have been read: it begins a session again that has 10,000 unread ones.
    #[track_caller]
    pub fn keep(&mut self) {
        self.read("");
    }

    /// Keeps it, and takes the rows that were not read before.
    #[track_caller]
    fn read(&mut self, block: &str) {
        let (key, name, (id, last)) = (&self.key, &self.name, self.seen);
        let line = format!("DLOCK.SESSION {key} {name} 600000 SEEN {id} {last}{block}");
        let (id, last, _, rows): News = self.wire.ask(&line);
        self.seen = (id, last);
        self.rows.extend(rows);
    }

    /// Returns the next row.
    ///
    /// # Panics
    /// If there is none within [`PATIENCE`].
    #[track_caller]
    pub fn row(&mut self) -> Row {
        let end = Instant::now() + PATIENCE;
        while self.rows.is_empty() {
            assert!(Instant::now() < end, "no row has come");
            self.read(" BLOCK 1000");
        }
        self.rows.pop_front().expect("a row")
    }

    /// Returns the next row's word, key and owner.
    ///
    /// # Panics
    /// If there is none within [`PATIENCE`].
    #[track_caller]
    pub fn told(&mut self) -> String {
        let (_, word, key, owner, ..) = self.row();
        format!("{word} {key} {owner}")
    }
}
