//! Takes a lock and keeps it: until when the hold may be believed, and what ends that.
//!
//! The hold is tied to the connection by `EPHEMERAL` (it ends with this process, at once) and by `AUTO` (the server renews it). A
//! heartbeat (`DLOCK.RENEW`), every third of the lease and at least twice a second, moves the believed end. When the connection
//! ends, the hold is looked for on a new one at once, under its token, until a server refuses it or its lease is over.

use crate::out::tell;
use crate::server::{field, items, now_ms, number, text, texts, Failure, Link, Place, BOUND};
use crate::silent::Silent;
use redis::{cmd, Cmd, Value};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How much of a lease stays unused, because clocks differ.
const ALLOWANCE_MS: u64 = 100;

/// The longest time between two heartbeats: a server with the shortest `timeout`, a second, does not take the connection for idle.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// How long leaving the queue may take, and what is between two tries.
const LEAVE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(20);

/// A wait is asked for again after so long, and keeps its place for so long in between: a reply that does not come is noticed.
const SLICE: Duration = Duration::from_secs(5);
/// The first of them is shorter: then it is looked why nothing is granted.
const FIRST_SLICE: Duration = Duration::from_secs(1);
/// How long after the end of a wait its last replies may arrive.
const GRACE: Duration = Duration::from_millis(300);
const CLAIM_MS: u64 = 2_000;

/// Between two tries to reach a server.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a wait that cannot ask says so.
const WARNING: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub lock: String,
    pub owner: String,
    pub lease_ms: u64,
    pub shared: bool,
    pub limit: Option<u64>,
    pub permits: Option<u64>,
    /// Whether it is to end with this process.
    pub ephemeral: bool,
}

/// A hold of the lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub token: u64,
    /// Until when it may be believed, by [`now_ms`].
    pub until_ms: u64,
}

/// What has come of a request.
pub(crate) enum Taken {
    /// The lock is held, by this connection. On the others a request is unanswered.
    Had(Box<Link>, Silent, Hold),
    /// Another owner holds it: these owners, if this user may see them.
    Refused(Option<String>),
}

/// What the keeper reports about a hold.
#[derive(Debug)]
pub(crate) enum News {
    /// It may be believed until then.
    Until(u64),
    /// It is lost, for this reason.
    Lost(String),
}

impl Wish {
    fn command(&self, name: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(&self.lock).arg(&self.owner);
        command
    }

    /// Returns true if a holder with that many permits, at this limit (0: no bound), leaves room for this one.
    pub(crate) fn fits_beside(&self, limit: u64, permits: u64) -> bool {
        let own = self.limit.unwrap_or(if self.shared { 0 } else { 1 });
        let strictest = [limit, own].into_iter().filter(|limit| *limit > 0).min();
        strictest.is_none_or(|most| permits + self.permits.unwrap_or(1) <= most)
    }

    fn tied(&self, command: &mut Cmd) {
        if self.ephemeral {
            command.arg("EPHEMERAL");
        }
        command.arg("AUTO").arg(self.lease_ms);
    }

    /// A request that waits for so long at most; none: it does not wait, and leaves no place.
    fn request(&self, wait: Option<Duration>) -> Cmd {
        let mut command = self.command(if wait.is_some() {
            "DLOCK.FAIRACQUIRE"
        } else {
            "DLOCK.ACQUIRE"
        });
        command.arg(self.lease_ms).arg("HOLDS").arg(1);
        if let Some(limit) = self.limit {
            command.arg("LIMIT").arg(limit);
            // Older servers do not know the word.
            if let Some(permits) = self.permits.filter(|permits| *permits > 1) {
                command.arg("PERMITS").arg(permits);
            }
        } else if self.shared {
            command.arg("SHARED");
        }
        self.tied(&mut command);
        if let Some(wait) = wait {
            let ms = (wait.as_millis() as u64).max(1);
            command.arg("BLOCK").arg(ms).arg("CLAIM").arg(CLAIM_MS);
        }
        command
    }

