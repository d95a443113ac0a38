//! The replicas that are connected to this server: how each has joined, whether its confirmation counts, its acknowledged offset.

use crate::ffi::ctx::Ctx;
use crate::node::{gate, timer};
use crate::settings::config;
use dlock_commands::Replicas;
use dlock_engine::{Millis, SteadyMs};
use std::collections::BTreeSet;

/// Returns true if replicas must confirm answers.
pub(crate) fn on() -> bool {
    config::REPLICAS.amount() > 0
}

/// Returns how many of these replicas must confirm an answer: with the primary more than half of all servers hold it, and a
/// promoted server needs as many.
fn needed_of(replicas: u32) -> u32 {
    replicas.div_ceil(2)
}

/// Returns how long a server that has lost its data waits.
pub(super) fn quarantine() -> Millis {
    config::QUARANTINE_MS.amount() as Millis
}

/// The connection of a replica.
#[derive(Debug, Clone)]
pub(super) struct Link {
    // Its address, as the server shows it.
    at: String,
    online: bool,
    joined: Joined,
    pub(super) counts_from: SteadyMs,
    // The offset that it has acknowledged.
    pub(super) acknowledged: u64,
}

/// How a replica has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    // It is online, and it is not known yet by which resynchronisation.
    Unknown,
    Partial,
    Full,
}

/// The replicas, and the confirmation state of this server.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) links: Vec<Link>,
    // How often the server was asked for a full resynchronisation, and granted a partial one, at the last reading.
    pub(super) seen: Option<(u64, u64)>,
    // Until when a replica that joins counts as one that has joined by a full resynchronisation.
    joins_count_full_until: SteadyMs,
    // Whether the stream must carry the notice that a full resynchronisation has begun, or that this primary was started.
    pub(super) notice_due: bool,
    // Since when this server has its data, and until when it confirms nothing because of that.
    pub(super) since: SteadyMs,
    pub(super) confirm_blackout_until: SteadyMs,
    // The offset of the stream.
    pub(super) offset: u64,
    // From when on the only replica counts at once: others may have confirmed something before.
    pub(super) single_replica_counts_from: SteadyMs,
    // The offset that replicas were last asked to acknowledge.
    pub(super) asked: u64,
    // `dlock.replicas`, when it was last read.
    pub(super) setting: usize,
}

impl Links {
    /// Begins the time in which this server confirms nothing, counted from when it got its data.
    pub(super) fn begin_blackout(&mut self) {
        self.confirm_blackout_until = self
            .confirm_blackout_until
            .max(self.since.after(quarantine()));
    }

    /// Notes that a replica joins by a full resynchronisation: those that join within the quarantine count late. A primary
    /// announces it in the stream.
    pub(super) fn on_full_sync(&mut self, now: SteadyMs) {
        self.joins_count_full_until = self.joins_count_full_until.max(now.after(quarantine()));
        if gate::primary() {
            self.notice_due = true;
            timer::soon();
        }
    }

    /// Returns the replicas whose confirmation counts.
    pub(super) fn counting(&self, now: SteadyMs) -> impl Iterator<Item = &Link> + '_ {
        let alone = self.configured() == 1 && now >= self.single_replica_counts_from;
        let counts = move |link: &Link| link.online && (alone || link.counts_from <= now);
        // A replica that has reconnected while its former connection is still open confirms once.
        let last = |at: usize, link: &Link| {
            let mut later = self.links.iter().skip(at + 1);
            later.all(|later| later.at != link.at)
        };
        let links = self.links.iter().enumerate();
        links
            .filter(move |(at, link)| counts(link) && last(*at, link))
            .map(|(_, link)| link)
    }

    /// Returns how many replicas are configured, or connected if they are more.
    pub(super) fn configured(&self) -> u32 {
        config::REPLICAS.amount().max(self.connected()) as u32
    }

    /// Returns how many are connected. One that has reconnected while its former connection is still open counts once.
    pub(super) fn connected(&self) -> usize {
        let at: BTreeSet<&str> = self.links.iter().map(|link| &*link.at).collect();
        at.len()
    }

    /// Returns the numbers for the policy and for INFO.
    pub(super) fn status(&self, now: SteadyMs) -> Replicas {
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
            late_ms: self.joins_count_full_until.since(now),
            waiting: 0,
        }
    }

    /// Returns of how many it is not known yet how they have joined.
    pub(super) fn newcomers(&self) -> u64 {
        let unknown = self
            .links
            .iter()
            .filter(|link| link.joined == Joined::Unknown);
        unknown.count() as u64
    }

    /// Reads how many have joined by which resynchronisation, and decides from when on the new ones count.
    pub(super) fn read_joins(&mut self, ctx: Ctx, now: SteadyMs) {
        let (mut fulls, mut partials) = (0, 0);
        ctx.server_fields(c"stats", |field| {
            let number = |name| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
            (fulls, partials) = (number(c"sync_full"), number(c"sync_partial_ok"));
        });
        let seen = self.seen.replace((fulls, partials));
        // A counter that an operator has reset counts as changed.
        let (had_fulls, had_partials) = seen.unwrap_or((0, 0));
        if fulls != had_fulls || partials < had_partials {
            self.on_full_sync(now);
        }
        let joined = partials.checked_sub(had_partials);
        let late = now < self.joins_count_full_until;
        // One that has reconnected since the last reading is not among the newcomers.
        let hidden = joined.is_none_or(|joined| joined > self.newcomers());
        let by_less = joined.is_none_or(|joined| joined < self.newcomers());
        let unexplained = by_less && self.newcomers() > 0;
        for link in &mut self.links {
            if link.joined == Joined::Unknown {
                link.joined = match late || by_less {
                    true => Joined::Full,
                    false => Joined::Partial,
                };
                link.counts_from = match link.joined {
                    Joined::Partial => now,
                    _ => now.after(quarantine()),
                };
            } else if late && hidden && link.joined == Joined::Partial {
                (link.joined, link.counts_from) = (Joined::Full, now.after(quarantine()));
            }
        }
        if unexplained {
            self.on_full_sync(now);
        }
    }

    /// Reads the replicas that are connected.
    pub(super) fn read_links(&mut self, ctx: Ctx, now: SteadyMs) {
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
            self.on_full_sync(now);
        }
    }
}

impl Link {
    /// Reads a line of INFO: `ip=…,port=…,state=…,offset=…,lag=…`.
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
