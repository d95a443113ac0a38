//! The engine and the [`model`](crate::model) side by side: both receive the same events; every answer, every outcome of a
//! waiter, and everything visible of the locks is compared.

use crate::model::ties::Next;
use crate::model::{Answer, Hold, Lock, Model, Place, Told, SHARED};
use crate::script::{Act, Command};
use crate::ties;
use crate::transcript::Labels;
use crate::world::{name, Heard, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::Refusal;
use dlock_engine::{
    HoldView, Limit, LockState, Outcome, PlaceKind, PlaceView, Policy, RequestId, Share, Token,
};
use std::collections::BTreeMap;

#[derive(Clone)]
pub struct Pair {
    pub world: World,
    pub model: Model,
    /// The engine's tokens, by the model's grants.
    pub tokens: Labels,
    /// The highest token before this event.
    highest: u64,
    /// The engine's numbers of waits, by the model's.
    waits: BTreeMap<u64, RequestId>,
    /// The number of answers of each kind, at once or later.
    pub seen: BTreeMap<String, usize>,
    /// Whether refusals of a command's words are ignored: conversations try them, and the model does not know such words.
    pub lenient: bool,
    /// The number of outcomes before this event.
    told: usize,
    /// Whether something has happened that the model does not know.
    alone: bool,
    /// Whether the wall clock has stepped: then it does not show how long ago something was.
    stepped: bool,
}

impl Pair {
    pub fn new(policy: Policy) -> Pair {
        Pair {
            world: World::new(policy.clone()),
            model: Model::new(policy),
            tokens: Labels::new(),
            highest: 0,
            waits: BTreeMap::new(),
            seen: BTreeMap::new(),
            lenient: false,
            told: 0,
            alone: false,
            stepped: false,
        }
    }

    /// Performs an act with both; `#1` stands for the model's first grant. Leaves out the impossible: a command on a connection
    /// that is blocked or gone, or with a token that does not exist.
    pub fn act(&mut self, act: &Act) -> Result<(), String> {
        if matches!(act, Act::Command(command) if !self.is_possible(command)) {
            return Ok(());
        }
        // The model does not know a key that outlives its holds.
        if matches!(act, Act::Expire((db, key), ms) if !self.model.would_remove(&format!("{db}:{key}"), *ms))
        {
            return Ok(());
        }
        let tokens = self.tokens.clone();
        self.act_as_named(act, &tokens)?;
        self.world.heard.clear();
        Ok(())
    }

    /// Performs an act with tokens named by `tokens`. Returns the engine's answer.
    pub fn act_as_named(
        &mut self,
        act: &Act,
        tokens: &Labels,
    ) -> Result<Option<Result<Reply, Error>>, String> {
        let (Act::Wait(mut left), false) = (act, self.alone) else {
            return self.act_at_once(act, tokens);
        };
        loop {
            let (model, steady) = (&self.model, self.model.steady);
            let due = model
                .next_renewal()
                .map(|at| at.saturating_sub(steady).max(1));
            // A renewal comes a quarter of a lease after the previous one, at the earliest.
            let longest = match (model.may_renew(), model.policy.max_lease_ms < 1_000) {
                (false, _) => left,
                (true, false) => 200,
                (true, true) => 1,
            };
            let step = due.unwrap_or(left).min(longest).min(left);
            self.act_at_once(&Act::Wait(step), tokens)?;
            left -= step;
            if left == 0 {
                return Ok(None);
            }
        }
    }

    fn act_at_once(
        &mut self,
        act: &Act,
        tokens: &Labels,
    ) -> Result<Option<Result<Reply, Error>>, String> {
        self.told = self.world.heard.len();
        let step = self.world.step;
        if !self.model.cut.is_empty() {
            // Undelivered grants are undone between two steps: then the size of a step makes a difference.
            self.world.step = step.max(16);
        }
        let got = self.act_in_steps(act, tokens);
        self.world.step = step;
        got
    }

    fn act_in_steps(
        &mut self,
        act: &Act,
        tokens: &Labels,
    ) -> Result<Option<Result<Reply, Error>>, String> {
        self.highest = self.tokens.values().max().copied().unwrap_or(0);
        self.stepped |= matches!(act, Act::Clock(_));
        let got = self.world.act(act, tokens);
        let code = |error: &Error| error.to_string().split(' ').next().map(str::to_string);
        let words = |error: &Error| {
            ["ERR", "NOPERM"]
                .map(str::to_string)
                .contains(&code(error).unwrap_or_default())
        };
        if self.alone || self.lenient && matches!(&got, Some(Err(error)) if words(error)) {
            return Ok(got);
        }
        let named = |token: &u64| self.tokens.iter().find(|(_, other)| *other == token);
        let grants = tokens
            .iter()
            .filter_map(|(label, token)| Some((*label, *named(token)?.0)));
        let grants: Labels = grants.collect();
        if let (Act::Stall(ms), false) = (act, self.lenient) {
            // The timer comes before the next command, as it may.
            self.world.tick();
            self.world.expire_keys();
            self.model.stall(*ms);
            self.compare_told()?;
            self.compare_views()?;
            return Ok(got);
        }
        let Ok(must) = self.model.act(act, &grants) else {
            self.alone = true;
            return Ok(got);
        };
        if matches!(act, Act::Behind(_)) {
            // The engine learns of it with the next event only.
            return Ok(got);
        }
        if let (Act::Command(command), Some(got)) = (act, &got) {
            self.compare_answer(command, must, got)?;
        }
        self.compare_told()?;
        self.compare_views()?;
        Ok(got)
    }

    fn is_possible(&self, command: &Command) -> bool {
        let known =
            |word: &String| match word.strip_prefix('#').and_then(|grant| grant.parse().ok()) {
                Some(grant) => self.tokens.contains_key::<u64>(&grant),
                None => true,
            };
        (!command.may_wait || self.is_free(command.client)) && command.words.iter().all(known)
    }

    /// Returns true if a connection can send a command.
    pub fn is_free(&self, client: u64) -> bool {
        let blocked = |wait: &crate::model::Wait| wait.asked.client == client;
        !self.model.cut.contains(&client) && !self.model.waits.iter().any(blocked)
    }

    fn compare_answer(
        &mut self,
        command: &Command,
        must: Option<Answer>,
        got: &Result<Reply, Error>,
    ) -> Result<(), String> {
        let Some(must) = must else {
            return Ok(());
        };
        self.count("answered", &must);
        let count =
            |left: &Option<u32>| left.map_or(Reply::Null, |left| Reply::Integer(left.into()));
        let same = match (&must, got) {
            (Answer::Granted { grant, holds }, Ok(Reply::Grant(token, count, _))) => {
                holds == count && self.stands_for(*grant, token.0)
            }
            // DOWNGRADE
            (Answer::Granted { grant, holds }, Ok(Reply::Array(parts))) => match parts[..] {
                [Reply::Integer(token), Reply::Integer(count)] => {
                    u64::from(*holds) == count && self.stands_for(*grant, token)
                }
                _ => false,
            },
            (Answer::GrantedAll(grants), Ok(Reply::Array(tokens))) => {
                let fits = |(grant, token): (&u64, &Reply)| match token {
                    Reply::Integer(token) => self.stands_for(*grant, *token),
                    _ => false,
                };
                grants.len() == tokens.len() && grants.iter().zip(tokens).all(fits)
            }
            (Answer::Null, Ok(Reply::NullArray | Reply::Null)) => true,
            (Answer::Refused(must), Err(got)) => same_error(must, got),
            (Answer::Waits(wait), Ok(Reply::Wait(id, _))) => {
                self.waits.insert(*wait, *id);
                true
            }
            (Answer::Number(must), Ok(Reply::Integer(got))) => must == got,
            (Answer::Remaining(must), Ok(Reply::Array(got))) => {
                must.iter().map(count).collect::<Vec<_>>() == *got
            }
            (Answer::Ok, Ok(Reply::Ok)) => true,
            (Answer::Held(grant, holds, left, owner), Ok(Reply::Array(parts))) => {
                let owner = owner
                    .as_ref()
                    .map(|owner| Reply::Bulk(owner.clone().into_bytes()));
                let (token, rest) = parts.split_first().unwrap_or((&Reply::Null, &[]));
                let must = [Reply::Integer((*holds).into()), Reply::Integer(*left)];
                let must: Vec<Reply> = must.into_iter().chain(owner).collect();
                must == rest
                    && matches!(token, Reply::Integer(token) if self.stands_for(*grant, *token))
            }
            _ => false,
        };
        let words = command.words.join(" ");
        same.then_some(()).ok_or(format!(
            "{words}: the model answers {must:?}, the engine {got:?}"
        ))
    }

    fn count(&mut self, when: &str, answer: &Answer) {
        let shown = match answer {
            Answer::Refused(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        let kind = shown
            .split(|letter: char| !letter.is_alphabetic())
            .next()
            .unwrap_or_default();
        *self.seen.entry(format!("{when} {kind}")).or_default() += 1;
    }

    /// Returns true if this token belongs to that grant: for a new grant, one above all earlier tokens.
    fn stands_for(&mut self, grant: u64, token: u64) -> bool {
        if let Some(known) = self.tokens.get(&grant) {
            return *known == token;
        }
        // Grants of one instant may be made in another order, lock by lock.
        let fresh = token > self.highest && self.tokens.values().all(|other| *other != token);
        self.tokens.insert(grant, token);
        fresh
    }

    /// Compares the outcomes that waiters received.
    fn compare_told(&mut self) -> Result<(), String> {
        let mut musts = self.model.take_told();
        let fresh = self.world.heard[self.told..].to_vec();
        for heard in fresh {
            let its = |told: &Told| self.waits.get(&told.wait.id) == Some(&heard.id);
            let Some(at) = musts.iter().position(its) else {
                return Err(format!("the model does not give this outcome: {heard:?}"));
            };
            let must = musts.remove(at);
            self.count("told", &must.answer);
            if !self.same_outcome(&must, &heard) {
                return Err(format!("the model gives {must:?}, the engine {heard:?}"));
            }
        }
        if let Some(unasked) = self.world.unasked.first() {
            return Err(format!("no request waits for {unasked:?}"));
        }
        musts
            .is_empty()
            .then_some(())
            .ok_or(format!("the engine does not give {musts:?}"))
    }

    fn same_outcome(&mut self, must: &Told, heard: &Heard) -> bool {
        let asked = &must.wait.asked;
        must.at == heard.at.0
            && asked.client == heard.asked.client
            && match (&must.answer, &heard.outcome) {
                (Answer::Granted { grant, holds }, Outcome::Granted(got)) => {
                    *holds == got.holds && self.stands_for(*grant, got.token.0)
                }
                (Answer::GrantedAll(grants), Outcome::GrantedAll(got)) => {
                    let mut parts = grants.iter().zip(got);
                    grants.len() == got.len()
                        && parts.all(|(grant, got)| self.stands_for(*grant, got.token.0))
                }
                (Answer::Null, Outcome::TimedOut)
                | (Answer::Cancelled, Outcome::Cancelled)
                | (Answer::Replaced, Outcome::Replaced) => true,
                (Answer::Refused(must), Outcome::Refused(got)) => {
                    same_error(must, &got.clone().into())
                }
                _ => false,
            }
    }

    /// Compares everything visible of the locks.
    fn compare_views(&mut self) -> Result<(), String> {
        let (must, is) = (self.model.places(), self.world.engine().places());
        if must != is {
            return Err(format!("the model has {must} places, the engine {is}"));
        }
        let holds = || self.model.locks.values().flat_map(|lock| &lock.holds);
        let ephemeral = holds().filter(|hold| hold.ephemeral().is_some()).count();
        let autos = holds().filter(|hold| hold.auto()).count();
        let (must, engine) = ((ephemeral, autos), &self.world.primary.engine);
        let is = (engine.ephemeral(), engine.autos());
        if must != is {
            return Err(format!("the model has ties {must:?}, the engine {is:?}"));
        }
        for name in self.world.known.clone() {
            let key = format!("{}:{}", name.db, String::from_utf8_lossy(&name.key));
            let stored = self.world.primary.keys.lock(&name);
            let engine = &self.world.primary.engine;
            let view = engine.view(stored, self.world.now, name.as_ref(), usize::MAX);
            let (state, holders, queue) = match view {
                Some(view) => (Some(view.state), view.holders, view.queue),
                None => (None, Vec::new(), Vec::new()),
            };
            let lock = self.model.locks.get(&key).cloned().unwrap_or_default();
            let (must, is) = (self.shown(&lock), shown_view(state, &holders, &queue));
            let waited = |place: &Place| self.model.steady - place.since;
            let mut waits = lock.in_order().map(waited).zip(&queue);
            // Numbers of one instant are a microsecond apart: for a ticket that came with its number this may be visible.
            let near =
                |(must, is): (u64, &PlaceView)| self.stepped || must.abs_diff(is.waited_ms) <= 1;
            if must != is || !waits.all(near) {
                return Err(format!("{key}\nmodel  {must:#?}\nengine {is:#?}"));
            }
            let mut holds = lock.holds.clone();
            holds.sort_by_key(|hold| hold.grant);
            for (hold, view) in holds.iter().zip(&holders) {
                if !self.stands_for(hold.grant, view.token.0) {
                    return Err(format!(
                        "{key}: {:?} is not the token of {hold:?}",
                        view.token
                    ));
                }
            }
        }
        self.adopt_renewals()
    }

    /// Adopts the engine's renewals. The server chooses the instant of a renewal itself: after a quarter to a third of the lease.
    fn adopt_renewals(&mut self) -> Result<(), String> {
        let ties = ties::ties(&self.world);
        let locks = self.model.locks.iter_mut();
        let holds =
            locks.flat_map(|(key, lock)| lock.holds.iter_mut().map(move |hold| (key, hold)));
        for (key, hold) in holds {
            let grant = hold.grant;
            let auto = hold.tie.as_mut().and_then(|tie| tie.auto.as_mut());
            let Some((auto, Next::Since(from, lease))) = auto.map(|auto| {
                let next = auto.next;
                (auto, next)
            }) else {
                continue;
            };
            let named = |token: &u64| {
                let (db, key) = key.split_once(':')?;
                ties.get(&(name(db.parse().ok()?, key), Token(*token)))
            };
            let tied = self.tokens.get(&grant).and_then(named);
            let due = tied.and_then(|tied| tied.due);
            let third = from + (lease / 3).max(1);
            match due.filter(|due| (third.saturating_sub(lease / 12 + 1)..=third).contains(due)) {
                Some(due) => auto.next = Next::At(due),
                None => {
                    return Err(format!(
                        "a renewal after {from} of {lease} ms is due at {due:?}"
                    ))
                }
            }
        }
        Ok(())
    }

    fn shown(&self, lock: &Lock) -> Vec<String> {
        let (now, steady) = (self.model.now, self.model.steady);
        let state = match (lock.holds.is_empty(), lock.places()) {
            (true, 0) => None,
            (false, _) => Some(LockState::Held),
            (true, _) if !self.model.granting() => Some(LockState::Quarantined),
            (true, _) => Some(LockState::Reserved),
        };
        let mut lines = vec![format!("{state:?}")];
        let mut holds: Vec<&Hold> = lock.holds.iter().collect();
        holds.sort_by_key(|hold| hold.grant);
        lines.extend(holds.into_iter().map(|hold| {
            let Hold {
                owner,
                holds,
                limit,
                permits,
                ..
            } = hold;
            let (left, held) = (hold.deadline - now, now.saturating_sub(hold.since));
            format!(
                "{owner} holds {holds}, {permits} of {:?} for {left} since {held}, {:?}, {}",
                wire(*limit),
                hold.ephemeral(),
                hold.auto()
            )
        }));
        lines.extend(lock.in_order().map(|place| {
            let wait = self
                .model
                .waits
                .iter()
                .find(|wait| Some(wait.id) == place.wait);
            let until = wait.map_or(place.kept_until, |wait| wait.until);
            let (left, client) = (
                until.map(|until| until - steady),
                wait.map_or(0, |wait| wait.asked.client),
            );
            let kind = match (place.claim, wait) {
                (_, None) => PlaceKind::Absent,
                (Some(_), _) => PlaceKind::Ticket,
                (None, _) => PlaceKind::Waiter,
            };
            let (owner, limit, permits) = (&place.owner, wire(place.limit), place.permits);
            format!("{owner} {kind:?} {permits} of {limit:?} for {left:?}, {client}")
        }));
        lines
    }
}

fn shown_view(state: Option<LockState>, holders: &[HoldView], queue: &[PlaceView]) -> Vec<String> {
    let text = String::from_utf8_lossy;
    let mut lines = vec![format!("{state:?}")];
    lines.extend(holders.iter().map(|hold| {
        let HoldView {
            holds,
            limit,
            permits,
            lease_ms,
            held_ms,
            ..
        } = hold;
        let (owner, ephemeral) = (text(&hold.owner), hold.ephemeral.then_some(hold.client.0));
        format!(
            "{owner} holds {holds}, {permits} of {limit:?} for {lease_ms} since {held_ms}, {ephemeral:?}, {}",
            hold.auto
        )
    }));
    lines.extend(queue.iter().map(|place| {
        let PlaceView {
            kind,
            share: Share { limit, permits },
            left_ms,
            client,
            ..
        } = place;
        format!(
            "{} {kind:?} {permits} of {limit:?} for {left_ms:?}, {}",
            text(&place.owner),
            client.0
        )
    }));
    lines
}

fn same_error(must: &Error, got: &Error) -> bool {
    let code = |error: &Error| error.to_string().split(' ').next().map(str::to_string);
    match (must, got) {
        (Error::Refused(Refusal::Quarantine(must)), Error::Refused(Refusal::Quarantine(got))) => {
            must == got
        }
        _ => code(must) == code(got),
    }
}

fn wire(limit: usize) -> Limit {
    let wire = if limit == SHARED { 0 } else { limit as u32 };
    Limit::from_wire(wire).expect("a limit")
}
