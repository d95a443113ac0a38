//! All samples of a run.

/// The samples of one figure of one way, in the order of the rounds.
pub struct Series {
    /// Group of the way.
    pub group: &'static str,
    /// Way.
    pub way: String,
    /// Figure.
    pub figure: &'static str,
    /// One per round.
    pub samples: Vec<f64>,
}

impl Series {
    fn is(&self, group: &str, way: &str, figure: &str) -> bool {
        (self.group, self.way.as_str(), self.figure) == (group, way, figure)
    }
}

/// All samples of a run, in the order of their first sample.
#[derive(Default)]
pub struct Records {
    series: Vec<Series>,
}

impl Records {
    /// Adds a sample.
    pub fn add(&mut self, group: &'static str, way: &str, figure: &'static str, sample: f64) {
        let known = self
            .series
            .iter_mut()
            .find(|series| series.is(group, way, figure));
        match known {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series {
                group,
                way: way.to_owned(),
                figure,
                samples: vec![sample],
            }),
        }
    }

    /// Returns the samples of a figure; none if it was not measured.
    pub fn samples(&self, group: &str, way: &str, figure: &str) -> &[f64] {
        self.series
            .iter()
            .find(|series| series.is(group, way, figure))
            .map_or(&[], |series| &series.samples)
    }

    /// Returns all series.
    pub fn iter(&self) -> impl Iterator<Item = &Series> {
        self.series.iter()
    }
}
