//! Whose confirmation counts (`dlock.replicas`), and until when this server confirms nothing.
//!
//! The server tells a module when a replica comes or goes, and in INFO what each has acknowledged. How one has joined is seen
//! so: one that needs everything (a *full* resynchronisation) is counted by the server when it asks for it, and is there for a
//! while before it is `online`; one that needs the rest of the stream only (a *partial* one) is online at once. What cannot be told
//! apart counts as full.
//!
//! | what | from when on it counts |
//! |---|---|
//! | a replica that has joined by a partial resynchronisation | at once: it knows nothing that this server does not know |
//! | one that has joined by a full one | `dlock.quarantine-ms` later: what it confirmed elsewhere, and forgot, has ended by then |
//! | any that joins within that time after a full joining was told in the stream, here or by an earlier primary | the same |
//! | any, where there is to be one replica only | at once: nobody else can have confirmed anything |
//!
//! A replica serves none itself: it refuses whoever asks for a resynchronisation ([`refuse_requests`]).
//!
//! A server itself confirms nothing for that time after its start, and after it began to take over another's data. The reasons, and
//! what gives two owners where one of these is left out, are in `docs/protocol.md`.

use crate::ffi::callbacks::sync;
use crate::ffi::cell::MainThread;
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::node::config;
use crate::node::gate;
use crate::node::time::{clock, timer};
use dlock_commands::Replicas;
use dlock_engine::{Millis, SteadyMs};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A replica, as far as it is connected to this server.
#[derive(Debug, Clone)]
struct Link {
    // Its address, as the server shows it.
    at: String,
    online: bool,
    joined: Joined,
    counts_from: SteadyMs,
    // What it has acknowledged.
    acknowledged: u64,
}

/// How a replica has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    // It is online, and the server has not said yet by what.
    Unknown,
    Partial,
    Full,
}

/// All that is known of replicas.
#[derive(Debug, Default)]
struct Links {
    links: Vec<Link>,
    // How often the server was asked for a full resynchronisation, and granted a partial one, when it was last looked at.
    seen: Option<(u64, u64)>,
    // Until when whoever joins counts as one that has joined by a full resynchronisation.
    heeded_until: SteadyMs,
    // What is to be told in the stream: that a full joining has begun, or that this primary was started.
    to_tell: bool,
    // Since when this server has its data, and until when it confirms nothing because of that.
    since: SteadyMs,
    confirm_blackout_until: SteadyMs,
    // How much of the stream there is.
    offset: u64,
    // From when on a replica counts at once if it is the only one: others may have confirmed something before.
    single_replica_counts_from: SteadyMs,
    // Up to where replicas were last asked to acknowledge it.
    asked: u64,
    // How many are connected, beside how many are configured.
    count: Count,
    // When the next line of the log may say that this server serves no replicas.
    refusals: Backoff,
    // `dlock.replicas`, when it was last read.
    setting: usize,
}

/// How many replicas are connected to a primary, beside `dlock.replicas`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Count {
    #[default]
    AsConfigured,
    // More; the log has said so.
    More,
    // Fewer, since then.
    Fewer(SteadyMs),
    // Fewer, and the log has said so.
    FewerReported,
}

/// Fewer replicas than are configured are reported when it has been so for this long: after a failover they come one by one.
const FEWER_MS: Millis = 5_000;

/// When something that happens again and again is reported: at once, a second later, and after twice as long each time, up to a
/// minute. After a minute of silence it begins anew.
#[derive(Debug, Default)]
struct Backoff {
    next: SteadyMs,
    pause: Millis,
}

impl Backoff {
    const SHORTEST: Millis = 1_000;
    const LONGEST: Millis = 60_000;

    const NEW: Backoff = Backoff {
        next: SteadyMs(0),
        pause: 0,
    };

    /// Returns true if it is reported now.
    fn reports(&mut self, now: SteadyMs) -> bool {
        if now < self.next {
            return false;
        }
        self.pause = match now.since(self.next) > Self::LONGEST {
            true => Self::SHORTEST,
            false => (self.pause * 2).clamp(Self::SHORTEST, Self::LONGEST),
        };
        self.next = now.after(self.pause);
        true
    }
}

static REPLICAS: MainThread<Links> = MainThread::new(Links {
    links: Vec::new(),
    seen: None,
    heeded_until: SteadyMs(0),
    to_tell: false,
    since: SteadyMs(0),
    confirm_blackout_until: SteadyMs(0),
    offset: 0,
    single_replica_counts_from: SteadyMs(0),
    asked: 0,
    count: Count::AsConfigured,
    refusals: Backoff::NEW,
    setting: 0,
});

/// Whether something may have changed since replicas were last looked at.
static CHANGED: AtomicBool = AtomicBool::new(true);

