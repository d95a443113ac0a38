//! What identifies a hold: its lock, its owner and its token. A token alone does not: RESTORE can bring a second hold under it to
//! another lock.

use crate::types::{HoldRef, NameRef, Token};
use smallvec::SmallVec;

/// A lock's name and its owner's, in bytes: a key, and what clients call themselves (`host/pid/` and 22 letters, and a number).
const USUAL_BYTES: usize = 96;

/// A lock and its owner, in one piece. Those of a lock stand together in their order, one without an owner first: a search by the lock
/// alone relies on the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldKey {
    db: u32,
    // The key's length; what follows it is the owner.
    key_len: u32,
    // Most names have room in the tie itself: a tie is then one allocation, not two.
    bytes: SmallVec<[u8; USUAL_BYTES]>,
}

impl HoldKey {
    /// Copies the names of a hold.
    pub fn new(hold: HoldRef) -> HoldKey {
        let mut bytes = SmallVec::from_slice(hold.name.key);
        bytes.extend_from_slice(hold.owner);
        HoldKey {
            db: hold.name.db,
            key_len: hold.name.key.len() as u32,
            bytes,
        }
    }

    /// Borrows both names.
    pub fn hold_ref(&self) -> HoldRef<'_> {
        HoldRef {
            name: self.name(),
            owner: self.owner(),
        }
    }

    /// Returns the lock.
    pub fn name(&self) -> NameRef<'_> {
        let (key, _) = self.bytes.split_at(self.key_len as usize);
        NameRef { db: self.db, key }
    }

    /// Returns the owner.
    pub fn owner(&self) -> &[u8] {
        let (_, owner) = self.bytes.split_at(self.key_len as usize);
        owner
    }
}

/// A hold: its token, its lock and its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    /// The token.
    pub token: Token,
    /// The lock and the owner.
    pub whose: HoldKey,
}

impl HoldId {
    /// Names a hold.
    pub fn new(whose: HoldRef, token: Token) -> HoldId {
        let whose = HoldKey::new(whose);
        HoldId { token, whose }
    }
}
