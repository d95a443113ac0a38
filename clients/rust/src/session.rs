// SPDX-License-Identifier: MIT
//! Sessions: the task that keeps each, by the id that its server drew; the clock; the rows.

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, from_redis_value};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::Error;
use crate::library::Link;
use crate::settings::{millis, now, NEVER};
use crate::state::{Answer, Asked, Client, Errand, HoldId, Kind, Row, Session, State, PAUSE, SLICE};

/// How long a session without work is kept: the next contended turn needs no new task.
const LINGER: Duration = Duration::from_secs(1);
/// A timer that is this late shows that the process stalled.
const STALL: Duration = Duration::from_millis(500);
/// An answer to SESSION that comes this much before its time is not early: it was on its way.
const EARLY: Duration = Duration::from_millis(10);
/// The least time that a SESSION has.
const LEAST: Duration = Duration::from_millis(500);

impl Client {
    /// Begins the tasks that are missing, or whose runtime has ended. Returns the errands, and where to run them.
    pub(crate) fn begin_tasks(self: &Arc<Self>, state: &mut State) -> Vec<(Handle, Errand)> {
        let Some(runtime) = Handle::try_current().ok().or_else(|| state.runtime.clone()) else { return Vec::new() };
        let is_missing = |task: &Option<JoinHandle<()>>| task.as_ref().is_none_or(JoinHandle::is_finished);
        for (id, session) in state.sessions.iter_mut().filter(|(_, session)| is_missing(&session.task)) {
            session.task = Some(runtime.spawn(self.clone().keep(*id)));
        }
        if !state.held.is_empty() && is_missing(&state.clock) {
            state.clock = Some(runtime.spawn(self.clone().tick()));
        }
        state.errands.drain(..).map(|errand| (runtime.clone(), errand)).collect()
    }

    /// The clock. It waits for no server.
    async fn tick(self: Arc<Self>) {
        let mut due = now();
        while let Some(next) = self.with(|state| state.look_at_holds(due)) {
            let pause = next.saturating_sub(now()).min(SLICE);
            due = now() + pause;
            tokio::select! {
                () = sleep(pause) => {}
                () = self.alarm.notified() => {}
            }
        }
    }

    /// Keeps a session while something needs it, and a second longer. What BLOCKs has a connection of its own.
    async fn keep(self: Arc<Self>, id: i64) {
        let (own, mut may_block, mut is_warned) = (Link::new(&self.library, false), false, false);
        let (mut used, mut sent) = (now(), Duration::ZERO);
        let (mut by_own, mut was_silent) = (false, false);
        loop {
            let Some(needs) = self.with(|state| state.needs(id)) else { return };
            let is_ready = own.is_ready();
            // Its own connection is yet to be made, which takes long where a node of a cluster hangs.
            if may_block && !is_ready && now() < sent + PAUSE {
                sleep(PAUSE / 20).await;
                continue;
            }
            sent = now();
            if needs.is_used {
                used = sent;
            }
            // The last one takes back what an answer that was lost has granted: the server would renew it for nobody.
            let is_last = used + LINGER < sent;
            let mut command = cmd("DLOCK.SESSION");
            let ms = if is_last { 1 } else { millis(self.settings.hang_timeout) };
            command.arg(&needs.key).arg(&self.name).arg(ms).arg("SEEN").arg(id).arg(needs.seen);
            // A link that was silent has another connection now, while the other link may be as silent.
            if !was_silent {
                by_own = is_ready;
            }
            let link = if by_own { &own } else { &self.link };
            let (mut block, slack) = (Duration::ZERO, needs.shortest / 6);
            if may_block && by_own && !is_last {
                block = SLICE.min(slack).min(self.settings.reply_timeout / 2);
                command.arg("BLOCK").arg(millis(block));
            }
            // One lost answer costs no hold.
            let within = LEAST.max(needs.shortest / 2).min(self.settings.reply_timeout);
            let reply = link.call_within(&needs.key, command, within, true).await;
            let answer = reply.and_then(|reply| Ok(from_redis_value::<Answer>(reply)?));
            was_silent = answer.is_err() && now() >= sent + within;
            may_block = answer.is_ok() && !is_last && now() <= sent + block + slack;
            match answer {
                Ok(answer) => {
                    is_warned = false;
                    let (answered, is_quiet) = (answer.0, answer.3.is_empty());
                    self.with(|state| state.read_answer(sent, answer, &needs.key));
                    if answered != id {
                        return self.with(|state| state.session_ended(id));
                    }
                    if is_quiet && now() + EARLY < sent + block {
                        sleep((sent + PAUSE).saturating_sub(now())).await;
                    }
                }
                Err(error) => {
                    let is_closed = self.with(|state| state.session_failed(id, &error));
                    if !is_warned && !is_closed {
                        tracing::warn!("what is held and waited for is not kept: {error}");
                        is_warned = true;
                    }
                    if !is_last {
                        sleep(PAUSE).await;
                    }
                }
            }
            if is_last && self.with(|state| state.end_unused(id)) {
                return;
            }
        }
    }
}

