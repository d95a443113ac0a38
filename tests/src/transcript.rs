//! A conversation in a text file, run line by line: what happens as in [`script`], and indented below it
//! what is answered.
//!
//! ```text
//! ann: ACQUIRE shop alice 1000      a connection sends a command
//!   -> [#1, 1]                      and is answered; `#1` is a token wherever it stands, below that of `#2`
//! bob: ACQUIRE shop bert BLOCK 0
//!   -> waits
//! wait 1000                         until here nobody has heard anything
//!   bob <- [#2, 1]                  whoever was waiting hears something
//! shop-news <- granted #2 shop bert *1  the channel of a request that waits by NOTIFY does; `*1` is the number of that wait
//! events: acquired #1, ...          what observers were told since the last such line
//! ```
//! What is expected may end in `...`: then only the beginning counts.

use crate::script::{Act, Reader};
use std::collections::{BTreeMap, VecDeque};

/// Numbers that stand for those of one run: tokens, or waits.
pub type Labels = BTreeMap<u64, u64>;

/// Who answers.
pub trait Speaker {
    /// Does what happens. Returns what is said: first the answer to a command, then who hears what.
    ///
    /// # Errors
    /// If that cannot happen, or breaks a promise.
    fn act(&mut self, act: &Act, tokens: &Labels, names: &Reader) -> Result<Vec<String>, String>;

    /// What observers were told since this was last asked; `None` if that is not to be seen here.
    fn events(&mut self) -> Option<String>;
}

/// Holds a conversation. Errors with the line that is not so.
pub fn check(text: &str, speaker: impl Speaker) -> Result<(), String> {
    let mut transcript = Transcript {
        speaker,
        names: Reader::default(),
        labels: BTreeMap::new(),
        said: VecDeque::new(),
    };
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" # ").next().unwrap_or(line).trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| format!("line {}: {line}\n{what}", at + 1);
        match line.strip_prefix(' ') {
            Some(expected) => transcript.expect(expected.trim()).map_err(wrong)?,
            None => {
                transcript.silence().map_err(wrong)?;
                transcript.happen(line).map_err(wrong)?;
            }
        }
    }
    transcript
        .silence()
        .map_err(|what| format!("at the end: {what}"))
}

struct Transcript<S> {
    speaker: S,
    names: Reader,
    /// By the mark and the number that stand for each.
    labels: BTreeMap<char, Labels>,
    /// What has been said and is still to be expected.
    said: VecDeque<String>,
}

impl<S: Speaker> Transcript<S> {
    fn happen(&mut self, line: &str) -> Result<(), String> {
        if let Some(expected) = line.strip_prefix("events: ") {
            return match self.speaker.events() {
                Some(told) => self.compare(expected, &told),
                None => Ok(()),
            };
        }
        let act = self.names.read(line)?;
        let none = Labels::new();
        let tokens = self.labels.get(&'#').unwrap_or(&none);
        self.said
            .extend(self.speaker.act(&act, tokens, &self.names)?);
        Ok(())
    }

    fn silence(&mut self) -> Result<(), String> {
        match self.said.pop_front() {
            None => Ok(()),
            Some(said) => Err(format!("before this, nobody expected: {said}")),
        }
    }

    fn expect(&mut self, expected: &str) -> Result<(), String> {
        // Who hears what in one event is not told in any order.
        let hearer = |text: &str| text.split_once(" <- ").map(|(who, _)| who.to_string());
        let mut said = self.said.iter();
        let its = said.position(|said| hearer(said) == hearer(expected));
        let said = self
            .said
            .remove(its.unwrap_or(0))
            .ok_or("nothing was said")?;
        self.compare(expected, &said)
    }

    fn compare(&mut self, expected: &str, said: &str) -> Result<(), String> {
        match self.matches(expected, said) {
            true => Ok(()),
            false => Err(format!("but it was: {said}")),
        }
    }

    /// Compares letter by letter; a `#1` stands for a token, a `*1` for a wait, and a higher number for a higher one.
    fn matches(&mut self, mut expected: &str, mut said: &str) -> bool {
        loop {
            if expected == "..." || (expected.is_empty() && said.is_empty()) {
                return true;
            }
            let mut chars = expected.chars();
            let mark = chars.next().filter(|mark| ['#', '*'].contains(mark));
            if let Some(mark) =
                mark.filter(|_| chars.next().is_some_and(|next| next.is_ascii_digit()))
            {
                let (label, after) = expected[1..].split_at(word_end(&expected[1..]));
                let (number, left) = said.split_at(word_end(said));
                let (Ok(label), Ok(number)) = (label.parse(), number.parse()) else {
                    return false;
                };
                let labels = self.labels.entry(mark).or_default();
                let agrees = |(other, its): (&u64, &u64)| other.cmp(&label) == its.cmp(&number);
                if !labels.iter().all(agrees) {
                    return false;
                }
                labels.insert(label, number);
                (expected, said) = (after, left);
                continue;
            }
            let (Some(one), Some(other)) = (expected.chars().next(), said.chars().next()) else {
                return false;
            };
            if one != other {
                return false;
            }
            (expected, said) = (&expected[one.len_utf8()..], &said[other.len_utf8()..]);
        }
    }
}

fn word_end(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(text.len())
}
