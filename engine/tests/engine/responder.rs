//! The engine's answers in a conversation (see [`transcript`]).

use crate::invariants::{self, Broken};
use crate::pair::Pair;
use crate::script::{Act, Reader};
use crate::snapshot::Picture;
use crate::transcript::{self, Labels};
use crate::world::Heard;
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::refusal::escaped;
use dlock_engine::{Event, Outcome};

/// The engine in its world, together with the model. Every promise is checked after each line.
pub struct EngineSpeaker {
    pair: Pair,
    before: Picture,
}

impl EngineSpeaker {
    pub fn new() -> EngineSpeaker {
        let mut pair = Pair::new(Default::default());
        pair.lenient = true;
        let before = Picture::take(&mut pair.world);
        EngineSpeaker { pair, before }
    }
}

impl transcript::Speaker for EngineSpeaker {
    /// Performs an act with engine and model, and checks every promise.
    fn act(&mut self, act: &Act, tokens: &Labels, names: &Reader) -> Result<Vec<String>, String> {
        let answer = self.pair.act_as_named(act, tokens)?;
        let mut said: Vec<String> = Vec::new();
        said.extend(answer.map(|answer| match answer {
            Ok(reply) => format!("-> {}", shown(&reply)),
            Err(error) => format!("-> {error}"),
        }));
        if matches!(act, Act::Stall(_)) {
            // The answers follow with the next line.
            return Ok(said);
        }
        self.pair.world.tick();
        let after = Picture::take(&mut self.pair.world);
        let heard = after.heard.iter().filter(|heard| !heard.lost);
        said.extend(heard.map(|heard| heard.said(names)));
        let checked = invariants::check(&self.before, &after, act.is_orderly())
            .and_then(|()| invariants::round_trip(&self.pair.world));
        self.before = after;
        checked.map_err(|Broken(rule, what)| format!("{rule:?}: {what}"))?;
        Ok(said)
    }

    fn events(&mut self) -> Option<String> {
        let told = std::mem::take(&mut self.pair.world.events);
        let words: Vec<String> = told.iter().map(|(_, event)| described(event)).collect();
        Some(words.join(", "))
    }
}

impl Heard {
    fn said(&self, names: &Reader) -> String {
        let client = names.name(self.asked.client);
        format!("{client} <- {}", outcome(&self.outcome))
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
        Outcome::TimedOut | Outcome::Cancelled | Outcome::Moved => "null".into(),
        Outcome::Replaced => Error::Replaced.to_string(),
        Outcome::Gone => "gone".into(),
        Outcome::Refused(error) => error.to_string(),
        Outcome::Renewed(left, None) => left.to_string(),
        Outcome::Renewed(left, Some(id)) => format!("[{left}, {id}]"),
        Outcome::Prolonged => "prolonged".into(),
        Outcome::News(news) => format!("{news:?}"),
    }
}

fn shown(reply: &Reply) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match reply {
        Reply::List(_) => "a page".into(),
        Reply::Run => "runs".into(),
        Reply::FullSyncNotice => "heeds".into(),
        Reply::Grant(token, holds, None) => format!("[{}, {holds}]", token.0),
        Reply::GrantIn(token, session) => format!("[{}, {session}]", token.0),
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
