//! Runs a conversation in a text file line by line: events as in [`script`], and indented below each its answers.
//!
//! ```text
//! ann: ACQUIRE shop alice 1000      a connection sends a command
//!   -> [#1, 1]                      and is answered; `#1` is a token wherever it stands, below that of `#2`
//! bob: ACQUIRE shop bert BLOCK 0
//!   -> waits
//! wait 1000                         no outcome arrives before this line
//!   bob <- [#2, 1]                  a waiting connection receives its outcome
//! __dlock@0__:shop <- released #1   or the channel of unlock messages that it listens to
//! events: acquired #1, ...          the events that observers received since the last such line
//! ```
//! An expectation may end in `...`: then only the beginning counts. `~a` stands for one word throughout the conversation, in
//! commands as well once it is known.

use crate::script::{Act, Reader, ServerAct};
use std::collections::{BTreeMap, VecDeque};

/// Numbers in a conversation that stand for the tokens of one run.
pub type Labels = BTreeMap<u64, u64>;

/// The party that answers in a conversation.
pub trait Speaker {
    /// Performs an event. Returns the lines it causes: first the answer to a command, then the outcomes of waits.
    ///
    /// # Errors
    /// If the event is impossible, or breaks a promise.
    fn act(&mut self, act: &Act, tokens: &Labels, names: &Reader) -> Result<Vec<String>, String>;

    /// Returns the events that observers received since the last call; `None` if they are not visible here.
    fn events(&mut self) -> Option<String>;

    /// Performs an event that only a server understands.
    ///
    /// # Errors
    /// If the event is impossible.
    fn act_as_server(
        &mut self,
        act: &ServerAct,
        _tokens: &Labels,
        _names: &Reader,
    ) -> Result<Vec<String>, String> {
        Err(format!("only with a server: {act:?}"))
    }
}

/// Holds a conversation. Errors with the line that is untrue.
pub fn check(text: &str, speaker: impl Speaker) -> Result<(), String> {
    let mut transcript = Transcript {
        speaker,
        names: Reader::default(),
        labels: Labels::new(),
        words: BTreeMap::new(),
        said: VecDeque::new(),
        unasked: None,
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
                if !line.starts_with("within ") {
                    transcript.silence().map_err(wrong)?;
                }
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
    labels: Labels,
    /// The words for names such as `~a`.
    words: BTreeMap<String, String>,
    /// Lines that were caused and are not written down yet.
    said: VecDeque<String>,
    /// A reply that may be left out.
    unasked: Option<String>,
}

impl<S: Speaker> Transcript<S> {
    fn happen(&mut self, line: &str) -> Result<(), String> {
        if let Some(expected) = line.strip_prefix("events: ") {
            return match self.speaker.events() {
                Some(told) => self.compare(expected, &told),
                None => Ok(()),
            };
        }
        let tokens = &self.labels;
        if let Some(act) = self.names.read_for_server(line)? {
            let mut said = self.speaker.act_as_server(&act, tokens, &self.names)?;
            let is_command = matches!(act, ServerAct::Command(_));
            if is_command && said.first().is_some_and(|reply| !is_error(reply)) {
                self.unasked = Some(said.remove(0));
            }
            self.said.extend(said);
            return Ok(());
        }
        let line = &self.filled(line);
        let act = self.names.read(line)?;
        self.said
            .extend(self.speaker.act(&act, tokens, &self.names)?);
        Ok(())
    }

    /// Returns a line with the words that are known for names such as `~a`.
    fn filled(&self, line: &str) -> String {
        let word = |word: &str| {
            let known = word.strip_prefix('~').and_then(|name| self.words.get(name));
            known.cloned().unwrap_or_else(|| word.to_owned())
        };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }

    fn silence(&mut self) -> Result<(), String> {
        self.unasked = None;
        match self.said.pop_front() {
            None => Ok(()),
            Some(said) => Err(format!("before this line, not expected: {said}")),
        }
    }

    fn expect(&mut self, expected: &str) -> Result<(), String> {
        // The order of outcomes of one event is undefined.
        let hearer = |text: &str| text.split_once(" <- ").map(|(who, _)| who.to_string());
        if let Some(said) = self.unasked.take_if(|_| hearer(expected).is_none()) {
            return self.compare(expected, &said);
        }
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
            false => Err(format!("but the answer was: {said}")),
        }
    }

    /// Compares letter by letter; a `#1` stands for a token, and a higher number for a higher one.
    fn matches(&mut self, mut expected: &str, mut said: &str) -> bool {
        loop {
            if expected == "..." || (expected.is_empty() && said.is_empty()) {
                return true;
            }
            if let Some(named) = expected.strip_prefix('~') {
                let (name, after) = named.split_at(word_end(named));
                let (word, left) = said.split_at(word_end(said));
                let known = self.words.entry(name.into()).or_insert(word.into());
                if known != word {
                    return false;
                }
                (expected, said) = (after, left);
                continue;
            }
            let label = expected.strip_prefix('#');
            if label.is_some_and(|label| label.starts_with(|c: char| c.is_ascii_digit())) {
                let (label, after) = expected[1..].split_at(word_end(&expected[1..]));
                let (number, left) = said.split_at(word_end(said));
                let (Ok(label), Ok(number)) = (label.parse(), number.parse()) else {
                    return false;
                };
                let agrees = |(other, its): (&u64, &u64)| other.cmp(&label) == its.cmp(&number);
                if !self.labels.iter().all(agrees) {
                    return false;
                }
                self.labels.insert(label, number);
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

/// Returns true if a reply is an error: errors begin with a code.
fn is_error(reply: &str) -> bool {
    let code = reply.trim_start_matches("-> ").split_once(' ');
    code.is_some_and(|(code, _)| code.chars().all(|c| c.is_ascii_uppercase()))
}

fn word_end(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(text.len())
}
