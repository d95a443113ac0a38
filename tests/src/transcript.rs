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
//!
//! With `DLOCK_WRITE=1` in the environment the tests write the answers that were given in place of those expected ([`correct`]).

use crate::script::{Act, Reader, ServerAct};
use std::collections::{BTreeMap, VecDeque};

/// No token is smaller: microseconds since 1970.
const FIRST_TOKEN: u64 = 100_000_000;

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

/// A change that makes a conversation true, by the number of a line (from 0).
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Writes another line in its place.
    Rewrite(usize, String),
    Remove(usize),
    /// Writes a line below it.
    Add(usize, String),
}

impl Edit {
    /// Returns the number of the line.
    pub fn line(&self) -> usize {
        match self {
            Edit::Rewrite(at, _) | Edit::Remove(at) | Edit::Add(at, _) => *at,
        }
    }
}

/// Holds a conversation. Errors with the line that is untrue.
pub fn check(text: &str, speaker: impl Speaker) -> Result<(), String> {
    hold(text, speaker, false).map(drop)
}

/// Holds a conversation. Returns the changes after which its answers are those that were given: none if they already are. Errors
/// with a line that is not an event, or that breaks a promise.
///
/// A changed line keeps its layout and its comment, and each word that still agrees, with `...`, `~a` and `#1`. A token that no
/// line named so far gets the next free label, so a label that a later line uses may then mean another token: the changed text
/// wants reading.
pub fn correct(text: &str, speaker: impl Speaker) -> Result<Vec<Edit>, String> {
    hold(text, speaker, true)
}

/// Returns the text with these changes. Every other line stays byte for byte.
pub fn edited(text: &str, edits: &[Edit]) -> String {
    let mut edited = String::new();
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let (mut kept, mut added) = (line.to_owned(), String::new());
        for edit in edits {
            match edit {
                Edit::Rewrite(on, instead) if *on == at => kept = format!("{instead}\n"),
                Edit::Remove(on) if *on == at => kept.clear(),
                Edit::Add(on, below) if *on == at => added += &format!("{below}\n"),
                _ => {}
            }
        }
        if !added.is_empty() && !kept.is_empty() && !kept.ends_with('\n') {
            kept.push('\n');
        }
        edited += &kept;
        edited += &added;
    }
    edited
}

fn hold(text: &str, speaker: impl Speaker, corrects: bool) -> Result<Vec<Edit>, String> {
    let mut transcript = Transcript {
        speaker,
        names: Reader::default(),
        labels: Labels::new(),
        words: BTreeMap::new(),
        said: VecDeque::new(),
        unasked: None,
        corrects,
        edits: Vec::new(),
        at: 0,
        last: 0,
    };
    for (at, whole) in text.lines().enumerate() {
        let line = whole.split(" # ").next().unwrap_or(whole).trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| format!("line {}: {line}\n{what}", at + 1);
        transcript.at = at;
        match line.strip_prefix(' ') {
            Some(expected) => transcript.expect(whole, expected.trim()).map_err(wrong)?,
            None => {
                if !line.starts_with("within ") {
                    transcript.silence().map_err(wrong)?;
                }
                transcript.last = at;
                transcript.happen(whole, line).map_err(wrong)?;
            }
        }
    }
    transcript
        .silence()
        .map_err(|what| format!("at the end: {what}"))?;
    Ok(transcript.edits)
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
    /// Whether an untrue line is corrected; otherwise it ends the conversation.
    corrects: bool,
    edits: Vec<Edit>,
    /// The number of the line that is read.
    at: usize,
    /// The number of the last line that is true, or made so: what a line leaves unsaid belongs below it.
    last: usize,
}

