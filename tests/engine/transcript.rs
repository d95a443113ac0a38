//! A conversation in a text file, run line by line: what happens as in [`script`](crate::script), and indented below it
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

/// What a conversation is held with.
pub trait Subject {
    /// Does what happens. Gives what is said: first the answer to a command, then who hears what. None ends the conversation.
    ///
    /// Errors if a promise is broken.
    fn act(
        &mut self,
        act: &Act,
        tokens: &Labels,
        names: &Reader,
    ) -> Result<Option<Vec<String>>, String>;

    /// Whether a command need not be done that is answered like this.
    fn skips(&self, answer: &str) -> bool;

    /// What observers were told since this was last asked; none if that is not known.
    fn events(&mut self) -> Option<String>;
}

/// Runs a transcript. Errors with the line that is not so.
pub fn check(subject: &mut impl Subject, text: &str) -> Result<(), String> {
    let mut transcript = Transcript {
        subject,
        names: Reader::default(),
        labels: BTreeMap::new(),
        said: VecDeque::new(),
    };
    let lines = text.lines().enumerate().map(|(at, line)| {
        let line = line.split(" # ").next().unwrap_or(line);
        (at + 1, line.trim_end())
    });
    let mut lines = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .peekable();
    while let Some((at, line)) = lines.next() {
        let wrong = |what: String| format!("line {at}: {line}\n{what}");
        if let Some(expected) = line.strip_prefix(' ') {
            transcript.expect(expected.trim()).map_err(wrong)?;
            continue;
        }
        transcript.silence().map_err(wrong)?;
        let answer = lines.peek().map_or("", |(_, next)| next.trim());
        if answer.starts_with("-> ") && transcript.subject.skips(answer) {
            transcript.said.push_back(answer.to_string());
        } else if !transcript.happen(line).map_err(wrong)? {
            return Ok(());
        }
    }
    transcript
        .silence()
        .map_err(|what| format!("at the end: {what}"))
}

struct Transcript<'s, S> {
    subject: &'s mut S,
    names: Reader,
    /// By the mark and the number that stand for each.
    labels: BTreeMap<char, Labels>,
    /// What has been said and is still to be expected.
    said: VecDeque<String>,
}

impl<S: Subject> Transcript<'_, S> {
    /// Does what a line says. Gives whether the conversation goes on.
    fn happen(&mut self, line: &str) -> Result<bool, String> {
        if let Some(expected) = line.strip_prefix("events: ") {
            let told = self.subject.events();
            return told
                .map_or(Ok(()), |told| self.compare(expected, &told))
                .map(|()| true);
        }
        let act = self.names.read(line)?;
        let none = Labels::new();
        let tokens = self.labels.get(&'#').unwrap_or(&none);
        let said = self.subject.act(&act, tokens, &self.names)?;
        let goes_on = said.is_some();
        self.said.extend(said.into_iter().flatten());
        Ok(goes_on)
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
            if expected == "..." || said == "..." || (expected.is_empty() && said.is_empty()) {
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
