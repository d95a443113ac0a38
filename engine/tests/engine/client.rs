//! A caller as the commands see it.

use dlock_commands::{Caller, Census, MayWait};

/// A connection, or the stream of a primary.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// Its client id.
    pub id: u64,
    /// Whether it may wait: not in MULTI or a script.
    pub may_wait: bool,
    /// Whether the server lets it wait for no lock.
    pub barred: bool,
    /// Whether it is the stream of a primary.
    pub followed: bool,
}

impl Client {
    pub fn connection(id: u64) -> Client {
        Client {
            id,
            may_wait: true,
            barred: false,
            followed: false,
        }
    }

    pub fn barred(id: u64) -> Client {
        Client {
            barred: true,
            ..Client::connection(id)
        }
    }

    pub fn script(id: u64) -> Client {
        Client {
            id,
            may_wait: false,
            barred: false,
            followed: false,
        }
    }

    pub fn primary() -> Client {
        Client {
            id: 0,
            may_wait: false,
            barred: false,
            followed: true,
        }
    }
}

impl Caller for Client {
    fn client(&self) -> u64 {
        // A script's command belongs to no connection.
        match self.may_wait {
            true => self.id,
            false => 0,
        }
    }

    fn may_wait(&self) -> MayWait {
        match self.may_wait {
            _ if self.barred => MayWait::Refused,
            true => MayWait::Yes,
            false => MayWait::Ignored,
        }
    }

    fn user(&self) -> Vec<u8> {
        b"default".to_vec()
    }

    fn may_write(&self, _key: &[u8]) -> bool {
        true
    }

    fn unconfirmed(&self) -> usize {
        0
    }

    fn is_followed(&self) -> bool {
        self.followed
    }

    fn own_connection(&self) -> bool {
        self.may_wait
    }

    fn connected(&self, _client: u64) -> bool {
        true
    }

    fn fresh_owner(&self) -> String {
        format!("uuid-of-{}", self.id)
    }

    fn describe(&self, _client: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    fn may_list_clients(&self) -> bool {
        self.may_wait
    }

    fn is_loading(&self) -> bool {
        false
    }

    /// Nobody may read keys that begin with `secret`.
    fn may_read(&self, keys: &[&[u8]]) -> Vec<bool> {
        keys.iter().map(|key| !key.starts_with(b"secret")).collect()
    }

    fn may_synchronize(&self) -> bool {
        false
    }

    fn may_reset(&self) -> bool {
        self.may_wait
    }

    fn census(&self) -> Census {
        Census {
            primary: true,
            ..Census::default()
        }
    }
}
