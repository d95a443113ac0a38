//! A line of the result: one figure beside another, and how far apart they may be.

use crate::series::Records;
use crate::spread::Spread;

/// A figure of a run.
#[derive(Clone, Copy)]
pub struct Source {
    /// Group.
    pub group: &'static str,
    /// Way.
    pub way: &'static str,
    /// Figure.
    pub figure: &'static str,
}

/// What a row shows.
#[derive(Clone, Copy)]
pub enum Value {
    /// Of each round the ratio of two samples.
    Ratio(Source, Source),
    /// The samples as they are.
    Plain(Source),
}

/// A line of the result.
pub struct Row {
    /// Names it in the result file, for good.
    pub name: &'static str,
    /// What it is, in words.
    pub what: &'static str,
    /// Against what, in words; the unit where it is no ratio.
    pub against: &'static str,
    /// What is shown.
    pub value: Value,
    /// It must not be more than this; without it the row is only shown.
    pub bound: Option<f64>,
    /// What we would like beyond that.
    pub goal: Option<f64>,
    /// So much more than in the committed result, as a part of it, is a change and no chance.
    pub tolerance: f64,
}

impl Row {
    /// The group that it is made of.
    pub fn group(&self) -> &'static str {
        match self.value {
            Value::Ratio(subject, _) | Value::Plain(subject) => subject.group,
        }
    }

    /// What the row shows in this run; none if it was not measured.
    pub fn spread(&self, records: &Records) -> Option<Spread> {
        let samples = |source: Source| records.samples(source.group, source.way, source.figure);
        match self.value {
            Value::Ratio(subject, against) => Spread::of_ratios(samples(subject), samples(against)),
            Value::Plain(subject) => Spread::of(samples(subject)),
        }
    }
}
