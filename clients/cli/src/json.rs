//! `--json`: replies of the server as they are, by the names that the server gives to their fields.

use crate::out::{line, moves};
use crate::server::{items, text};
use redis::Value as Reply;
use serde_json::{Map, Value};

/// Prints a document in one line.
pub(crate) fn print(document: &Value) {
    line(format_args!("{}", written(document)));
}

/// Returns a document in one line, in which letters that a terminal would obey are escaped in JSON's way.
pub(crate) fn written(document: &Value) -> String {
    let mut written = String::new();
    for letter in document.to_string().chars() {
        if moves(letter) {
            written += &format!("\\u{:04x}", letter as u32);
        } else {
            written.push(letter);
        }
    }
    written
}

/// A number, a text or a null of a reply.
fn scalar(reply: &Reply) -> Value {
    match reply {
        Reply::Int(number) => Value::from(*number),
        Reply::Nil => Value::Null,
        reply => Value::from(text(reply)),
    }
}

/// A map of a reply, which is a list of names and values in RESP2. What is a list itself has maps as its elements.
pub(crate) fn object(reply: &Reply) -> Value {
    Value::Object(fields(reply))
}

/// The fields of such a map.
pub(crate) fn fields(reply: &Reply) -> Map<String, Value> {
    let field = |name: &Reply, value: &Reply| {
        let value = match value {
            Reply::Array(rows) => rows.iter().map(object).collect(),
            value => scalar(value),
        };
        (text(name), value)
    };
    match reply {
        Reply::Map(pairs) => pairs
            .iter()
            .map(|(name, value)| field(name, value))
            .collect(),
        reply => {
            let pairs = items(reply).chunks_exact(2);
            pairs
                .filter_map(|pair| match pair {
                    [name, value] => Some(field(name, value)),
                    _ => None,
                })
                .collect()
        }
    }
}
