//! Numbers among words.

/// Reads a decimal integer as the server does: no plus, no leading zero, no blanks. No command takes a negative number, so a
/// minus is also refused.
pub(crate) fn integer(word: &[u8]) -> Option<u64> {
    // Nineteen digits cannot overflow 64 bits, and no argument needs more.
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
