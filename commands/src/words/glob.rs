//! Patterns of keys, as the server reads them: `*`, `?`, `[a-c]`, `[^a-c]`, `\*`.

/// Returns true if the pattern matches the whole text. Takes time by the product of their lengths at most: only the last `*` is
/// ever tried again.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // The pattern after the last `*`, and the text where it was tried last.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            star = Some((rest, text));
            pattern = rest;
            continue;
        }
        if pattern.is_empty() && text.is_empty() {
            return true;
        }
        let step = text
            .split_first()
            .and_then(|(byte, tail)| Some((one(pattern, *byte)?, tail)));
        if let Some(rest) = step {
            (pattern, text) = rest;
            continue;
        }
        match star {
            Some((rest, [_, tail @ ..])) => {
                star = Some((rest, tail));
                (pattern, text) = (rest, tail);
            }
            _ => return false,
        }
    }
}

/// Returns the rest of the pattern if its first part, which stands for one byte, matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

/// Returns the rest of the pattern after a class, if the byte is in it. A class that is not closed ends with the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (not, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    loop {
        match pattern {
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                pattern = rest;
            }
            [] => break,
            [b']', rest @ ..] => {
                pattern = rest;
                break;
            }
            [from, b'-', to, rest @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                pattern = rest;
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                pattern = rest;
            }
        }
    }
    (found != not).then_some(pattern)
}