    /// Takes the lock. `wait`: how long that may take, whatever the server does; none: for ever; zero: it is tried once. What it
    /// waits for is said now and then, unless `quiet`.
    ///
    /// # Errors
    /// What waiting cannot repair. At the end of the wait, or without one, also what may pass.
    pub(crate) fn take(
        &self,
        place: &Place,
        queueing: &Queueing,
        wait: Option<Duration>,
        quiet: bool,
    ) -> Result<Taken, Failure> {
        let end = wait.map(|wait| now_ms() + wait.as_millis() as u64);
        let left = || end.map(|end| Duration::from_millis(end.saturating_sub(now_ms())));
        let is_try = wait == Some(Duration::ZERO);
        // Everything that is asked is answered by then, or not at all.
        let bounded = match end {
            Some(end) if !is_try => place.until(end + GRACE.as_millis() as u64),
            _ => place.clone(),
        };
        let mut link: Option<Link> = None;
        let mut silent = Silent::default();
        let mut failed: Option<Failure> = None;
        let mut waiting = Waiting {
            said_ms: None,
            quiet,
        };
        let mut longest = FIRST_SLICE;
        loop {
            queueing.pass();
            let slice = match left() {
                _ if is_try => None,
                Some(left) if left.is_zero() => {
                    let Some(mut link) = link else {
                        // Busy is not broken.
                        return Err(failed.unwrap_or_else(|| Failure::new("no server was asked")));
                    };
                    link.until_ms = Some(now_ms() + GRACE.as_millis() as u64);
                    let _ = link.ask(&self.command("DLOCK.CANCEL"));
                    return Ok(Taken::Refused(self.holder(&mut link)));
                }
                left => Some(left.unwrap_or(longest).min(longest)),
            };
            let why = match self.try_once(&bounded, queueing, &mut link, &mut silent, slice) {
                Ok(Some(hold)) => {
                    if let Some(mut link) = link {
                        link.until_ms = None;
                        silent.unbound();
                        return Ok(Taken::Had(Box::new(link), silent, hold));
                    }
                    Failure::passing("the connection was not kept")
                }
                Ok(None) if is_try => {
                    let by = link.as_mut().and_then(|link| self.holder(link));
                    return Ok(Taken::Refused(by));
                }
                Ok(None) => {
                    longest = SLICE;
                    silent.close_answered();
                    waiting.explain(&self.lock, link.as_mut());
                    continue;
                }
                Err(failure) if failure.is_final || is_try => {
                    // It may be had: nothing but its lease would end it.
                    if is_try && !self.ephemeral && failure.code.is_empty() {
                        queueing.leave_asked();
                    }
                    return Err(failure);
                }
                Err(failure) => failure,
            };
            if let Some(open) = link.take().filter(|open| open.is_silent) {
                silent.keep(open);
            }
            waiting.say(&self.lock, &why.to_string());
            failed = Some(why);
            thread::sleep(PAUSE.min(left().unwrap_or(PAUSE)));
        }
    }

