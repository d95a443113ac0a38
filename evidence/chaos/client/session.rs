//! A program with a session: it takes several locks at a time, keeps its sessions by one loop, believes as the server has told it, and
//! hangs, loses its connections or dies (docs/commands.md#dlocksession).

use std::collections::HashMap;

use dlock_harness::redis::{from_redis_value, Value};

use super::hold::{believed, Hold, Learned};
use super::ways::Way;
use super::{Client, LEASE_MS};
use crate::history::{Absence, End, Micros, Wait, SECOND};
use crate::link::Reply;
use crate::setting::Mistake;

/// For how long a SESSION command keeps a session: less than the third of a lease after which holds are renewed, or more.
const KEPT_MS: [u64; 2] = [1_000, 3_000];

/// The longest that SESSION commands block, over all servers of a program.
const BLOCK_MS: u64 = 1_000;

/// The pause after an answer without rows.
const PAUSE_MS: u64 = 100;

/// How long a hold or a place may lack a program: the last SESSION command is blocked, it keeps the session, and then the lease
/// ends.
const NOBODYS: Micros = (BLOCK_MS + KEPT_MS[1] + LEASE_MS) * 1_000;

/// The most locks that a program takes at a time.
const TASKS: usize = 3;

/// The stage of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It asks, and waits for the outcome until this time.
    Waits(Micros),
    /// It works with the lock until this time.
    Works(Micros),
    /// It leaves its wait.
    Leaves,
    /// It no longer waited when it left: a row may tell of its grant, which nobody wants.
    Left,
    /// It releases the token.
    Releases,
    Over,
}

/// What a program does with one lock under one owner.
struct Task {
    hold: Hold,
    stage: Stage,
    /// The words after the lease: SHARED or LIMIT.
    options: &'static [&'static str],
    is_fair: bool,
    /// The session's id of which the last answer about this task was.
    id: u64,
    /// How often it has asked.
    asks: u32,
    /// Whether it must ask, or renew, again.
    again: bool,
    /// Whether the session no longer renews the hold.
    taken: bool,
    /// When the program learned of the hold.
    told: Micros,
    /// When the request was sent whose outcome is not known.
    pending: Option<Micros>,
}

/// One program: a session of one name at each server that it uses.
struct Program {
    session: String,
    kept_ms: u64,
    tasks: Vec<Task>,
    /// The last row that it has read, by the session's id.
    seen: HashMap<u64, u64>,
    /// When it begins no further task.
    end: Micros,
}

/// A row of a session: `[n, word, key, owner, number, left]`.
type Row = (u64, String, String, String, u64, u64);