/// What the next SESSION says, and whether it has to be said.
struct Needs {
    key: Vec<u8>,
    seen: i64,
    /// There is a wait, or a hold that has grown old.
    is_used: bool,
    /// The shortest lease in it.
    shortest: Duration,
}

impl State {
    /// Has the session kept.
    pub(crate) fn keep(&mut self, id: i64, key: &[u8]) -> &mut Session {
        self.sessions.entry(id).or_insert_with(|| Session { key: key.to_vec(), ..Session::default() })
    }

    fn needs(&self, id: i64) -> Option<Needs> {
        let session = self.sessions.get(&id)?;
        let wait = self.asked.values().find(|asked| asked.session == Some(id));
        let (mut key, mut shortest) = (wait.map(Asked::key), NEVER);
        let mut is_used = wait.is_some();
        for (place, held) in self.held.iter().filter(|(_, held)| held.session == Some(id)) {
            key = key.or(Some(&place.key));
            is_used |= held.is_old();
            shortest = shortest.min(held.lease);
        }
        let shortest = if shortest == NEVER { self.settings.lease } else { shortest };
        Some(Needs { key: key.unwrap_or(&session.key).to_vec(), seen: session.seen, is_used, shortest })
    }

    /// Ends a session that nothing needs. Reports whether it has ended.
    fn end_unused(&mut self, id: i64) -> bool {
        let is_unused = self.needs(id).is_none_or(|needs| !needs.is_used);
        if is_unused {
            self.sessions.remove(&id);
            self.set_alarm(now()); // its holds are still to grow old
        }
        is_unused
    }

    /// Returns the believed end of what the server counts from the arrival of a command.
    pub(crate) fn believed(&self, sent: Duration, left_ms: u64) -> Duration {
        sent.saturating_add(Duration::from_millis(left_ms))
            .saturating_sub(Duration::from_millis(2) + self.settings.clock_margin)
    }

    /// Returns how many holds it has lost.
    pub(crate) fn close(&mut self) -> usize {
        self.closed = true;
        let (released, held): (Vec<HoldId>, Vec<HoldId>) =
            self.held.keys().cloned().partition(|hold| self.held[hold].is_released);
        held.iter().for_each(|hold| self.lose(hold, "closed"));
        released.iter().for_each(|hold| drop(self.released(hold)));
        self.asked.drain().for_each(|(_, asked)| asked.tell(Row::Failed(Error::Closed)));
        self.errands.clear();
        let tasks = self.sessions.drain().filter_map(|(_, session)| session.task);
        tasks.chain(self.clock.take()).for_each(|task| task.abort());
        held.len()
    }

    /// Reports the holds that have ended, and has the old ones kept. Returns when to look again; None: nothing is held.
    fn look_at_holds(&mut self, due: Duration) -> Option<Duration> {
        let now = now();
        if now > due + STALL {
            // The server is asked before a loss is reported.
            self.grace = now + self.settings.reply_timeout;
        }
        if self.held.is_empty() {
            (self.clock, self.next_check) = (None, NEVER);
            return None;
        }
        if now < self.next_check {
            return Some(self.next_check);
        }
        let (mut ended, mut old, mut next) = (Vec::new(), Vec::new(), NEVER);
        for (hold, held) in self.held.iter().filter(|(_, held)| !held.is_released) {
            let end = held.until();
            if end <= now && self.grace <= now {
                ended.push(hold.clone());
                continue;
            }
            next = next.min(end.max(now + PAUSE / 2));
            match held.session.filter(|id| !self.sessions.contains_key(id)) {
                Some(id) if held.is_old() => old.push((id, hold.key.clone())),
                Some(_) => next = next.min(held.third()),
                None => {}
            }
        }
        self.next_check = next;
        ended.iter().for_each(|hold| self.expire(hold));
        for (id, key) in old {
            self.keep(id, &key);
        }
        Some(self.next_check)
    }