/// Requests for a resynchronisation that were refused, and links that were ended, since the log last said so.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Refuses to serve replicas, or leaves it to the server, by its role and `dlock.replicas`: whom a replica brings up to date may
/// have confirmed for others what it forgets by that, and a replica can tell nobody.
pub(crate) fn refuse_requests() {
    sync::refuse(on() && !gate::primary());
}

/// Notes that a request for a resynchronisation was refused, or a link ended.
pub(crate) fn on_refused() {
    REFUSED.fetch_add(1, Ordering::Relaxed);
    changed();
}

/// Returns true if replicas are to confirm answers.
pub(crate) fn on() -> bool {
    config::REPLICAS.amount() > 0
}

/// How many of so many replicas must confirm an answer: with the primary more than half of all servers hold it, and whoever is
/// promoted needs as many.
fn needed_of(replicas: u32) -> u32 {
    replicas.div_ceil(2)
}

fn quarantine() -> Millis {
    config::QUARANTINE_MS.amount() as Millis
}

/// This server begins with new data: it was started, or it takes over another's.
pub(crate) fn begin() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        replicas.since = now;
        replicas.close();
        replicas.close_confirmations(now);
    }
}

/// Reads `dlock.replicas`. Nobody was looked at while none were to confirm anything: how they have joined is not known.
pub(crate) fn read_setting() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        let before = std::mem::replace(&mut replicas.setting, config::REPLICAS.amount());
        if before == replicas.setting {
            return;
        }
        if before == 0 {
            replicas.close();
            replicas.links.clear();
            (replicas.seen, replicas.asked) = (None, 0);
        }
        if before > 1 {
            replicas.single_replica_counts_from = now.after(quarantine());
        }
    }
    refuse_requests();
    changed();
}

/// A replica has come or gone, a child was forked, or the role has changed: replicas are to be looked at.
pub(crate) fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// Returns true if they are.
pub(crate) fn has_changed() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// The primary has told that somebody joins by a full resynchronisation, or that it was started.
pub(crate) fn close_confirmations() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        replicas.close_confirmations(now);
    }
}

/// Takes what is to be told in the stream.
pub(crate) fn take_to_tell() -> bool {
    let replicas = REPLICAS.borrow();
    replicas.is_some_and(|mut replicas| std::mem::take(&mut replicas.to_tell))
}

/// Returns true if something is to be told in the stream.
pub(crate) fn has_to_tell() -> bool {
    REPLICAS.borrow().is_some_and(|replicas| replicas.to_tell)
}

/// Until when this server confirms nothing, since it was started or has taken over another's data.
pub(crate) fn confirm_blackout_until() -> SteadyMs {
    REPLICAS
        .borrow()
        .map_or(SteadyMs(0), |replicas| replicas.confirm_blackout_until)
}

/// What is known now.
pub(crate) fn status(now: SteadyMs) -> Replicas {
    REPLICAS
        .borrow()
        .map_or(Replicas::default(), |replicas| replicas.status(now))
}

/// Asks the server for its replicas: no module is asked for these sections of INFO. To be called where the effects of what was
/// decided are in the stream. Returns true if this server follows another and has replicas, from when it was a primary: their
/// links are to be ended.
pub(crate) fn look(ctx: Ctx, now: SteadyMs) -> bool {
    let changed = CHANGED.swap(false, Ordering::Relaxed);
    let Some(mut replicas) = REPLICAS.borrow() else {
        return false;
    };
    replicas.look_at_links(ctx, now);
    // What was counted before a promotion is not counted after it.
    if changed || gate::primary() && replicas.newcomers() > 0 {
        replicas.look_at_joins(ctx, now);
    }
    if gate::primary() {
        return false;
    }
    replicas.asked = 0;
    !std::mem::take(&mut replicas.links).is_empty()
}

/// Reports in the log what has changed of how many replicas are connected, and what was refused to others.
pub(crate) fn report(now: SteadyMs) {
    let Some(mut replicas) = REPLICAS.borrow() else {
        return;
    };
    let refused = REFUSED.load(Ordering::Relaxed);
    if refused > 0 && replicas.refusals.reports(now) {
        REFUSED.store(0, Ordering::Relaxed);
        log::warning(&format!(
            "this server is a replica: with dlock.replicas it serves no replicas of its own ({refused} refused). Have them follow \
             its primary"
        ));
    }
    replicas.report_count(now);
}

/// Returns when another replica begins to count by itself, if one does.
pub(crate) fn next_to_count(now: SteadyMs) -> Option<SteadyMs> {
    let replicas = REPLICAS.borrow()?;
    let later = replicas.links.iter().map(|link| link.counts_from);
    later.filter(|at| *at > now).min()
}

