//! Numbers among words.

/// A decimal integer as the server itself reads them: no plus, no leading zero, no blanks. No number that a command takes is
/// negative, so one with a minus is none.
pub(crate) fn integer(word: &[u8]) -> Option<u64> {
    // Nineteen digits cannot overflow 64 bits, and more are no number that is wanted.
    if word.is_empty() || word.len() > 19 || (word.len() > 1 && word.first() == Some(&b'0')) {
        return None;
    }
    let mut sum = 0_u64;
    for digit in word {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum * 10 + u64::from(digit);
    }
    Some(sum)
}
