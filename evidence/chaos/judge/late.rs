//! Writes that GUARD must not have accepted.

use std::collections::HashSet;

use crate::history::{Log, Write};

/// Counts the writes that were sent when their hold can only have been over, and that were done nevertheless.
pub fn late(writes: &[Write]) -> usize {
    let late = |write: &&Write| write.done && write.sent > write.alive_until;
    writes.iter().filter(late).count()
}

/// Counts the writes after one of a later holder.
pub fn out_of_order(logs: &[Log]) -> usize {
    let of_one = |log: &Log| {
        let mut highest = 0;
        let behind = log.tokens.iter().filter(|token| {
            highest = highest.max(**token);
            **token < highest
        });
        behind.count()
    };
    logs.iter().map(of_one).sum()
}

/// Counts the locks with writes whose list could not be read at the end.
pub fn unread(writes: &[Write], logs: &[Log]) -> usize {
    let read: HashSet<&str> = logs.iter().map(|log| log.lock.as_str()).collect();
    let written = writes.iter().filter(|write| write.done);
    let written: HashSet<&str> = written.map(|write| write.lock.as_str()).collect();
    written.difference(&read).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(sent: u64, alive_until: u64, done: bool) -> Write {
        Write {
            lock: "k".into(),
            token: 1,
            sent,
            alive_until,
            done,
        }
    }

    fn log(tokens: &[u64]) -> Log {
        Log {
            lock: "k".into(),
            tokens: tokens.to_vec(),
        }
    }

    #[test]
    fn a_write_after_the_lease_is_found_if_it_was_done() {
        assert_eq!(late(&[write(5, 10, true), write(11, 10, false)]), 0);
        assert_eq!(late(&[write(11, 10, true)]), 1);
    }

    #[test]
    fn what_nobody_could_read_is_found() {
        assert_eq!(unread(&[write(5, 10, true)], &[log(&[])]), 0);
        assert_eq!(unread(&[write(5, 10, false)], &[]), 0);
        assert_eq!(unread(&[write(5, 10, true)], &[]), 1);
    }

    #[test]
    fn a_write_behind_a_later_holders_is_found() {
        assert_eq!(out_of_order(&[log(&[1, 1, 2, 5])]), 0);
        assert_eq!(out_of_order(&[log(&[1, 2, 1, 3, 2]), log(&[])]), 2);
    }
}
