//! A lock that is had and kept: until when it may be believed, and what ends that.
//!
//! The hold is tied to the connection by `SESSION` (it ends with this process, at once) and by `AUTO` (the server renews it). A sign
//! of life every third of the lease (`DLOCK.KEEP`) moves the believed end. When the connection ends, the hold is looked for on a new
//! one under its token, until its lease is over.

use crate::server::{field, items, number, text, texts, Failure, Link, Place, BOUND};
use redis::{cmd, Cmd, Value};
use std::thread;
use std::time::Duration;

/// So much of a lease is not used, for clocks.
const ALLOWANCE_MS: u64 = 100;

/// A wait is asked for again after so long, and keeps its place for so long in between: a reply that does not come is noticed.
const SLICE: Duration = Duration::from_secs(5);
const CLAIM_MS: u64 = 2_000;

/// Between two tries to reach a server.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a wait that cannot ask says so.
const WARNING: Duration = Duration::from_secs(10);

/// Returns the milliseconds that this machine has been up: a clock that does not stand still while it is suspended, where there is
/// one.
pub(crate) fn now_ms() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;
    let now = nix::time::clock_gettime(CLOCK).map(Duration::from);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub lock: String,
    pub owner: String,
    pub lease_ms: u64,
    pub shared: bool,
    pub limit: Option<u64>,
    /// Whether it is to end with this process.
    pub session: bool,
}

/// It is had.
#[derive(Debug)]
pub(crate) struct Hold {
    pub token: u64,
    /// Until when it may be believed, by [`now_ms`].
    pub until_ms: u64,
}