/// How much of the stream there is.
pub(crate) fn offset() -> u64 {
    REPLICAS.borrow().map_or(0, |replicas| replicas.offset)
}

/// Returns the offset that at least `needed` counting replicas have acknowledged.
pub(crate) fn acknowledged_by(needed: u32, now: SteadyMs) -> u64 {
    let Some(replicas) = REPLICAS.borrow() else {
        return 0;
    };
    let mut acknowledged: Vec<u64> = replicas
        .counting(now)
        .map(|link| link.acknowledged)
        .collect();
    acknowledged.sort_unstable_by(|one, other| other.cmp(one));
    let at = (needed as usize).checked_sub(1);
    at.and_then(|at| acknowledged.get(at).copied()).unwrap_or(0)
}

/// How many replicas have acknowledged so much of the stream, of those whose confirmation counts.
pub(crate) fn have_acknowledged(offset: u64, now: SteadyMs) -> u32 {
    let replicas = REPLICAS.borrow();
    replicas.map_or(0, |replicas| {
        let counting = replicas.counting(now);
        counting.filter(|link| link.acknowledged >= offset).count() as u32
    })
}

/// Notes that replicas are asked to acknowledge the stream as it is, of which they have acknowledged so much and `most` is needed.
/// Returns false if that is not to be done: they were asked already, or have not answered what they were asked last. One question
/// at a time, since each is a write for replicas and save points.
pub(crate) fn ask(acknowledged: u64, most: u64) -> bool {
    let Some(mut replicas) = REPLICAS.borrow() else {
        return false;
    };
    if acknowledged < replicas.asked || most <= replicas.asked {
        return false;
    }
    replicas.asked = replicas.offset;
    true
}

impl Links {
    fn close(&mut self) {
        self.confirm_blackout_until = self
            .confirm_blackout_until
            .max(self.since.after(quarantine()));
    }

    fn close_confirmations(&mut self, now: SteadyMs) {
        self.heeded_until = self.heeded_until.max(now.after(quarantine()));
        if gate::primary() {
            self.to_tell = true;
            timer::soon();
        }
    }