impl<S: Speaker> Transcript<S> {
    fn happen(&mut self, whole: &str, line: &str) -> Result<(), String> {
        if let Some(expected) = line.strip_prefix("events: ") {
            return match self.speaker.events() {
                Some(told) => self.compare(whole, expected, &told),
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
        while let Some(said) = self.said.pop_front() {
            if !self.corrects {
                return Err(format!("before this line, not expected: {said}"));
            }
            let line = format!("  {}", self.labelled(&said));
            self.edits.push(Edit::Add(self.last, line));
        }
        Ok(())
    }

    /// Compares an expectation, of a whole line, with what was said.
    fn expect(&mut self, whole: &str, expected: &str) -> Result<(), String> {
        // The order of outcomes of one event is undefined.
        let hearer = |text: &str| text.split_once(" <- ").map(|(who, _)| who.to_string());
        if let Some(said) = self.unasked.take_if(|_| hearer(expected).is_none()) {
            return self.compare(whole, expected, &said);
        }
        let mut said = self.said.iter();
        let its = said.position(|said| hearer(said) == hearer(expected));
        if let Some(said) = its.and_then(|its| self.said.remove(its)) {
            return self.compare(whole, expected, &said);
        }
        if self.corrects {
            self.edits.push(Edit::Remove(self.at));
            return Ok(());
        }
        Err(match self.said.front() {
            Some(said) => format!("but the answer was: {said}"),
            None => "nothing was said".into(),
        })
    }

    fn compare(&mut self, whole: &str, expected: &str, said: &str) -> Result<(), String> {
        self.last = self.at;
        let known = (self.labels.clone(), self.words.clone());
        if self.matches(expected, said) {
            return Ok(());
        }
        if !self.corrects {
            return Err(format!("but the answer was: {said}"));
        }
        (self.labels, self.words) = known;
        let instead = whole.replacen(expected, &self.written(expected, said), 1);
        self.edits.push(Edit::Rewrite(self.at, instead));
        Ok(())
    }

    /// Returns what was said as a conversation writes it, with each expected word that agrees. Where the expectation was only the
    /// beginning, so is this, with as many words.
    fn written(&mut self, expected: &str, said: &str) -> String {
        let (beginning, is_open) = match expected.strip_suffix(" ...") {
            Some(beginning) => (beginning, true),
            None => (expected, false),
        };
        let expected: Vec<&str> = beginning.split(' ').collect();
        let mut written = Vec::new();
        for (at, word) in said.split(' ').enumerate() {
            if is_open && at == expected.len() {
                written.push("...".to_owned());
                break;
            }
            let agrees = expected
                .get(at)
                .filter(|expected| self.matches(expected, word));
            written.push(match agrees {
                Some(expected) => (*expected).to_owned(),
                None => self.labelled(word),
            });
        }
        written.join(" ")
    }

    /// Returns a text with labels in place of tokens.
    fn labelled(&mut self, text: &str) -> String {
        let is_digit = |c: char| c.is_ascii_digit();
        let (mut labelled, mut rest) = (String::new(), text);
        while let Some(start) = rest.find(is_digit) {
            let (before, number) = rest.split_at(start);
            let end = number.find(|c| !is_digit(c)).unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            labelled += before;
            labelled += &match number.parse().ok().and_then(|number| self.label(number)) {
                Some(label) => format!("#{label}"),
                None => number.to_owned(),
            };
            rest = after;
        }
        labelled + rest
    }

    /// Returns the label of a number that is a token, a new one if it has none yet; none if no label is free at its place.
    fn label(&mut self, number: u64) -> Option<u64> {
        let known = self.labels.iter().find(|(_, token)| **token == number);
        if let Some((label, _)) = known {
            return Some(*label);
        }
        // Tokens rise, and are in microseconds: no other number of a conversation is as large.
        if number < self.labels.values().min().copied().unwrap_or(FIRST_TOKEN) {
            return None;
        }
        let below = self.labels.iter().filter(|(_, token)| **token < number);
        let label = below.map(|(label, _)| *label).max().unwrap_or(0) + 1;
        let is_free = !self.labels.contains_key(&label);
        is_free.then(|| {
            self.labels.insert(label, number);
            label
        })
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
