//! The connected replicas, as INFO shows them: how each has joined, and how much it has acknowledged.

use crate::report::{Line, Report};
use crate::{Joined, Standing};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};

/// The terms of a server, in milliseconds.
pub(crate) type Terms = crate::Terms<u64>;

/// The fields of a section of INFO: the text of each, none if the server has no such field.
pub type Fields<'f> = &'f dyn Fn(&CStr) -> Option<&'f str>;

/// The state of the replicas, for the policy and for INFO.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// How many must confirm an answer; 0 where none needs to.
    pub needed: u32,
    /// How many are online whose confirmation counts.
    pub counting: u32,
    /// How many are connected, in whatever state.
    pub connected: u32,
    /// How many of the connected have joined by a partial resynchronisation.
    pub partial: u32,
    /// How many by a full one.
    pub full: u32,
    /// Whether they are more than are configured.
    pub too_many: bool,
    /// Whether this server is a primary and they are fewer.
    pub too_few: bool,
    /// For how many milliseconds this server confirms nothing yet, after a start or a full resynchronisation.
    pub closed_ms: u64,
    /// For how many milliseconds a replica that joins counts late.
    pub late_ms: u64,
}

/// The connection of a replica.
#[derive(Debug, Clone)]
struct Link {
    // Its address and port, as the server shows them.
    address: String,
    online: bool,
    // None while it is not known by which resynchronisation.
    joined: Option<Joined>,
    counts_from: u64,
    // The offset that it has acknowledged.
    acknowledged: u64,
}

/// The replicas, and the state of this server. Times are in milliseconds of a clock that never steps.
#[derive(Debug, Default)]
pub struct Links {
    /// The state of this server by itself.
    pub standing: Standing<u64>,
    links: Vec<Link>,
    report: Report,
    // How often the server was asked for a full resynchronisation, and granted a partial one, at the last reading.
    seen: Option<(u64, u64)>,
    // The offset of the stream.
    offset: u64,
    // From when on the only replica counts at once: others may have confirmed something before.
    single_replica_counts_from: u64,
    // The offset that replicas were last asked to acknowledge.
    asked: u64,
    // `dlock.replicas`, when it was last read.
    setting: u32,
}

impl Links {
    /// Notes that a request for a resynchronisation was refused, or a link was closed.
    pub fn on_refused(&mut self) {
        self.report.refused += 1;
    }

    /// Takes over `dlock.replicas`. While it was 0 the replicas were not read, and how they have joined is not known. Returns true
    /// if it has changed.
    pub fn on_setting(&mut self, terms: &Terms, now: u64) -> bool {
        let before = std::mem::replace(&mut self.setting, terms.replicas);
        if before == self.setting {
            return false;
        }
        if before == 0 {
            self.standing.close(terms);
            self.links.clear();
            (self.seen, self.asked) = (None, 0);
        }
        if before > 1 {
            self.single_replica_counts_from = now + terms.quarantine;
        }
        true
    }

    /// Reads the section `replication`.
    pub fn read(&mut self, terms: &Terms, replication: Fields, now: u64) {
        let mut known = std::mem::take(&mut self.links);
        self.offset = number(replication, c"master_repl_offset").unwrap_or(self.offset);
        let count = number(replication, c"connected_slaves").unwrap_or(0);
        let mut begins_full = false;
        for index in 0..count {
            let name = CString::new(format!("slave{index}")).unwrap_or_default();
            let Some(mut link) = replication(&name).and_then(Link::read) else {
                continue;
            };
            // Two of one address: the one that counts last may be either.
            let same = known
                .iter()
                .enumerate()
                .filter(|(_, old)| old.address == link.address);
            let last = same.max_by_key(|(_, old)| old.counts_from);
            let position = last.map(|(position, _)| position);
            match position.map(|position| known.swap_remove(position)) {
                // It is another link by now, since one that is online stays so.
                Some(old) if old.online && !link.online => {}
                Some(old) => (link.joined, link.counts_from) = (old.joined, old.counts_from),
                None => {}
            }
            // The server lists one that joins by a full resynchronisation for a while before it is online.
            if !link.online && link.joined != Some(Joined::Full) {
                link.joined = Some(Joined::Full);
                begins_full = true;
            }
            if link.joined.is_none() || !link.online {
                link.counts_from = now + terms.quarantine.max(1);
            }
            self.links.push(link);
        }
        if begins_full {
            self.standing.on_full_sync(terms, now);
        }
    }

    /// Returns of how many it is not known yet how they have joined.
    #[must_use]
    pub fn newcomers(&self) -> u64 {
        let unknown = self.links.iter().filter(|link| link.joined.is_none());
        unknown.count() as u64
    }

