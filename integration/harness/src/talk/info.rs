//! A section of INFO.

use std::collections::HashMap;
use std::fmt::Debug;
use std::str::FromStr;

/// An answer to INFO, by field.
#[derive(Clone, Debug)]
pub struct Info {
    fields: HashMap<String, String>,
}

impl Info {
    /// Reads an answer to INFO.
    pub fn parse(text: &str) -> Info {
        let fields = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
            .collect();
        Info { fields }
    }

    /// Returns a field's text, if the server has that field.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    /// Returns a field's text.
    ///
    /// # Panics
    /// If there is no such field.
    #[track_caller]
    pub fn text(&self, field: &str) -> &str {
        self.get(field)
            .unwrap_or_else(|| panic!("INFO has no field {field}: {:?}", self.fields))
    }

    /// Returns a field as a number.
    ///
    /// # Panics
    /// If there is no such field or it is no number.
    #[track_caller]
    pub fn number<T: FromStr<Err: Debug>>(&self, field: &str) -> T {
        let text = self.text(field);
        text.parse()
            .unwrap_or_else(|error| panic!("{field}:{text} in INFO is no number: {error:?}"))
    }
}