    pub(crate) fn set_alarm(&mut self, due: Duration) {
        if due < self.next_check {
            self.next_check = due;
            self.alarm.notify_one();
        }
    }

    /// Notes that a session could not be kept. Reports whether these locks are closed.
    fn session_failed(&mut self, id: i64, error: &Error) -> bool {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.trouble = Some(error.clone());
        }
        for asked in self.asked.values().filter(|asked| asked.session == Some(id)) {
            if asked.is_vote() || !error.is_retryable() {
                asked.tell(Row::Failed(error.clone()));
            }
        }
        self.closed
    }

    fn read_answer(&mut self, sent: Duration, (id, _, left, rows): Answer, key: &[u8]) {
        let session = self.keep(id, key);
        (session.heard, session.trouble) = (session.heard.max(sent), None);
        for (number, word, key, owner, token, left) in rows {
            let session = self.keep(id, &key);
            if number > session.seen {
                session.seen = number;
                self.read_row(id, &word, HoldId { key, token }, &owner, self.believed(sent, left));
            }
        }
        if let Some(left) = left {
            self.extend_all(id, sent, self.believed(sent, left));
        }
    }

    /// Reads the rows of a session that may have no task.
    pub(crate) fn read_last(&mut self, sent: Duration, answer: Answer, key: &[u8]) {
        let id = answer.0;
        let is_kept = self.sessions.contains_key(&id);
        self.read_answer(sent, answer, key);
        if !is_kept {
            self.end_unused(id);
        }
    }

    /// Every hold lasts as long as the first lease to end, if the answer that told of it came before this SESSION was sent. The first
    /// one says little of longer leases, so those are renewed when they were below half as it was sent: an answer that comes late says
    /// little of all.
    fn extend_all(&mut self, id: i64, sent: Duration, end: Duration) {
        let mut low = Vec::new();
        for (hold, held) in self.held.iter_mut().filter(|(_, held)| held.session == Some(id)) {
            if held.known_since <= sent {
                held.end = held.end.max(end);
            }
            if held.end < sent + held.lease / 2 {
                low.push(hold.clone());
            }
        }
        low.iter().for_each(|hold| self.renew(hold));
    }

    fn read_row(&mut self, id: i64, word: &str, hold: HoldId, owner: &[u8], end: Duration) {
        let is_held = self.held.get(&hold).map(|held| !held.is_released);
        match (word, is_held) {
            ("granted", None | Some(false)) if self.leave_again(&hold, owner) => {}
            ("granted", Some(false)) => {}
            ("granted", _) if self.granted(owner, hold.clone(), id, end) => {}
            // A place that was left, a command that came late, or a lock that was left taken until now.
            ("granted", _) => self.errand(Kind::Release, hold, owner.to_vec(), Duration::ZERO),
            ("timeout" | "cancelled" | "replaced" | "wrongtype" | "again", _) => {
                if let Some(asked) = self.asked.get(owner) {
                    asked.tell(Row::Ended(word.to_owned()));
                }
            }
            ("taken", Some(true)) => self.taken(&hold, end),
            ("moved", Some(true)) => {
                self.leave_session(&hold);
                self.renew(&hold);
            }
            (_, Some(true)) => self.lose(&hold, word),
            _ => {}
        }
    }

    /// Brings all that was in this session to where the servers say: a key's server has another one.
    fn session_ended(&mut self, id: i64) {
        self.sessions.remove(&id);
        let holds: Vec<HoldId> =
            self.held.iter().filter(|(_, held)| held.session == Some(id)).map(|(hold, _)| hold.clone()).collect();
        for hold in holds {
            self.leave_session(&hold);
            self.renew(&hold);
        }
        for asked in self.asked.values().filter(|asked| asked.session == Some(id)) {
            asked.tell(Row::Ended("gone".into()));
        }
    }
}
