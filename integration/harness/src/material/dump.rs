//! Payloads for RESTORE that no healthy server would write.
//!
//! A DUMP of a lock is: the RDB type byte, the module type's id, an opcode, the value as one string, the end mark,
//! two bytes of RDB version, and a CRC64 of all before it. The bytes reach the module only with a correct checksum.

use crate::talk::ask::{command, Ask};
use crate::talk::wire::Wire;
use redis::Value;

/// The frame that a server puts around a value.
pub struct Frame {
    head: Vec<u8>,
    version: [u8; 2],
}

/// One hold: token, deadline (unix milliseconds), hold count, limit, owner.
pub type Hold<'a> = (u64, u64, u64, u64, &'a [u8]);

/// One ticket: number, claim window (milliseconds), limit, owner.
pub type Ticket<'a> = (u64, u64, u64, &'a [u8]);

impl Frame {
    /// Learns the frame from a lock that the server dumps.
    #[track_caller]
    pub fn learn(connection: &mut Wire) -> Frame {
        connection.run("DLOCK.ACQUIRE frame f 60000");
        let dump: Vec<u8> = connection.ask("DUMP frame");
        connection.run("DEL frame");
        // No request waits: the value begins with its version, 1, and its flags, 0, and its length fits in one byte.
        let len = (1..dump.len())
            .find(|at| dump[at + 1..].starts_with(&[1, 0, 1]))
            .expect("the value begins with its version, flags and number of holders");
        let version = dump.len() - 10;
        Frame {
            head: dump[..len].to_vec(),
            version: [dump[version], dump[version + 1]],
        }
    }

    /// Returns the payload with these bytes as the value.
    pub fn around(&self, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).expect("a short value");
        assert!(len < 1 << 14, "a length of at most 14 bits");
        let mut payload = self.head.clone();
        payload.extend((len | 1 << 14).to_be_bytes());
        payload.extend(value);
        payload.push(0);
        payload.extend(self.version);
        seal(payload)
    }
}

/// Appends the checksum of all bytes before it.
pub fn seal(mut payload: Vec<u8>) -> Vec<u8> {
    payload.extend(crc64(&payload).to_le_bytes());
    payload
}

/// Returns the value with these holders and tickets. `flags`: 1 if a request was queued.
pub fn value(flags: u8, holds: &[Hold], tickets: &[Ticket]) -> Vec<u8> {
    let mut value = vec![1, flags];
    number(&mut value, holds.len() as u64);
    for (token, deadline, count, limit, owner) in holds {
        for field in [token, deadline, count, limit] {
            number(&mut value, *field);
        }
        number(&mut value, owner.len() as u64);
        value.extend(*owner);
    }
    number(&mut value, tickets.len() as u64);
    for (at, claim, limit, owner) in tickets {
        for field in [at, claim, limit] {
            number(&mut value, *field);
        }
        number(&mut value, owner.len() as u64);
        value.extend(*owner);
    }
    value
}

/// Restores this payload, replacing any value at the key.
pub fn restore(connection: &mut Wire, key: &str, payload: &[u8]) -> Result<Value, String> {
    connection.answer(
        command(&format!("RESTORE {key} 0"))
            .arg(payload)
            .arg("REPLACE"),
    )
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the servers' CRC64 (Jones), bit by bit: payloads are short.
fn crc64(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
    bytes.iter().fold(0, |crc: u64, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { REFLECTED } else { 0 }
        })
    })
}