/// What is heard of a hold.
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

    fn tied(&self, command: &mut Cmd) {
        if self.session {
            command.arg("SESSION");
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

    /// Takes the lock. `wait`: how long that may take; none: for ever; zero: it is not waited for. None if it was not had
    /// in time.
    ///
    /// # Errors
    /// What no waiting mends. At the end of the wait, or without any, also what may pass.
    pub(crate) fn take(
        &self,
        place: &Place,
        wait: Option<Duration>,
    ) -> Result<Option<(Link, Hold)>, Failure> {
        let began = now_ms();
        let left = || wait.map(|wait| wait.saturating_sub(Duration::from_millis(now_ms() - began)));
        let (mut link, mut warned, mut failed): (Option<Link>, Option<u64>, Option<Failure>) =
            (None, None, None);
        loop {
            let slice = match left() {
                _ if wait == Some(Duration::ZERO) => None,
                Some(left) if left.is_zero() => {
                    let Some(mut link) = link else {
                        // Busy is not broken.
                        return Err(failed.unwrap_or_else(|| Failure::new("no server was asked")));
                    };
                    let _ = link.ask(&self.command("DLOCK.CANCEL"));
                    return Ok(None);
                }
                left => Some(left.unwrap_or(SLICE).min(SLICE)),
            };
            let why = match self.try_once(place, &mut link, slice) {
                Ok(Some(hold)) => return Ok(link.map(|link| (link, hold))),
                Ok(None) if slice.is_none() => return Ok(None),
                Ok(None) => continue,
                Err(failure) if failure.is_final || slice.is_none() => return Err(failure),
                Err(failure) => failure,
            };
            link = None;
            let now = now_ms();
            if warned.is_none_or(|at| now - at >= WARNING.as_millis() as u64) {
                eprintln!("dlock: still waiting for {}: {why}", self.lock);
                warned = Some(now);
            }
            failed = Some(why);
            thread::sleep(PAUSE.min(left().unwrap_or(PAUSE)));
        }
    }

    fn try_once(
        &self,
        place: &Place,
        link: &mut Option<Link>,
        slice: Option<Duration>,
    ) -> Result<Option<Hold>, Failure> {
        let open = match link {
            Some(open) => open,
            None => link.insert(place.connect()?),
        };
        let sent = now_ms();
        let bound = BOUND + slice.unwrap_or_default();
        let answer = open.ask_routed(place, &self.request(slice), bound)?;
        let Some(token) = items(&answer).first().and_then(number) else {
            return Ok(None);
        };
        if slice.is_none() {
            return Ok(Some(self.believed(token, sent, self.lease_ms)));
        }
        // When a wait was granted the reply does not say: the lease that is left counts.
        let mut hold = self.command("DLOCK.RENEW");
        hold.arg(self.lease_ms).arg("TOKEN").arg(token);
        self.tied(&mut hold);
        let sent = now_ms();
        match open.ask(&hold) {
            Ok(left) => Ok(Some(self.believed(token, sent, number(&left).unwrap_or(0)))),
            // Somebody has ended it in that moment: it is waited for again.
            Err(failure) if failure.code == "NOTHELD" => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn believed(&self, token: u64, sent_ms: u64, left_ms: u64) -> Hold {
        Hold {
            token,
            until_ms: sent_ms + left_ms.saturating_sub(ALLOWANCE_MS),
        }
    }

    /// Keeps the hold, and tells what is heard of it, until nobody listens any more. To be run in a thread of its own.
    pub(crate) fn keep(
        &self,
        place: &Place,
        link: Link,
        token: u64,
        until_ms: u64,
        tell: impl Fn(News) -> bool,
    ) {
        let pause = Duration::from_millis((self.lease_ms / 3).clamp(50, 5_000));
        let (mut link, mut until) = (Some(link), until_ms);
        loop {
            thread::sleep(if link.is_some() { pause } else { PAUSE });
            let heard = match &mut link {
                Some(open) => self.sign_of_life(open, token),
                None => self.find_again(place, token).map(|(found, until)| {
                    link = Some(found);
                    News::Until(until)
                }),
            };
            let heard = match heard {
                Ok(heard) => heard,
                Err(failure) if failure.code == "NOTHELD" => News::Lost(failure.to_string()),
                Err(failure) => {
                    link = None;
                    if now_ms() < until {
                        continue;
                    }
                    News::Lost(failure.to_string())
                }
            };
            if let News::Until(end) = heard {
                until = end;
            }
            let is_over = matches!(heard, News::Lost(_));
            if !tell(heard) || is_over {
                return;
            }
        }
    }

    fn sign_of_life(&self, link: &mut Link, token: u64) -> Result<News, Failure> {
        let sent = now_ms();
        let answer = link.ask(cmd("DLOCK.KEEP").arg(self.lease_ms))?;
        let [ties, left, lost] = items(&answer) else {
            return Err(Failure::new("DLOCK.KEEP has an answer that is not known"));
        };
        for loss in items(lost) {
            let [_, lost_token, why] = items(loss) else {
                continue;
            };
            if number(lost_token) == Some(token) {
                return match text(why).as_str() {
                    // It goes on without its tie: it is looked for anew.
                    why @ ("moved" | "renamed" | "taken" | "demoted") => Err(Failure::passing(why)),
                    why => Ok(News::Lost(why.to_owned())),
                };
            }
        }
        match number(left) {
            Some(left) if number(ties).unwrap_or(0) > 0 => {
                Ok(News::Until(self.believed(token, sent, left).until_ms))
            }
            _ => Err(Failure::passing("the server renews it no more")),
        }
    }

    /// Ties the hold to a new connection.
    fn find_again(&self, place: &Place, token: u64) -> Result<(Link, u64), Failure> {
        let mut link = place.connect()?;
        let mut renew = self.command("DLOCK.RENEW");
        renew.arg(self.lease_ms).arg("TOKEN").arg(token);
        self.tied(&mut renew);
        let sent = now_ms();
        let left = number(&link.ask_routed(place, &renew, BOUND)?).unwrap_or(0);
        Ok((link, self.believed(token, sent, left).until_ms))
    }

    /// Gives the hold back, on a connection of its own: that of the keeper may be silent.
    pub(crate) fn give_back(&self, place: &Place, token: u64) -> Result<(), Failure> {
        let mut release = self.command("DLOCK.RELEASE");
        release.arg("TOKEN").arg(token);
        let mut link = place.connect()?;
        match link.ask_routed(place, &release, BOUND) {
            // The first of the two has given it back.
            Err(failure) if failure.code == "NOTHELD" && link.has_repeated => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Leaves the hold to its lease, which ends in so long: no session ends it, and nobody renews it.
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
        // What is tied by AUTO alone, for a millisecond, is tied by no SESSION any more.
        renew.arg("TOKEN").arg(token).arg("AUTO").arg(1);
        place.connect()?.ask_routed(place, &renew, BOUND)?;
        Ok(())
    }

    /// Who has it now, in words.
    pub(crate) fn holder(&self, place: &Place) -> Option<String> {
        let info = place
            .connect()
            .ok()?
            .ask_routed(place, cmd("DLOCK.INFO").arg(&self.lock), BOUND)
            .ok()?;
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