    /// Reads in the section `stats` how many have joined by which resynchronisation, and decides from when on the new ones count. A
    /// doubtful case counts as full.
    pub fn read_joins(&mut self, terms: &Terms, stats: Fields, now: u64) {
        let fulls = number(stats, c"sync_full").unwrap_or(0);
        let partials = number(stats, c"sync_partial_ok").unwrap_or(0);
        let seen = self.seen.replace((fulls, partials));
        // A counter that an operator has reset counts as changed.
        let (had_fulls, had_partials) = seen.unwrap_or((0, 0));
        if fulls != had_fulls || partials < had_partials {
            self.standing.on_full_sync(terms, now);
        }
        let joined = partials.checked_sub(had_partials);
        let newcomers = self.newcomers();
        let by_less = joined.is_none_or(|joined| joined < newcomers);
        // One that has reconnected since the last reading is not among the newcomers.
        let hidden = joined.is_some_and(|joined| joined > newcomers);
        let late = now < self.standing.late_until;
        for link in &mut self.links {
            let how = match link.joined {
                None if by_less => Joined::Full,
                None => Joined::Partial,
                Some(_) if hidden && late => Joined::Partial,
                Some(Joined::Partial) if joined.is_none() => Joined::Partial,
                Some(_) => continue,
            };
            let (how, from) = self.standing.joins(terms, how, now);
            (link.joined, link.counts_from) = (Some(how), from);
        }
        if by_less && newcomers > 0 {
            self.standing.on_full_sync(terms, now);
        }
    }

    /// Ends the reading. Returns true if this server is a replica whose own replicas, from its time as a primary, must go.
    pub fn end_reading(&mut self, terms: &Terms) -> bool {
        if terms.primary {
            return false;
        }
        self.asked = 0;
        !std::mem::take(&mut self.links).is_empty() && terms.ends_links()
    }

    /// Returns the replicas whose confirmation counts.
    fn counting<'a>(&'a self, terms: &'a Terms, now: u64) -> impl Iterator<Item = &'a Link> {
        let alone = self.configured(terms) == 1 && now >= self.single_replica_counts_from;
        let links = self.links.iter().enumerate();
        let counting = links.filter(move |(index, link)| {
            // A replica that has reconnected while its former connection is still open confirms once.
            let mut later = self.links.iter().skip(index + 1);
            link.online
                && self.standing.counts(terms, alone, link.counts_from, now)
                && later.all(|later| later.address != link.address)
        });
        counting.map(|(_, link)| link)
    }

    /// Returns how many replicas are configured, or connected if they are more.
    fn configured(&self, terms: &Terms) -> u32 {
        terms.replicas.max(self.connected())
    }

    /// Returns how many are connected. One that has reconnected while its former connection is still open counts once.
    fn connected(&self) -> u32 {
        let addresses: BTreeSet<&str> = self.links.iter().map(|link| &*link.address).collect();
        addresses.len() as u32
    }

    /// Returns the state of the replicas.
    #[must_use]
    pub fn status(&self, terms: &Terms, now: u64) -> Status {
        let joined = |how| {
            let links = self.links.iter().filter(|link| link.joined == Some(how));
            links.count() as u32
        };
        let connected = self.connected();
        Status {
            needed: terms.needed(self.configured(terms)),
            counting: self.counting(terms, now).count() as u32,
            connected,
            partial: joined(Joined::Partial),
            full: joined(Joined::Full),
            too_many: terms.on() && connected > terms.replicas,
            too_few: terms.on() && terms.primary && connected < terms.replicas,
            closed_ms: self.standing.closed_until.saturating_sub(now),
            late_ms: self.standing.late_until.saturating_sub(now),
        }
    }

    /// Returns what the log should say about the replicas now.
    pub fn report(&mut self, terms: &Terms, now: u64) -> Vec<Line> {
        let connected = self.connected();
        self.report.lines(terms, connected, now)
    }

    /// Returns when another replica begins to count by itself, if one does.
    #[must_use]
    pub fn next_to_count(&self, now: u64) -> Option<u64> {
        let later = self.links.iter().map(|link| link.counts_from);
        later.filter(|at| *at > now).min()
    }

    /// Returns the offset of the stream.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the offset up to which replicas have confirmed the stream.
    #[must_use]
    pub fn confirmed(&self, terms: &Terms, now: u64) -> u64 {
        let counting = self.counting(terms, now).map(|link| link.acknowledged);
        let needed = terms.needed(self.configured(terms));
        terms
            .rule
            .confirmed(&mut counting.collect::<Vec<u64>>(), needed)
    }

    /// Returns how many counting replicas have acknowledged this offset.
    #[must_use]
    pub fn have_acknowledged(&self, terms: &Terms, offset: u64, now: u64) -> u32 {
        let counting = self.counting(terms, now);
        counting.filter(|link| link.acknowledged >= offset).count() as u32
    }

    /// Decides whether to ask the replicas for an acknowledgement, and notes it. The stream is confirmed up to `confirmed`, and
    /// `most` is needed. Returns false if they were asked for that already, or have not answered the last question: one question at
    /// a time, since each is a write for replicas and save points.
    pub fn ask(&mut self, confirmed: u64, most: u64) -> bool {
        let asks = confirmed >= self.asked && most > self.asked;
        if asks {
            self.asked = self.offset;
        }
        asks
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
            address: format!("{} {}", field("ip")?, field("port")?),
            online: field("state")? == "online",
            joined: None,
            counts_from: 0,
            acknowledged: field("offset")?.parse().ok()?,
        })
    }
}

fn number(fields: Fields, name: &CStr) -> Option<u64> {
    fields(name)?.parse().ok()
}
