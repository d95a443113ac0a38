//! Expected replies, compared with the actual ones.

use std::fmt;

/// An expected reply, byte for byte, except for unpredictable numbers: `#` stands for any number of digits, as in
/// `*2\r\n:#\r\n:1\r\n`, and so does `@`, whose number is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// Makes a pattern, which must end with a fixed byte, as every reply does.
    pub fn new(text: &str) -> Pattern {
        assert!(
            text.ends_with("\r\n"),
            "the pattern {text:?} is no whole reply"
        );
        Pattern(text.as_bytes().to_vec())
    }

    /// Makes the pattern of these replies, one after the other.
    pub fn all(replies: &[&Pattern]) -> Pattern {
        Pattern(replies.iter().flat_map(|reply| reply.0.clone()).collect())
    }
}

/// Compares received bytes with expected ones, in pieces of any size.
pub struct Check<'p> {
    pattern: &'p [u8],
    at: usize,
    in_digits: bool,
    times_left: usize,
    /// The numbers that `@` stands for, so far.
    pub numbers: Vec<u64>,
}

/// The server answered something else.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    got: String,
    wanted: String,
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { got, wanted } = self;
        write!(
            f,
            "the server answered {got:?} where {wanted:?} should have come"
        )
    }
}

impl<'p> Check<'p> {
    /// Expects `pattern` `times` times.
    pub fn new(pattern: &'p Pattern, times: usize) -> Check<'p> {
        Check {
            pattern: &pattern.0,
            at: 0,
            in_digits: false,
            times_left: times,
            numbers: Vec::new(),
        }
    }

    /// Returns true if everything expected has come.
    pub fn is_complete(&self) -> bool {
        self.times_left == 0
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// If a byte is not the expected one, or no byte is expected any longer.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Mismatch> {
        for (offset, &byte) in bytes.iter().enumerate() {
            if !self.accepts(byte) {
                return Err(self.mismatch(bytes, offset));
            }
        }
        Ok(())
    }

    fn accepts(&mut self, byte: u8) -> bool {
        if self.times_left == 0 {
            return false;
        }
        let mut wanted = self.pattern[self.at];
        if wanted == b'#' || wanted == b'@' {
            if byte.is_ascii_digit() {
                if wanted == b'@' {
                    self.keep(byte - b'0');
                }
                self.in_digits = true;
                return true;
            }
            if !self.in_digits {
                return false;
            }
            self.in_digits = false;
            self.at += 1;
            wanted = self.pattern[self.at];
        }
        if byte != wanted {
            return false;
        }
        self.at += 1;
        if self.at == self.pattern.len() {
            self.at = 0;
            self.times_left -= 1;
        }
        true
    }

    /// Appends a digit to the number at the end, or begins another number.
    fn keep(&mut self, digit: u8) {
        let digit = u64::from(digit);
        match self.numbers.last_mut().filter(|_| self.in_digits) {
            Some(number) => *number = number.wrapping_mul(10).wrapping_add(digit),
            None => self.numbers.push(digit),
        }
    }

    /// Shows the line of the mismatch, as far as it is in this piece.
    fn mismatch(&self, bytes: &[u8], offset: usize) -> Mismatch {
        let is_end = |&byte: &u8| byte == b'\n';
        let start = bytes[..offset]
            .iter()
            .rposition(is_end)
            .map_or(0, |end| end + 1);
        let end = bytes[offset..]
            .iter()
            .position(is_end)
            .map_or(bytes.len(), |length| offset + length + 1);
        let wanted = if self.is_complete() {
            ""
        } else {
            &String::from_utf8_lossy(self.pattern)
        };
        Mismatch {
            got: String::from_utf8_lossy(&bytes[start..end]).into_owned(),
            wanted: wanted.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: &str = "*2\r\n:#\r\n:1\r\n";

    /// Feeds byte by byte, and in one piece: both must have one result.
    fn check(pattern: &str, times: usize, bytes: &str) -> Result<bool, Mismatch> {
        let pattern = Pattern::new(pattern);
        let mut whole = Check::new(&pattern, times);
        let of_whole = whole.feed(bytes.as_bytes()).map(|()| whole.is_complete());
        let mut pieces = Check::new(&pattern, times);
        let of_pieces = bytes
            .as_bytes()
            .chunks(1)
            .try_for_each(|piece| pieces.feed(piece))
            .map(|()| pieces.is_complete());
        assert_eq!(of_whole.is_ok(), of_pieces.is_ok(), "{bytes:?}");
        of_whole
    }

    #[test]
    fn replies_as_they_should_be() {
        assert_eq!(check(GRANT, 1, "*2\r\n:1732\r\n:1\r\n"), Ok(true));
        assert_eq!(
            check(GRANT, 2, "*2\r\n:1\r\n:1\r\n*2\r\n:22\r\n:1\r\n"),
            Ok(true)
        );
        assert_eq!(check(GRANT, 2, "*2\r\n:1\r\n:1\r\n*2\r\n:2"), Ok(false));
    }

    #[test]
    fn numbers_are_kept_in_pieces_and_at_once() {
        let pattern = Pattern::new("*2\r\n:@\r\n:#\r\n");
        let bytes = b"*2\r\n:1732\r\n:9\r\n*2\r\n:0\r\n:8\r\n*2\r\n:45\r\n:7\r\n";
        for size in [1, 2, 7, bytes.len()] {
            let mut check = Check::new(&pattern, 3);
            for piece in bytes.chunks(size) {
                check.feed(piece).expect("as expected");
            }
            assert_eq!(check.numbers, [1732, 0, 45]);
        }
    }

    #[test]
    fn replies_of_another_kind() {
        for wrong in [
            "-ERR no\r\n",
            "*2\r\n:\r\n",
            "*2\r\n:x\r\n",
            "*2\r\n:1\r\n:2\r\n",
            "*2\r\n:1\r\n:1\r\n+",
        ] {
            assert!(check(GRANT, 1, wrong).is_err(), "{wrong:?}");
        }
        let error = check(GRANT, 1, "-ERR no\r\n").unwrap_err();
        assert!(error.to_string().contains("-ERR no"), "{error}");
    }
}