impl Client<'_> {
    /// Lives the life of a program.
    pub(super) fn session(&mut self) {
        let life = self.random.u64(5..30) * SECOND;
        let mut program = Program {
            session: self.fresh_owner(),
            kept_ms: KEPT_MS[self.random.usize(..KEPT_MS.len())],
            tasks: Vec::new(),
            seen: HashMap::new(),
            end: self.shared.now() + life,
        };
        let dies = self.random.u8(0..4) == 0;
        loop {
            let now = self.shared.now();
            let is_old = now >= program.end;
            if self.shared.has_ended() || (dies && is_old) {
                return self.die(program);
            }
            if is_old && program.tasks.is_empty() {
                return self.end(program);
            }
            if !is_old && program.tasks.len() < TASKS && self.random.u8(0..3) > 0 {
                let task = self.wish(&program);
                program.tasks.push(task);
            }
            let mut tasks = std::mem::take(&mut program.tasks);
            for task in &mut tasks {
                self.advance(task, &program);
            }
            tasks.retain(|task| task.stage != Stage::Over);
            program.tasks.append(&mut tasks);
            self.keep(&mut program);
            // Where programs err it shows in those that hang with a hold.
            let works =
                |task: &Task| matches!(task.stage, Stage::Works(done) if done > now + SECOND);
            let errs = self.shared.setting.mistake.is_some();
            let calm = match errs && program.tasks.iter().any(works) {
                true => 10,
                false => 150,
            };
            match self.random.u16(0..calm) {
                0 => self.hang(&program),
                1 => {
                    self.links.clear();
                    self.hang(&program);
                }
                2..=4 => self.links.clear(),
                _ => {}
            }
        }
    }

    fn wish(&mut self, program: &Program) -> Task {
        let way = match self.random.u8(0..4) {
            0 => Way::Share,
            _ => Way::Block,
        };
        let locks = way.locks();
        let (options, limit): (&[&str], u64) = match (way, self.random.u8(0..3)) {
            (Way::Share, 0) => (&["SHARED"], 0),
            (Way::Share, 1) => (&["LIMIT", "2"], 2),
            _ => (&[], 1),
        };
        let now = self.shared.now();
        let owner = format!("{}/{}", program.session, now);
        let lock = locks[self.random.usize(..locks.len())];
        let mut hold = Hold::new(lock, &owner, 0, now, 0);
        // The server renews it, so that nobody knows when it ends.
        (hold.limit, hold.alive_until) = (limit, Micros::MAX);
        Task {
            hold,
            stage: Stage::Waits(now + self.random.u64(500..self.block_ms()) * 1_000),
            options,
            is_fair: self.random.bool(),
            id: 0,
            asks: 0,
            again: true,
            taken: false,
            told: 0,
            pending: None,
        }
    }

    /// Does what a task's clock says.
    fn advance(&mut self, task: &mut Task, program: &Program) {
        let now = self.shared.now();
        match task.stage {
            Stage::Waits(end) if now >= end => {
                self.outcome(task);
                task.stage = Stage::Leaves;
            }
            Stage::Waits(end) if task.again => self.ask(task, end, program),
            Stage::Works(_) if task.hold.from > 0 && now >= task.hold.deadline => {
                self.stop(task, task.hold.deadline, End::RanOut);
            }
            Stage::Works(done) if now >= done => self.stop(task, now, End::Released),
            Stage::Left => task.stage = Stage::Over,
            Stage::Works(_) if task.again => self.renew_in(task, program),
            Stage::Works(_) => {
                let writes =
                    task.hold.limit == 1 && task.hold.from > 0 && self.random.u8(0..3) == 0;
                if writes && self.write(&task.hold) == Learned::Lost {
                    self.lose(task);
                }
            }
            _ => {}
        }
        match task.stage {
            Stage::Leaves => {
                let (lock, owner) = (task.hold.lock.clone(), task.hold.owner.clone());
                let (reply, _) = self.call(&lock, &["DLOCK.CANCEL", &lock, &owner], 0);
                match reply.integer() {
                    Some(0) => task.stage = Stage::Left,
                    Some(_) => task.stage = Stage::Over,
                    None => {}
                }
            }
            Stage::Releases => {
                let reply = self.release_once(&task.hold);
                if reply.integer().is_some() || reply.is_error("NOTHELD") {
                    task.stage = Stage::Over;
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, task: &mut Task, end: Micros, program: &Program) {
        // What the earlier request was granted comes with this answer, or by a row.
        self.outcome(task);
        let sent = self.shared.now();
        let (lease, left) = (LEASE_MS.to_string(), ((end - sent) / 1_000 + 1).to_string());
        let command = match task.is_fair {
            true => "DLOCK.FAIRACQUIRE",
            false => "DLOCK.ACQUIRE",
        };
        let (lock, owner) = (task.hold.lock.clone(), task.hold.owner.clone());
        let mut words = vec![command, &lock, &owner, &lease];
        words.extend(task.options);
        words.extend(["IN", &program.session, "BLOCK", &left]);
        (task.asks, task.again, task.hold.sent) = (task.asks + 1, false, sent);
        let (reply, at) = self.call(&lock, &words, 0);
        task.hold.server = at;
        match reply.integers().as_deref() {
            Some([0, _, id]) => {
                (task.id, task.pending) = (*id, Some(sent));
            }
            Some([token, id]) => {
                // Asked for again, only its row says how long it lasts.
                let until = sent + believed(LEASE_MS);
                self.granted(task, *token, *id, Some(until).filter(|_| task.asks == 1));
            }
            _ if ["DEADLOCK", "QUEUEFULL", "OOM", "NOPERM", "WRONGTYPE", "ERR"]
                .iter()
                .any(|code| reply.is_error(code)) =>
            {
                task.stage = Stage::Over;
            }
            _ => {
                task.again = true;
                self.cool_down(&reply);
            }
        }
    }

    /// Records the wait of a request that waits no longer.
    fn outcome(&mut self, task: &mut Task) {
        let Some(sent) = task.pending.take() else {
            return;
        };
        self.notes.waits.push(Wait {
            lock: task.hold.lock.clone(),
            owner: task.hold.owner.clone(),
            from: sent,
            until: self.shared.now(),
        });
    }

    /// Begins to work with a lock, if the program may believe in it at once.
    fn granted(&mut self, task: &mut Task, token: u64, id: u64, until: Option<Micros>) {
        let now = self.shared.now();
        let (work_ms, _) = self.plan();
        (task.hold.token, task.id, task.told) = (token, id, now);
        task.stage = Stage::Works(now + work_ms * 1_000);
        if self.waits() || !self.shared.believes_grants {
            (task.again, task.hold.renewed) = (true, true);
        } else if let Some(until) = until {
            self.extend(task, until);
        }
    }

    /// Believes in a hold until this time, unless it already believes in it for longer.
    fn extend(&mut self, task: &mut Task, until: Micros) {
        let (now, hold) = (self.shared.now(), &mut task.hold);
        if hold.from == 0 && until > now {
            hold.from = now;
        }
        // What is over does not begin again: its end has been reported.
        if hold.from > 0 && (hold.deadline == 0 || hold.deadline > now) {
            hold.deadline = hold.deadline.max(until);
        }
    }

    /// Brings a hold into the session.
    fn renew_in(&mut self, task: &mut Task, program: &Program) {
        let (lock, owner) = (task.hold.lock.clone(), task.hold.owner.clone());
        let (token, lease) = (task.hold.token.to_string(), LEASE_MS.to_string());
        let mut words = vec!["DLOCK.RENEW", &lock, &owner, &lease, "TOKEN", &token];
        words.extend(["IN", &program.session]);
        let sent = self.shared.now();
        let (reply, port) = self.call(&lock, &words, 0);
        match reply.integers().as_deref() {
            Some([left_ms, id]) => {
                (task.id, task.told, task.taken) = (*id, self.shared.now(), false);
                if !self.waits() || self.is_replicated(port) {
                    self.extend(task, self.counted(sent) + believed(*left_ms));
                    // Under WAIT only renewals are believed.
                    task.again = self.waits();
                }
            }
            _ if reply.is_error("NOTHELD") => self.lose(task),
            _ => self.cool_down(&reply),
        }
    }

    /// Returns from when the program counts what the answer says that has just come.
    fn counted(&self, sent: Micros) -> Micros {
        match self.shared.setting.mistake {
            Some(Mistake::CountsFromAnswer) => self.shared.now(),
            _ => sent,
        }
    }

    /// Stops believing, and gives the hold back.
    fn stop(&mut self, task: &mut Task, until: Micros, end: End) {
        let now = self.shared.now();
        match task.hold.from {
            0 => self.note_belief(&task.hold, now, now, End::Unconfirmed),
            from => self.note_belief(&task.hold, from, until, end),
        }
        task.stage = Stage::Releases;
    }

    fn lose(&mut self, task: &mut Task) {
        let now = self.shared.now();
        let (until, end) = match now < task.hold.deadline {
            true => (now, End::Lost),
            false => (task.hold.deadline, End::RanOut),
        };
        self.stop(task, until.max(task.hold.from), end);
        task.stage = Stage::Over;
    }

    /// Keeps the session at each server where something waits or is held, and does what their rows say.
    fn keep(&mut self, program: &mut Program) {
        let mut sessions: HashMap<u64, String> = HashMap::new();
        let kept =
            |task: &&Task| matches!(task.stage, Stage::Waits(_) | Stage::Works(_) | Stage::Left);
        for task in program.tasks.iter().filter(kept).filter(|task| task.id > 0) {
            sessions.insert(task.id, task.hold.lock.clone());
        }
        let now = self.shared.now();
        let ends = program.tasks.iter().map(|task| match task.stage {
            Stage::Waits(end) | Stage::Works(end) => end.saturating_sub(now) / 1_000,
            _ => 0,
        });
        let next = ends.min().unwrap_or(0).min(BLOCK_MS);
        let block_ms = next / (sessions.len() as u64).max(1);
        let (mut had_rows, count) = (false, sessions.len());
        for (id, key) in sessions {
            had_rows |= self.keep_one(program, &key, id, program.kept_ms, block_ms);
        }
        if !had_rows && (block_ms == 0 || count == 0) {
            self.pause(PAUSE_MS.min(next.max(5)));
        }
    }

    /// Sends SESSION for one id. Returns whether there were rows.
    fn keep_one(&mut self, program: &mut Program, key: &str, id: u64, ms: u64, block: u64) -> bool {
        let seen = program.seen.get(&id).copied().unwrap_or(0).to_string();
        let (ms, block_ms, named) = (ms.to_string(), block.to_string(), id.to_string());
        let mut words = vec![
            "DLOCK.SESSION",
            key,
            &program.session,
            &ms,
            "SEEN",
            &named,
            &seen,
        ];
        // The first of a loop does not block: something may be there already.
        if block > 0 && program.seen.contains_key(&id) {
            words.extend(["BLOCK", &block_ms]);
        }
        let sent = self.shared.now();
        let (reply, at) = self.call(key, &words, block);
        let Some((now_id, last, left_ms, rows)) = news(&reply) else {
            self.cool_down(&reply);
            return false;
        };
        let counted = self.counted(sent);
        if now_id != id {
            for task in program.tasks.iter_mut().filter(|task| task.id == id) {
                task.again = true;
            }
        }
        program.seen.insert(now_id, last);
        let mut tasks = std::mem::take(&mut program.tasks);
        if let Some(left_ms) = left_ms {
            for task in &mut tasks {
                let works = matches!(task.stage, Stage::Works(_)) && task.told <= sent;
                if task.id == now_id && works && !task.taken && !self.waits() && task.hold.from > 0
                {
                    self.extend(task, counted + believed(left_ms));
                }
            }
        }
        let had_rows = !rows.is_empty();
        for row in rows {
            if let Some(strange) = self.read_row(&mut tasks, now_id, counted, at, &row) {
                tasks.push(strange);
            }
        }
        tasks.append(&mut program.tasks);
        program.tasks = tasks;
        had_rows
    }

    /// Does what a row says. Returns a hold that the program does not want: it gives that back.
    fn read_row(
        &mut self,
        tasks: &mut [Task],
        id: u64,
        counted: Micros,
        server: u16,
        (_, word, key, owner, token, left_ms): &Row,
    ) -> Option<Task> {
        let until = counted + believed(*left_ms);
        let known = |task: &&mut Task| task.hold.owner == *owner && task.hold.lock == *key;
        let task = tasks.iter_mut().find(known);
        let is_told = |task: &Task| task.hold.token == *token;
        match (word.as_str(), task) {
            ("granted", Some(task)) if matches!(task.stage, Stage::Waits(_)) => {
                self.outcome(task);
                task.hold.server = server;
                self.granted(task, *token, id, Some(until));
            }
            ("granted", Some(task)) if is_told(task) => {
                (task.id, task.taken) = (id, false);
                if matches!(task.stage, Stage::Works(_)) && !self.waits() && !task.again {
                    self.extend(task, until);
                }
            }
            ("granted", _) => {
                let mut hold = Hold::new(key, owner, *token, counted, server);
                hold.deadline = until;
                return Some(Task {
                    hold,
                    stage: Stage::Releases,
                    options: &[],
                    is_fair: false,
                    id,
                    asks: 0,
                    again: false,
                    taken: false,
                    told: 0,
                    pending: None,
                });
            }
            ("taken", Some(task)) if is_told(task) => {
                (task.taken, task.hold.deadline) = (true, task.hold.deadline.min(until));
            }
            ("moved", Some(task)) if is_told(task) => task.again = true,
            ("released" | "expired" | "forced" | "removed" | "renamed", Some(task))
                if is_told(task) && matches!(task.stage, Stage::Works(_)) =>
            {
                self.lose(task);
            }
            ("replaced" | "wrongtype" | "timeout" | "cancelled" | "again", Some(task))
                if matches!(task.stage, Stage::Waits(_)) =>
            {
                self.outcome(task);
                task.again = true;
                if matches!(word.as_str(), "replaced" | "wrongtype") {
                    task.stage = Stage::Over;
                }
            }
            _ => {}
        }
        None
    }

    /// Ends a program that has nothing left: what was granted to a request that it has left comes with the last rows.
    fn end(&mut self, mut program: Program) {
        let ids: Vec<u64> = program.seen.keys().copied().collect();
        for key in Way::Block.locks().iter().chain(Way::Share.locks()) {
            for id in &ids {
                self.keep_one(&mut program, key, *id, 1, 0);
            }
        }
        for task in &mut program.tasks {
            self.release_once(&task.hold);
        }
    }

    /// Stalls for so long that holds may end, with its connections open.
    fn hang(&mut self, program: &Program) {
        self.note_absence(program);
        let ms = self.random.u64(500..2 * LEASE_MS);
        let end = self.shared.now() + ms * 1_000;
        while self.shared.now() < end && !self.shared.has_ended() {
            self.pause(50);
        }
    }

    /// Ends without a word.
    fn die(&mut self, mut program: Program) {
        self.note_absence(&program);
        self.links.clear();
        let now = self.shared.now();
        for task in &mut program.tasks {
            match task.stage {
                Stage::Works(_) if task.hold.from > 0 => {
                    let until = now.min(task.hold.deadline);
                    self.stop(task, until, End::Released);
                }
                Stage::Waits(_) => self.outcome(task),
                _ => {}
            }
        }
    }

    /// Records that for a while nobody may have what the program holds and waits for.
    fn note_absence(&mut self, program: &Program) {
        let from = self.shared.now();
        let of_task = |task: &Task| Absence {
            lock: task.hold.lock.clone(),
            from,
            until: from + NOBODYS,
        };
        self.notes
            .absences
            .extend(program.tasks.iter().map(of_task));
    }
}

/// Reads the answer to a SESSION command: the id, the last row's number, what is left of the first lease, and the rows.
fn news(reply: &Reply) -> Option<(u64, u64, Option<u64>, Vec<Row>)> {
    let Reply::Value(value @ Value::Array(_)) = reply else {
        return None;
    };
    from_redis_value(value).ok()
}