    fn counting(&self, now: SteadyMs) -> impl Iterator<Item = &Link> + '_ {
        let alone = self.configured() == 1 && now >= self.single_replica_counts_from;
        let counts = move |link: &Link| link.online && (alone || link.counts_from <= now);
        // A replica that has come again while its former connection is not closed yet confirms once.
        let last = |at: usize, link: &Link| {
            let mut later = self.links.iter().skip(at + 1);
            later.all(|later| later.at != link.at)
        };
        let links = self.links.iter().enumerate();
        links
            .filter(move |(at, link)| counts(link) && last(*at, link))
            .map(|(_, link)| link)
    }

    /// How many replicas there are to be, or are if they are more.
    fn configured(&self) -> u32 {
        config::REPLICAS.amount().max(self.connected()) as u32
    }

    /// How many are connected. One that has come again while its former connection is not closed yet is one.
    fn connected(&self) -> usize {
        let at: BTreeSet<&str> = self.links.iter().map(|link| &*link.at).collect();
        at.len()
    }

    /// Reports more or fewer replicas than are configured, once while it is so, and the end of it.
    fn report_count(&mut self, now: SteadyMs) {
        let (connected, configured) = (self.connected(), config::REPLICAS.amount());
        let before = self.count;
        self.count = match before {
            _ if !on() || !gate::primary() => Count::AsConfigured,
            _ if connected > configured => Count::More,
            _ if connected == configured => Count::AsConfigured,
            Count::Fewer(since) if now >= since.after(FEWER_MS) => Count::FewerReported,
            Count::Fewer(_) | Count::FewerReported => before,
            Count::AsConfigured | Count::More => Count::Fewer(now),
        };
        match self.count {
            after if after == before => {}
            Count::More => log::warning(&format!(
                "{connected} replicas are connected, and dlock.replicas is {configured}: dlock uses {connected} until there \
                 are fewer. A replica that does not count can be promoted without the grants that others have confirmed"
            )),
            Count::FewerReported => log::warning(&format!(
                "{connected} replicas are connected, and dlock.replicas is {configured}. Look for those that are missing: they may be \
                 down, or follow a replica of this server, which serves none"
            )),
            Count::AsConfigured if before == Count::FewerReported && connected == configured => log::notice(&format!(
                "{connected} replicas are connected, as dlock.replicas says"
            )),
            _ => {}
        }
    }

    fn status(&self, now: SteadyMs) -> Replicas {
        let joined = |how| {
            let links = self.links.iter().filter(|link| link.joined == how);
            links.count() as u32
        };
        Replicas {
            needed: match on() {
                true => needed_of(self.configured()),
                false => 0,
            },
            counting: self.counting(now).count() as u32,
            connected: self.connected() as u32,
            partial: joined(Joined::Partial),
            full: joined(Joined::Full),
            too_many: on() && self.connected() > config::REPLICAS.amount(),
            too_few: on() && gate::primary() && self.connected() < config::REPLICAS.amount(),
            closed_ms: self.confirm_blackout_until.since(now),
            late_ms: self.heeded_until.since(now),
            waiting: 0,
        }
    }

    /// How many have come of which it is not known yet how.
    fn newcomers(&self) -> u64 {
        let unknown = self
            .links
            .iter()
            .filter(|link| link.joined == Joined::Unknown);
        unknown.count() as u64
    }

    /// Asks how many have joined and by what, and decides from when on those count that are new.
    fn look_at_joins(&mut self, ctx: Ctx, now: SteadyMs) {
        let (mut fulls, mut partials) = (0, 0);
        ctx.server_fields(c"stats", |field| {
            let number = |name| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
            (fulls, partials) = (number(c"sync_full"), number(c"sync_partial_ok"));
        });
        let seen = self.seen.replace((fulls, partials));
        // A counter that was reset by an operator is as one that has moved.
        let (had_fulls, had_partials) = seen.unwrap_or((0, 0));
        if fulls != had_fulls || partials < had_partials {
            self.close_confirmations(now);
        }
        let joined = partials.checked_sub(had_partials);
        let heeded = now < self.heeded_until;
        // One that has left and come again since the last look is none of the newcomers.
        let hidden = joined.is_none_or(|joined| joined > self.newcomers());
        let by_less = joined.is_none_or(|joined| joined < self.newcomers());
        let late = by_less && self.newcomers() > 0;
        for link in &mut self.links {
            if link.joined == Joined::Unknown {
                link.joined = match heeded || by_less {
                    true => Joined::Full,
                    false => Joined::Partial,
                };
                link.counts_from = match link.joined {
                    Joined::Partial => now,
                    _ => now.after(quarantine()),
                };
            } else if heeded && hidden && link.joined == Joined::Partial {
                (link.joined, link.counts_from) = (Joined::Full, now.after(quarantine()));
            }
        }
        if late {
            self.close_confirmations(now);
        }
    }

    /// Asks for the replicas that are connected.
    fn look_at_links(&mut self, ctx: Ctx, now: SteadyMs) {
        let mut known = std::mem::take(&mut self.links);
        let (links, offset) = (&mut self.links, &mut self.offset);
        ctx.server_fields(c"replication", |field| {
            *offset = field(c"master_repl_offset")
                .and_then(|text| text.parse().ok())
                .unwrap_or(*offset);
            let count: usize = field(c"connected_slaves")
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            for at in 0..count {
                let name = std::ffi::CString::new(format!("slave{at}")).unwrap_or_default();
                if let Some(line) = field(&name) {
                    links.extend(Link::read(line));
                }
            }
        });
        let mut full = false;
        for link in &mut self.links {
            // Two of one address: the one that counts last may be either.
            let same = known
                .iter()
                .enumerate()
                .filter(|(_, old)| old.at == link.at);
            let last = same
                .max_by_key(|(_, old)| old.counts_from)
                .map(|(at, _)| at);
            match last.map(|at| known.swap_remove(at)) {
                // It is another link by now, since one that is online stays so.
                Some(old) if old.online && !link.online => {}
                Some(old) => (link.joined, link.counts_from) = (old.joined, old.counts_from),
                None => {}
            }
            if !link.online && link.joined != Joined::Full {
                link.joined = Joined::Full;
                full = true;
            }
            if link.joined == Joined::Unknown || !link.online {
                link.counts_from = now.after(quarantine().max(1));
            }
        }
        if full {
            self.close_confirmations(now);
        }
    }
}

impl Link {
    /// Of a line of INFO: `ip=…,port=…,state=…,offset=…,lag=…`.
    fn read(line: &str) -> Option<Link> {
        let field = |name: &str| {
            let mut fields = line.split(',');
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        Some(Link {
            at: format!("{} {}", field("ip")?, field("port")?),
            online: field("state")? == "online",
            joined: Joined::Unknown,
            counts_from: SteadyMs(0),
            acknowledged: field("offset")?.parse().ok()?,
        })
    }
}

/// What a replica has to say before its process ends.
const CANNOT_FOLLOW: &str =
    "dlock ends the server: it cannot apply what its primary says, and with dlock.replicas it must not confirm what it does not keep";

/// A replica cannot apply the stream: the server would go on to confirm it. So its process ends, if it may be counted.
pub(crate) fn abort_diverged_replica() {
    if on() && !gate::primary() {
        log::warning(CANNOT_FOLLOW);
        std::process::abort();
    }
}