    fn try_once(
        &self,
        place: &Place,
        queueing: &Queueing,
        link: &mut Option<Link>,
        silent: &mut Silent,
        slice: Option<Duration>,
    ) -> Result<Option<Hold>, Failure> {
        let open = match link {
            Some(open) => open,
            None => link.insert(silent.next(place)?.0),
        };
        queueing.asked.store(true, SeqCst);
        let sent = now_ms();
        let bound = BOUND + slice.unwrap_or_default();
        let answer = open.ask_routed(place, &self.request(slice), bound)?;
        let Some(token) = items(&answer).first().and_then(number) else {
            return Ok(None);
        };
        if slice.is_none() {
            return Ok(Some(self.believed(token, sent, self.lease_ms)));
        }
        // The reply does not say when a wait was granted: the lease that is left counts.
        // The lock is held now: its confirmation may take longer than the wait.
        open.until_ms = None;
        let sent = now_ms();
        match open.ask(&self.renewal(token)) {
            Ok(left) => Ok(Some(self.believed(token, sent, number(&left).unwrap_or(0)))),
            // The hold has already ended: this process waits for the lock again.
            Err(failure) if failure.code == "NOTHELD" => {
                *link = None;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Ties the hold to the connection that sends it.
    fn renewal(&self, token: u64) -> Cmd {
        let mut renew = self.command("DLOCK.RENEW");
        renew.arg(self.lease_ms).arg("TOKEN").arg(token);
        self.tied(&mut renew);
        renew
    }

    fn believed(&self, token: u64, sent_ms: u64, left_ms: u64) -> Hold {
        Hold {
            token,
            until_ms: sent_ms + left_ms.saturating_sub(ALLOWANCE_MS),
        }
    }

    /// Keeps the hold, and reports its news, until it is lost. To be run in a thread of its own, for as long as the process lives.
    /// `link` and `silent`: see [`Taken::Had`]. `left`: whether the hold is left to its lease, and no longer to be tied.
    pub(crate) fn keep(
        &self,
        place: &Place,
        link: Link,
        mut silent: Silent,
        (token, until_ms): (u64, u64),
        left: &Mutex<bool>,
        tell: impl Fn(News),
    ) {
        let pause = Duration::from_millis((self.lease_ms / 3).max(50)).min(SIGN_OF_LIFE);
        let (mut link, mut until) = (Some(link), until_ms);
        loop {
            let was_linked = link.is_some();
            let watched = link.as_mut().map_or(Ok(()), |open| open.watch(pause));
            let heard = {
                let left = left.lock().unwrap_or_else(PoisonError::into_inner);
                if *left {
                    drop(left);
                    // The end of the connection would end the hold before it is released, or left to its lease.
                    loop {
                        thread::park();
                    }
                }
                match &mut link {
                    Some(open) => watched.and_then(|()| self.sign_of_life(open, token)),
                    None => self.find_again(place, token, &mut link, &mut silent),
                }
            };
            let heard = match heard {
                Ok(heard) => heard,
                Err(failure) if failure.code == "NOTHELD" => News::Lost(failure.to_string()),
                // The server that has ended all connections has ended an ephemeral hold with them, and does not let anybody look.
                Err(failure) if self.ephemeral && failure.is_refusal && silent.is_empty() => {
                    News::Lost(failure.to_string())
                }
                Err(failure) if now_ms() >= until => News::Lost(failure.to_string()),
                // The server answers, and cannot renew it now. It may hold it for this connection.
                Err(failure) if link.is_some() && failure.is_of_the_moment() => continue,
                Err(_) => {
                    if let Some(open) = link.take() {
                        silent.keep(open);
                    }
                    // It is looked for at once, then now and then.
                    if !was_linked {
                        thread::sleep(PAUSE);
                    }
                    continue;
                }
            };
            if let News::Until(end) = heard {
                until = end;
            }
            let is_over = matches!(heard, News::Lost(_));
            tell(heard);
            if is_over {
                return;
            }
        }
    }

    fn sign_of_life(&self, link: &mut Link, token: u64) -> Result<News, Failure> {
        let sent = now_ms();
        let left = number(&link.ask(&self.renewal(token))?).unwrap_or(0);
        Ok(News::Until(self.believed(token, sent, left).until_ms))
    }

    /// Ties the hold to another connection. `link` becomes the one that the hold is tied to, or may be.
    fn find_again(
        &self,
        place: &Place,
        token: u64,
        link: &mut Option<Link>,
        silent: &mut Silent,
    ) -> Result<News, Failure> {
        let (mut found, is_new) = silent.next(place)?;
        let sent = now_ms();
        let answer = found.ask_routed(place, &self.renewal(token), BOUND);
        if answer.is_ok() {
            silent.close_answered();
        }
        // On a new one a refused renewal has tied nothing. One with NOACK may have been done all the same.
        let may_tie = |failure: &Failure| found.is_silent || failure.code == "NOACK";
        if !is_new || answer.as_ref().err().is_none_or(may_tie) {
            *link = Some(found);
        }
        let left = number(&answer?).unwrap_or(0);
        Ok(News::Until(self.believed(token, sent, left).until_ms))
    }

    /// Gives the hold back, on a connection of its own: that of the keeper may be silent.
    pub(crate) fn give_back(&self, place: &Place, token: u64) -> Result<(), Failure> {
        let mut release = self.command("DLOCK.RELEASE");
        release.arg("TOKEN").arg(token);
        let mut link = place.connect()?;
        match link.ask_routed(place, &release, BOUND) {
            // The first of the two has given it back, or it has ended with the keeper's connection.
            Err(failure) if failure.code == "NOTHELD" && (self.ephemeral || link.has_repeated) => {
                Ok(())
            }
            answer => answer.map(drop),
        }
    }

    /// Leaves the hold to its lease, which ends in so long: no end of a connection ends it, and nobody renews it.
    ///
    /// # Errors
    /// No server can be reached, or it refuses.
    pub(crate) fn leave_for(
        &self,
        place: &Place,
        token: u64,
        lease: Duration,
    ) -> Result<(), Failure> {
        let mut renew = self.command("DLOCK.RENEW");
        renew.arg((lease.as_millis() as u64).max(1_000));
        // A hold that is tied by AUTO alone, for a millisecond, is no longer ephemeral.
        renew.arg("TOKEN").arg(token).arg("AUTO").arg(1);
        place.connect()?.ask_routed(place, &renew, BOUND)?;
        Ok(())
    }

    /// Returns who holds it now, in words.
    fn holder(&self, link: &mut Link) -> Option<String> {
        let info = link.ask(cmd("DLOCK.INFO").arg(&self.lock)).ok()?;
        let holders = field(&info, "holders")?;
        let owners: Vec<String> = match items(holders).first()? {
            Value::Array(_) | Value::Map(_) => items(holders)
                .iter()
                .filter_map(|holder| field(holder, "owner").map(text))
                .collect(),
            _ => texts(holders).get(1).cloned().into_iter().collect(),
        };
        (!owners.is_empty()).then(|| owners.join(", "))
    }
}

/// A request that may have a place in a queue. A signal that ends this process while it waits leaves no place behind that later
/// waiters would wait for.
pub(crate) struct Queueing {
    wish: Wish,
    place: Place,
    /// The server may know of the request.
    asked: AtomicBool,
    /// The process sends no request until it may do so again.
    rests: AtomicBool,
    /// The request continues. While a thread has this mutex locked, the process sends no further request.
    goes_on: Mutex<bool>,
}

impl Queueing {
    pub(crate) fn new(wish: &Wish, place: &Place) -> Queueing {
        Queueing {
            wish: wish.clone(),
            place: place.clone(),
            asked: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            goes_on: Mutex::new(true),
        }
    }

    /// To be called before each request: does not return if this process ends.
    fn pass(&self) {
        self.rests.store(true, SeqCst);
        drop(self.goes_on.lock());
        self.rests.store(false, SeqCst);
    }

    /// The request has been granted, or is given up. Does not return if this process ends.
    pub(crate) fn done(&self) {
        self.rests.store(true, SeqCst);
        *self.goes_on.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Leaves the queue, and calls `left` before another request can be sent; or calls `other` if there is no such request.
    pub(crate) fn leave_or(&self, other: impl FnOnce(), left: impl FnOnce()) {
        let goes_on = self.goes_on.lock().unwrap_or_else(PoisonError::into_inner);
        if !*goes_on {
            drop(goes_on);
            return other();
        }
        if self.asked.load(SeqCst) {
            self.leave();
        }
        left();
    }

    /// Takes back a try whose answer was lost.
    fn leave_asked(&self) {
        if self.asked.load(SeqCst) {
            self.rests.store(true, SeqCst);
            self.leave();
        }
    }

    /// Takes back what was asked, until no answer is awaited. The server runs no other command of a connection that waits.
    fn leave(&self) {
        let end = now_ms() + LEAVE.as_millis() as u64;
        let place = self.place.until(end);
        let mut link: Option<Link> = None;
        loop {
            // What was asked before was answered before that.
            let is_last = self.rests.load(SeqCst) || now_ms() >= end;
            if link.is_none() {
                link = place.connect().ok();
            }
            // The owner is of this process alone: whatever is granted to it by now is taken back.
            let undone = link.as_mut().map(|link| {
                link.ask_routed(&place, &self.wish.command("DLOCK.CANCEL"), BOUND)?;
                link.ask_routed(&place, &self.wish.command("DLOCK.RELEASE"), BOUND)
            });
            match undone {
                Some(Err(failure)) if failure.code == "NOTHELD" => {}
                Some(Ok(_)) => {}
                _ => link = None,
            }
            if is_last {
                return;
            }
            thread::sleep(AGAIN);
        }
    }
}

/// What is said of a wait, now and then.
struct Waiting {
    said_ms: Option<u64>,
    quiet: bool,
}

impl Waiting {
    fn is_due(&self) -> bool {
        let due = |at| now_ms() - at >= WARNING.as_millis() as u64;
        !self.quiet && self.said_ms.is_none_or(due)
    }

    fn say(&mut self, lock: &str, why: &str) {
        if self.is_due() {
            tell!("still waiting for {lock}: {why}");
            self.said_ms = Some(now_ms());
        }
    }

    /// Says why the server grants nothing to anybody, if that is the case and may be seen. Says nothing if another owner
    /// simply holds the lock.
    fn explain(&mut self, lock: &str, link: Option<&mut Link>) {
        let fields = match link {
            Some(link) if self.is_due() => link.info("dlock").unwrap_or_default(),
            _ => return,
        };
        let of = |name: &str| {
            let field = fields
                .iter()
                .find(|(field, _)| field.strip_prefix("dlock_") == Some(name));
            field
                .and_then(|(_, value)| value.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let seconds = |name| of(name) as f64 / 1e3;
        if of("quarantined") > 0 {
            let left = seconds("quarantine_left_ms");
            self.say(lock, &format!("the server grants nothing for {left:.1}s more, after its start or promotion (QUARANTINE)"));
        } else if of("drained") > 0 {
            self.say(
                lock,
                "the server is drained, and grants nothing (dlock.grants no)",
            );
        } else if of("closed_too_few") > 0 {
            self.say(
                lock,
                "too few replicas confirm, and the server grants nothing (NOACK)",
            );
        } else if of("closed") > 0 {
            let left = seconds("closed_left_ms");
            self.say(lock, &format!("the server grants nothing for {left:.1}s more, since it has taken over another's data (NOACK)"));
        }
    }
}
