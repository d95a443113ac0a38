//! The conversations in `tests/scenarios`, held with the engine and with the model.

use crate::model::{Answer, Model, Told};
use crate::script::{Act, Reader};
use crate::transcript::{check, Labels, Subject};
use std::path::Path;

/// What is said by the model. Of what it does not know it says `...`.
impl Subject for Model {
    fn act(&mut self, act: &Act, tokens: &Labels, names: &Reader) -> Result<Option<Vec<String>>, String> {
        let Ok(answer) = Model::act(self, act, tokens) else {
            return Ok(None);
        };
        let mut said: Vec<String> = Vec::new();
        if let Act::Command(command) = act {
            let unnamed = command.words.iter().any(|word| word == "*");
            let named = unnamed.then(|| format!("uuid-of-{}", command.client));
            said.push(format!("-> {}", answer.map_or("...".into(), |answer| answer.said(named.as_deref()))));
        }
        let told = self.take_told().into_iter();
        let heard = told.filter(|told| told.wait.asked.channel.is_some() || !self.cut.contains(&told.wait.asked.client));
        said.extend(heard.map(|told| told.said(names)));
        Ok(Some(said))
    }

    fn skips(&self, answer: &str) -> bool {
        answer.starts_with("-> ERR") || answer.starts_with("-> NOPERM")
    }

    fn events(&mut self) -> Option<String> {
        None
    }
}

impl Answer {
    fn said(&self, named: Option<&str>) -> String {
        let named = |text: String| match named {
            Some(named) => format!("{text}, {named}]"),
            None => format!("{text}]"),
        };
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        match self {
            Answer::Granted { grant, holds } => named(format!("[{grant}, {holds}")),
            Answer::GrantedAll(grants) => list(grants.iter().map(u64::to_string).collect()),
            Answer::Null | Answer::Cancelled => "null".into(),
            // The circle is not the model's to name.
            Answer::Refused(error) => match error.to_string() {
                text if text.starts_with("DEADLOCK") => "DEADLOCK ...".into(),
                text => text,
            },
            Answer::Waits(_) => "waits...".into(),
            Answer::Noted(place, id) => format!("[0, {place}, {id}]"),
            Answer::Number(number) => number.to_string(),
            Answer::Remaining(remaining) => {
                let shown = |left: &Option<u32>| left.map_or("null".into(), |left| left.to_string());
                list(remaining.iter().map(shown).collect())
            }
            Answer::Held(grant, holds, left) => format!("[{grant}, {holds}, {left}]"),
            Answer::Ok => "OK".into(),
            Answer::Replaced => crate::error::Error::Replaced.to_string(),
            Answer::Gone => "gone".into(),
        }
    }
}

impl Told {
    fn said(&self, names: &Reader) -> String {
        let asked = &self.wait.asked;
        let Some(channel) = &asked.channel else {
            return format!("{} <- {}", names.name(asked.client), self.answer.said(None));
        };
        let what = match &self.answer {
            Answer::Granted { grant, .. } => format!("granted {grant}"),
            Answer::Null => "timeout".into(),
            Answer::Cancelled => "cancelled".into(),
            Answer::Replaced => "replaced".into(),
            other => other.said(None),
        };
        let key = asked.keys[0].split_once(':').map_or("", |(_, key)| key);
        match what.starts_with("DEADLOCK") {
            true => format!("{channel} <- {what}"),
            false => format!("{channel} <- {what} {key} {} {}", asked.owner, self.wait.id),
        }
    }
}

/// Holds all conversations, each with a fresh subject.
fn converse<S: Subject>(subject: impl Fn() -> S) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let told = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).expect("a text");
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        check(&mut subject(), &text).err().map(|wrong| format!("{name}, {wrong}"))
    };
    let wrong: Vec<String> = files.iter().filter_map(told).collect();
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

#[test]
fn conversations_with_the_model_go_as_written() {
    converse(|| Model::new(Default::default()));
}
