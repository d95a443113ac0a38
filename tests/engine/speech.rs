//! How the engine and the model answer in a conversation (see [`transcript`](crate::transcript)).

use crate::commands::Reply;
use crate::engine::{Event, Outcome};
use crate::error::{escaped, Error};
use crate::invariants::{self, Broken};
use crate::model::{Answer, Model, Told};
use crate::picture::Picture;
use crate::script::{Act, Reader};
use crate::transcript::{Labels, Subject};
use crate::world::{Heard, World};

/// The engine in its world. Every promise is checked after each line.
pub struct Speaker {
    world: World,
    before: Picture,
}

impl Speaker {
    pub fn new() -> Speaker {
        let mut world = World::new(Default::default());
        let before = Picture::take(&mut world);
        Speaker { world, before }
    }
}

impl Subject for Speaker {
    fn act(
        &mut self,
        act: &Act,
        tokens: &Labels,
        names: &Reader,
    ) -> Result<Option<Vec<String>>, String> {
        let answer = self.world.act(act, tokens);
        let mut said: Vec<String> = Vec::new();
        said.extend(answer.map(|answer| match answer {
            Ok(reply) => format!("-> {}", shown(&reply)),
            Err(error) => format!("-> {error}"),
        }));
        if matches!(act, Act::Stall(_)) {
            // What is overdue comes with the next line.
            return Ok(Some(said));
        }
        self.world.tick();
        let after = Picture::take(&mut self.world);
        let heard = after.heard.iter().filter(|heard| !heard.lost);
        said.extend(heard.map(|heard| heard.said(names)));
        let checked = invariants::check(&self.before, &after, false)
            .and_then(|()| invariants::round_trip(&self.world));
        self.before = after;
        match checked {
            Ok(()) => Ok(Some(said)),
            Err(Broken(rule, what)) => Err(format!("{rule:?}: {what}")),
        }
    }

    fn skips(&self, _answer: &str) -> bool {
        false
    }

    fn events(&mut self) -> Option<String> {
        let told = std::mem::take(&mut self.world.events);
        let words: Vec<String> = told.iter().map(|(_, event)| described(event)).collect();
        Some(words.join(", "))
    }
}

impl Heard {
    fn said(&self, names: &Reader) -> String {
        let Some(channel) = &self.asked.channel else {
            return format!(
                "{} <- {}",
                names.name(self.asked.client),
                outcome(&self.outcome)
            );
        };
        let text = |bytes: &[u8]| escaped(bytes, 64);
        let what = match &self.outcome {
            Outcome::Granted(grant) => format!("granted {}", grant.token.0),
            Outcome::Null => "timeout".into(),
            Outcome::Cancelled => "cancelled".into(),
            Outcome::Moved => "moved".into(),
            Outcome::Replaced => "replaced".into(),
            other => outcome(other),
        };
        let (key, owner) = (text(&self.asked.names[0].key), text(&self.asked.owner));
        format!("{} <- {what} {key} {owner} {}", text(channel), self.id.0)
    }
}

fn described(event: &Event) -> String {
    match event {
        Event::Acquired(token) => format!("acquired {}", token.0),
        Event::Ended(end, token) => format!("{} {}", end.word(), token.0),
        Event::Queued => "queued".into(),
        Event::Timeout => "timeout".into(),
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(grant) => format!("[{}, {}]", grant.token.0, grant.holds),
        Outcome::GrantedAll(grants) => {
            let tokens = grants.iter().map(|grant| grant.token.0.to_string());
            format!("[{}]", tokens.collect::<Vec<_>>().join(", "))
        }
        Outcome::Null | Outcome::Cancelled | Outcome::Moved => "null".into(),
        Outcome::Replaced => Error::Replaced.to_string(),
        Outcome::Gone => "gone".into(),
        Outcome::Refused(error) => error.to_string(),
    }
}

fn shown(reply: &Reply) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match reply {
        Reply::List(_) => "a page".into(),
        Reply::Run => "runs".into(),
        Reply::Grant(token, holds, None) => format!("[{}, {holds}]", token.0),
        Reply::Grant(token, holds, Some(owner)) => format!("[{}, {holds}, {owner}]", token.0),
        Reply::Wait(_, None) => "waits".into(),
        Reply::Wait(_, Some(owner)) => format!("waits as {owner}"),
        Reply::NullArray | Reply::Null => "null".into(),
        Reply::Ok => "OK".into(),
        Reply::Integer(number) => number.to_string(),
        Reply::Text(text) => (*text).into(),
        Reply::Bulk(bytes) => escaped(bytes, 64),
        Reply::Array(items) => format!("[{}]", list(items.iter().map(shown).collect())),
        Reply::Map(fields) => {
            let field = |(name, value): &(&str, Reply)| format!("{name}: {}", shown(value));
            format!("{{{}}}", list(fields.iter().map(field).collect()))
        }
    }
}

/// Of what the model does not know it says `...`.
impl Subject for Model {
    fn act(
        &mut self,
        act: &Act,
        tokens: &Labels,
        names: &Reader,
    ) -> Result<Option<Vec<String>>, String> {
        let Ok(answer) = Model::act(self, act, tokens) else {
            return Ok(None);
        };
        let mut said: Vec<String> = Vec::new();
        if let Act::Command(command) = act {
            let unnamed = command.words.iter().any(|word| word == "*");
            let named = unnamed.then(|| format!("uuid-of-{}", command.client));
            said.push(format!(
                "-> {}",
                answer.map_or("...".into(), |answer| answer.said(named.as_deref()))
            ));
        }
        let told = self.take_told().into_iter();
        let heard = told.filter(|told| {
            told.wait.asked.channel.is_some() || !self.cut.contains(&told.wait.asked.client)
        });
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
                let shown =
                    |left: &Option<u32>| left.map_or("null".into(), |left| left.to_string());
                list(remaining.iter().map(shown).collect())
            }
            Answer::Held(grant, holds, left, None) => format!("[{grant}, {holds}, {left}]"),
            Answer::Held(grant, holds, left, Some(owner)) => {
                format!("[{grant}, {holds}, {left}, {owner}]")
            }
            Answer::Ok => "OK".into(),
            Answer::Replaced => Error::Replaced.to_string(),
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
