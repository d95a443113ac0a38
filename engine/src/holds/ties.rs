//! Holds that are tied to a party. Those of a connection end with it (`EPHEMERAL`), or the server renews them as long as it is open
//! (`AUTO`). Those of a session are renewed as long as it is alive.
//!
//! A tie belongs to a party of this run of the server, so none of this is saved or replicated: on a server
//! that was restarted or promoted such a hold lives on until its lease ends, and no client id of an earlier run can be
//! taken for one of this. It belongs to the lock's name as well: a hold that comes to another name is tied to nothing there.
//!
//! The cost of `DLOCK.KEEP` must not grow with the ties: a connection's ties stand in the order in which their leases end, a
//! heartbeat is noted once for all of them, and losses that the connection did not cause are kept until a KEEP reports them.

use super::identity::{HoldId, HoldKey};
use crate::invariants::broken;
use crate::types::{ClientId, HoldRef, Millis, Name, NameRef, Party, SteadyMs, Token, WallMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// The most losses that are kept for a connection until it asks, and the most bytes of their keys. Beyond them, the reply says only
/// that there were more.
const MOST_LOST: usize = 1024;
const MOST_LOST_BYTES: usize = 1 << 20;

/// How long a new hold of a session may stay out of its orders, and the most of a session that do. Most are released by then, and have
/// cost no order anything.
const YOUNG_MS: Millis = 1_000;
const MOST_YOUNG: usize = 1_024;

/// How many holds come into their orders in the time that a renewal takes, at least.
const MATURED_A_RENEWAL: usize = 8;

/// The bond between a hold and a party.
#[derive(Debug, Clone)]
pub struct Tie {
    /// The party.
    pub party: Party,
    /// The lock and the owner.
    pub whose: HoldKey,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    /// Whether the server renews the hold.
    pub auto: Option<Auto>,
    /// When the hold's lease ends.
    pub end: WallMs,
    /// The number of the row by which its session learns of it, as long as nobody has seen that row; 0 for none.
    pub row: u64,
    /// Whether its session is to learn of it once replicas have confirmed it.
    pub untold: bool,
    /// The latest end of the lease that replicas have confirmed, for a session that counts on it; none while its grant waits for that, or
    /// where no replica confirms anything.
    pub confirmed: Option<WallMs>,
    /// Whether it is in no order of its party yet.
    pub young: bool,
}

/// How the server renews a hold.
#[derive(Debug, Clone, Copy)]
pub struct Auto {
    /// The lease that each renewal gives.
    pub lease: Millis,
    /// How long the server renews at least; none without bound. Later heartbeats may extend it.
    pub bound: Option<Bound>,
    /// How many heartbeats its connection had sent when it was tied: they do not count for it.
    pub heartbeats: u64,
    /// When it renews next.
    pub next: Renewal,
}

/// How long holds are renewed, by the command that tied them or by a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// When the command ran.
    pub since: SteadyMs,
    /// How long from then on. The time stands still while the connection waits, and begins anew when that ends.
    pub ms: Millis,
}

impl Bound {
    /// Returns when it passes, if the connection waited last at `waited`.
    fn end(self, waited: SteadyMs) -> SteadyMs {
        self.since.max(waited).after(self.ms)
    }
}

impl Auto {
    /// Returns true if it is to be renewed by now.
    pub fn is_due(&self, now: SteadyMs) -> bool {
        matches!(self.next, Renewal::At(at) if at <= now)
    }

    /// Returns true if it is renewed at its connection's next heartbeat.
    pub fn is_paused(&self) -> bool {
        matches!(self.next, Renewal::Paused)
    }
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy)]
pub enum Renewal {
    /// At this time, or as soon after it as the server accepts the change.
    At(SteadyMs),
    /// At its connection's next heartbeat: its bound has passed.
    Paused,
    /// Never again: the hold has reached `max-hold-ms`. It stays tied.
    Stopped,
}

/// Why a connection has lost a tie, other than by a command of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The lease has ended.
    Expired,
    /// An operator has ended the hold.
    Forced,
    /// The key was removed or overwritten.
    Removed,
    /// The lock has left with its slot.
    Moved,
    /// The lock has another name, or is in another database.
    Renamed,
    /// Another party has the hold now, or nobody renews it any more.
    Taken,
    /// It was released, by a command that did not name its token.
    Released,
    /// The server decides no longer.
    Demoted,
}

impl Loss {
    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Forced => "forced",
            Loss::Removed => "removed",
            Loss::Moved => "moved",
            Loss::Renamed => "renamed",
            Loss::Taken => "taken",
            Loss::Released => "released",
            Loss::Demoted => "demoted",
        }
    }
}

/// A tie that a connection has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostHold {
    /// The lock.
    pub name: Name,
    /// The token of the hold.
    pub token: Token,
    /// Why.
    pub why: Loss,
}

/// The reply to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepReply {
    /// How many holds are tied to the connection.
    pub ties: usize,
    /// The earliest end of a lease that the server renews, or has renewed; none if it renews none.
    pub first_end: Option<WallMs>,
    /// The losses since the last report; none if there were more than are kept.
    pub lost: Option<Vec<LostHold>>,
}

impl Tie {
    /// Returns the lock.
    pub fn name(&self) -> NameRef<'_> {
        self.whose.name()
    }

    /// Returns the owner.
    pub fn owner(&self) -> &[u8] {
        self.whose.owner()
    }

    /// Returns the lock and the owner.
    pub fn whose(&self) -> HoldRef<'_> {
        self.whose.as_ref()
    }

    /// Returns why the hold is lost: its lease is over, or else what has happened.
    pub fn loss(&self, why: Loss, now: WallMs) -> Loss {
        match self.end <= now {
            true => Loss::Expired,
            false => why,
        }
    }

    /// Returns until when a program may believe in the hold; `confirms`: only what replicas have confirmed counts.
    pub(crate) fn believed(&self, confirms: bool) -> Option<WallMs> {
        match confirms {
            true => self.confirmed,
            false => Some(self.end),
        }
    }

    /// Returns true if the server renews the hold.
    pub fn renews(&self) -> bool {
        self.auto
            .is_some_and(|auto| !matches!(auto.next, Renewal::Paused | Renewal::Stopped))
    }

    /// Returns true if it may stay out of its party's orders for a while: nothing is due until then.
    fn may_be_young(&self, now: SteadyMs) -> bool {
        let next = self.auto.map(|auto| auto.next);
        matches!((self.party, next), (Party::Session(_), Some(Renewal::At(at))) if at >= now.after(YOUNG_MS))
    }

    fn ranked(&self, id: TieId) -> ByExpiry {
        ByExpiry {
            ephemeral_only: self.auto.is_none(),
            end: self.end,
            id,
        }
    }
}

/// A hold among those of its connection: in the order of their ends, with those that the server renews before the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ByExpiry {
    ephemeral_only: bool,
    end: WallMs,
    id: TieId,
}

impl ByExpiry {
    /// Returns the lowest rank among the holds that the server renews, or among the others.
    fn first(ephemeral_only: bool) -> ByExpiry {
        ByExpiry {
            ephemeral_only,
            end: WallMs(0),
            id: TieId::default(),
        }
    }
}

/// When the server renews which hold, in order.
pub(crate) type Renewals = BTreeSet<(SteadyMs, TieId)>;

/// Identifies a tie as long as it exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TieId {
    /// The token of the hold.
    pub token: Token,
    // Tells ties of one token apart. 0 for the first: nearly always there is no other.
    twin: u64,
}

/// A party that holds are tied to, or were. It is kept until it ends: a party that ties one hold ties another.
#[derive(Debug, Clone, Default)]
struct Bundle {
    // How many holds are tied to it.
    count: usize,
    // The newest holds, which are in none of the orders, and some that are gone.
    young: VecDeque<TieId>,
    holds: BTreeSet<ByExpiry>,
    // By the ends that replicas have confirmed, where they confirm any.
    confirmed: BTreeSet<(WallMs, TieId)>,
    // Holds whose bound has passed.
    paused: BTreeSet<TieId>,
    // What follows is of connections only. Whether it is blocked by a request, and when it last was.
    waits: bool,
    waited: SteadyMs,
    // How many heartbeats it has sent.
    heartbeats: u64,
    // The bounds of those that still count, with their numbers, in order. Each passes before the one before it: a later heartbeat
    // replaces those that would pass no later. So the first that has come since a tie was made is the one that applies to it.
    bounds: Vec<(u64, Bound)>,
    lost: LossLog,
}

impl Bundle {
    /// Enters a hold into the orders.
    fn order(&mut self, renewals: &mut Renewals, id: TieId, tie: &mut Tie) {
        tie.young = false;
        self.holds.insert(tie.ranked(id));
        self.confirmed.extend(tie.confirmed.map(|end| (end, id)));
        if let Some(auto) = tie.auto {
            self.enter(renewals, id, auto.next);
        }
    }

    /// Enters the oldest of the newest holds, if it still exists. Returns false if there was none.
    fn order_oldest(
        &mut self,
        party: Party,
        renewals: &mut Renewals,
        ties: &mut BTreeMap<TieId, Box<Tie>>,
    ) -> bool {
        let Some(id) = self.young.pop_front() else {
            return false;
        };
        let tie = ties.get_mut(&id);
        if let Some(tie) = tie.filter(|tie| tie.young && tie.party == party) {
            self.order(renewals, id, tie);
        }
        true
    }

    /// Enters when a hold is renewed next.
    fn enter(&mut self, renewals: &mut Renewals, id: TieId, next: Renewal) {
        match next {
            Renewal::At(at) => drop(renewals.insert((at, id))),
            Renewal::Paused => drop(self.paused.insert(id)),
            Renewal::Stopped => {}
        }
    }

    /// Puts a hold of it in its place by the end of its lease.
    fn set_end(&mut self, tie: &mut Tie, id: TieId, end: WallMs) {
        if tie.young {
            tie.end = end;
        } else if tie.end != end {
            self.holds.remove(&tie.ranked(id));
            tie.end = end;
            self.holds.insert(tie.ranked(id));
        }
    }

    /// Enters until when replicas have confirmed a hold, in place of what was known.
    fn confirm(&mut self, tie: &mut Tie, id: TieId, end: Option<WallMs>) {
        let before = std::mem::replace(&mut tie.confirmed, end);
        if tie.young {
            return;
        }
        if let Some(before) = before {
            self.confirmed.remove(&(before, id));
        }
        self.confirmed.extend(end.map(|end| (end, id)));
    }

    /// Removes when a hold is renewed next.
    fn take_out(&mut self, renewals: &mut Renewals, id: TieId, next: Renewal) {
        match next {
            Renewal::At(at) => drop(renewals.remove(&(at, id))),
            Renewal::Paused => drop(self.paused.remove(&id)),
            Renewal::Stopped => {}
        }
    }

    /// Returns the position of the first KEEP after the given number of them.
    fn first_since(&self, heartbeats: u64) -> usize {
        self.bounds
            .partition_point(|(number, _)| *number <= heartbeats)
    }

    /// Drops the bounds that apply to no hold. Takes time by the number of holds; as many heartbeats have come since it was last
    /// done.
    fn forget_bounds(&mut self, ties: &BTreeMap<TieId, Box<Tie>>) {
        let autos = self.holds.iter();
        let autos = autos.filter_map(|hold| ties.get(&hold.id)?.auto);
        let needed: BTreeSet<usize> = autos
            .map(|auto| self.first_since(auto.heartbeats))
            .collect();
        let mut at = 0..;
        self.bounds
            .retain(|_| at.next().is_some_and(|at| needed.contains(&at)));
    }
}

#[derive(Debug, Clone, Default)]
struct LossLog {
    ties: Vec<LostHold>,
    bytes: usize,
    // There were more than are kept.
    more: bool,
}

impl LossLog {
    fn is_empty(&self) -> bool {
        self.ties.is_empty() && !self.more
    }

    fn add(&mut self, lost: LostHold) {
        let bytes = self.bytes + lost.name.key.len();
        if self.more || self.ties.len() == MOST_LOST || bytes > MOST_LOST_BYTES {
            *self = LossLog {
                more: true,
                ..LossLog::default()
            };
        } else {
            self.bytes = bytes;
            self.ties.push(lost);
        }
    }

    /// Takes out what has been lost; none if there was more than is kept.
    fn take(&mut self) -> Option<Vec<LostHold>> {
        let log = std::mem::take(self);
        (!log.more).then_some(log.ties)
    }
}

/// All ties.
#[derive(Debug, Clone, Default)]
pub struct Ties {
    by_id: BTreeMap<TieId, Box<Tie>>,
    // The ties of tokens that others had when these were made.
    twins: BTreeMap<HoldId, TieId>,
    by_party: BTreeMap<Party, Bundle>,
    ephemeral: usize,
    autos: usize,
    /// When the server renews which hold.
    pub renewals: Renewals,
    // When the newest holds of a session come into its orders.
    maturing: VecDeque<(SteadyMs, Party)>,
    // Holds whose renewal is due.
    due: VecDeque<TieId>,
    // Holds that were paused until a heartbeat came, and are to be renewed again.
    resumed: Vec<BTreeSet<TieId>>,
    // The connection whose command runs; none between commands. Its own acts are not reported to it as losses.
    current_client: ClientId,
    // How many twins there have been so far.
    last_twin: u64,
}

impl Ties {
    /// Returns true if nothing is tied.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns how many holds end with a connection.
    pub fn ephemeral(&self) -> usize {
        self.ephemeral
    }

    /// Returns how many holds the server renews.
    pub fn autos(&self) -> usize {
        self.autos
    }

    /// Returns a party whose orders are to be read.
    fn ordered(&self, party: Party) -> Option<&Bundle> {
        let its = self.by_party.get(&party)?;
        debug_assert!(its.young.is_empty(), "not all its holds are in order");
        Some(its)
    }

    /// Returns the tie with this number.
    pub fn get(&self, id: TieId) -> Option<&Tie> {
        self.by_id.get(&id).map(|tie| &**tie)
    }

    /// Finds the tie of a lock's hold. No lock has two holds under one token, so they need not be told apart by their owners.
    #[inline(always)]
    pub fn find(&self, name: NameRef, token: Token) -> Option<TieId> {
        let first = TieId { token, twin: 0 };
        match self.get(first) {
            Some(tie) if tie.name() == name => Some(first),
            _ => self.find_twin(name, token),
        }
    }

    fn find_twin(&self, name: NameRef, token: Token) -> Option<TieId> {
        if self.twins.is_empty() {
            return None;
        }
        // Of all owners this one sorts first.
        let owner = &[];
        let from = HoldId::new(HoldRef { name, owner }, token);
        let (hold, id) = self.twins.range(from..).next()?;
        (hold.token == token && hold.whose.name() == name).then_some(*id)
    }

    /// Finds the tie of a hold.
    pub fn find_hold(&self, whose: HoldRef, token: Token) -> Option<TieId> {
        let id = self.find(whose.name, token)?;
        let tie = self.get(id)?;
        (tie.owner() == whose.owner).then_some(id)
    }

    /// Returns the tie of a hold.
    pub fn of_hold(&self, whose: HoldRef, token: Token) -> Option<&Tie> {
        self.get(self.find_hold(whose, token)?)
    }

    /// Returns the first tie above this one.
    pub fn after(&self, id: TieId) -> Option<(TieId, &Tie)> {
        let mut rest = self.by_id.range((Excluded(id), Unbounded));
        rest.next().map(|(id, tie)| (*id, &**tie))
    }

    /// Returns true if something is tied to this connection, or was.
    pub fn has_connection(&self, client: ClientId) -> bool {
        self.by_party.contains_key(&Party::Connection(client))
    }

    /// Sets the connection whose command runs from now on; none between commands.
    pub fn set_current_client(&mut self, client: ClientId) {
        self.current_client = client;
    }

    /// Ties a hold that has no tie. Returns the tie's number.
    pub fn tie(&mut self, token: Token, mut tie: Box<Tie>, now: SteadyMs) -> TieId {
        self.ephemeral += usize::from(tie.ephemeral);
        self.autos += usize::from(tie.renews());
        let id = self.number(&tie, token);
        let its = self.by_party.entry(tie.party).or_default();
        its.count += 1;
        tie.young = tie.may_be_young(now);
        if tie.young {
            if its.young.is_empty() {
                self.maturing.push_back((now.after(YOUNG_MS), tie.party));
            }
            its.young.push_back(id);
            if its.young.len() > MOST_YOUNG {
                its.order_oldest(tie.party, &mut self.renewals, &mut self.by_id);
            }
        } else {
            its.order(&mut self.renewals, id, &mut tie);
        }
        if self.by_id.insert(id, tie).is_some() {
            broken!("a hold that is tied anew is tied by nothing");
        }
        id
    }

    /// Numbers a tie: by its token alone, unless another tie has that number.
    fn number(&mut self, tie: &Tie, token: Token) -> TieId {
        let first = TieId { token, twin: 0 };
        if !self.by_id.contains_key(&first) {
            return first;
        }
        self.last_twin += 1;
        let (twin, whose) = (self.last_twin, tie.whose.clone());
        let id = TieId { token, twin };
        if self.twins.insert(HoldId { token, whose }, id).is_some() {
            broken!("a hold that is tied anew is tied by nothing");
        }
        id
    }

    /// Unties a hold.
    pub fn untie(&mut self, id: TieId) -> Option<Box<Tie>> {
        let tie = self.by_id.remove(&id)?;
        if id.twin > 0 {
            self.twins.remove(&HoldId::new(tie.whose(), id.token));
        }
        self.ephemeral -= usize::from(tie.ephemeral);
        self.autos -= usize::from(tie.renews());
        if let Some(its) = self.by_party.get_mut(&tie.party) {
            its.count -= 1;
            if tie.young {
                return Some(tie);
            }
            its.holds.remove(&tie.ranked(id));
            if let Some(end) = tie.confirmed {
                its.confirmed.remove(&(end, id));
            }
            if let Some(auto) = tie.auto {
                its.take_out(&mut self.renewals, id, auto.next);
            }
        }
        Some(tie)
    }

    /// Enters the newest holds of a party into its orders, which whoever reads them needs. Returns how many it looked at.
    pub fn order(&mut self, party: Party) -> usize {
        let Some(its) = self.by_party.get_mut(&party) else {
            return 0;
        };
        let young = its.young.len();
        while its.order_oldest(party, &mut self.renewals, &mut self.by_id) {}
        its.young = VecDeque::new();
        young
    }

    /// Unties the hold of this owner.
    pub fn untie_hold(&mut self, whose: HoldRef, token: Token) -> Option<Box<Tie>> {
        self.untie(self.find_hold(whose, token)?)
    }

    /// Records the loss of a tie that was removed, unless its connection's own command has done it.
    pub fn lose(&mut self, token: Token, lost: &Tie, why: Loss) {
        let by_itself = matches!(why, Loss::Taken | Loss::Released | Loss::Forced)
            && lost.party == Party::Connection(self.current_client);
        if !by_itself {
            self.revoke(token, lost, why);
        }
    }

    /// Adds a hold to the losses of the connection that it was tied to.
    pub fn revoke(&mut self, token: Token, lost: &Tie, why: Loss) {
        let name = lost.name().to_owned();
        let why = match why {
            Loss::Released => Loss::Taken,
            why => why,
        };
        let bundle = self.by_party.entry(lost.party).or_default();
        bundle.lost.add(LostHold { name, token, why });
    }

    /// Moves a hold that is to be renewed again to its new number.
    pub fn resume_as(&mut self, old: TieId, new: TieId) {
        let mut sets = self.resumed.iter_mut();
        if let Some(holds) = sets.find_map(|holds| holds.remove(&old).then_some(holds)) {
            holds.insert(new);
        }
    }

    /// Returns true if a hold was paused, and is to be renewed again because its connection has sent a heartbeat.
    pub fn is_resumed(&self, id: TieId) -> bool {
        self.resumed.iter().any(|holds| holds.contains(&id))
    }

    /// Unties everything after a demotion. `DLOCK.KEEP` reports the losses once the server is a primary again.
    pub fn lose_all(&mut self, now: WallMs) {
        for (id, tie) in std::mem::take(&mut self.by_id) {
            if let Party::Connection(_) = tie.party {
                self.lose(id.token, &tie, tie.loss(Loss::Demoted, now));
            }
        }
        self.twins.clear();
        self.by_party.retain(|_, bundle| {
            *bundle = Bundle {
                lost: std::mem::take(&mut bundle.lost),
                ..Bundle::default()
            };
            !bundle.lost.is_empty()
        });
        self.renewals.clear();
        self.maturing.clear();
        self.due.clear();
        self.resumed.clear();
        (self.ephemeral, self.autos) = (0, 0);
    }

    /// Returns when the server renews a hold next, or enters holds into the orders by which it does.
    pub fn next_renewal(&self) -> Option<SteadyMs> {
        let matures = self.maturing.front().map(|(at, _)| *at);
        let renews = self.renewals.first().map(|(at, _)| *at);
        matures.into_iter().chain(renews).min()
    }

    /// Notes that up to `room` holds are to be renewed by now.
    pub fn come_due(&mut self, now: SteadyMs, room: usize) {
        let (mut matured, most) = (0, room * MATURED_A_RENEWAL);
        while let Some((at, party)) = self.maturing.front().copied() {
            if at > now || matured >= most {
                break;
            }
            self.maturing.pop_front();
            matured += 1 + self.order(party);
        }
        for _ in 0..room {
            if self.renewals.first().is_none_or(|(at, _)| *at > now) {
                break;
            }
            let first = self.renewals.pop_first();
            self.due.extend(first.map(|(_, id)| id));
        }
    }

    /// Notes when the lease of a hold that was due ends now, and when the server renews it next.
    pub fn renewed(&mut self, id: TieId, end: WallMs, next: Renewal) {
        let Some(tie) = self.by_id.get_mut(&id) else {
            return broken!("a hold that is renewed is tied");
        };
        let Some(its) = self.by_party.get_mut(&tie.party) else {
            return broken!("a hold is tied to a party that is known");
        };
        self.autos -= usize::from(tie.renews());
        if tie.young {
            its.order(&mut self.renewals, id, tie);
        }
        its.set_end(tie, id, end);
        if let Some(auto) = &mut tie.auto {
            let before = std::mem::replace(&mut auto.next, next);
            its.take_out(&mut self.renewals, id, before);
            its.enter(&mut self.renewals, id, next);
        }
        self.autos += usize::from(tie.renews());
    }

    /// Notes that a tied hold was entered once more: each renewal gives at least this lease from now on, and its lease ends at
    /// `end`.
    pub fn reentered(&mut self, whose: HoldRef, token: Token, lease: Millis, end: WallMs) {
        let Some(id) = self.find_hold(whose, token) else {
            return;
        };
        let Some(tie) = self.by_id.get_mut(&id) else {
            return;
        };
        if let Some(auto) = &mut tie.auto {
            auto.lease = auto.lease.max(lease);
        }
        if let Some(its) = self.by_party.get_mut(&tie.party) {
            its.set_end(tie, id, end);
        }
    }

    /// Returns how many heartbeats a connection has sent.
    pub fn heartbeats(&self, client: ClientId) -> u64 {
        let its = self.by_party.get(&Party::Connection(client));
        its.map_or(0, |its| its.heartbeats)
    }

    /// Returns true if a hold's bounds have passed: that of the command that tied it, and those of the heartbeats since. Their time
    /// stands still while the connection waits, and begins anew when that ends.
    pub fn is_over(&self, tie: &Tie, now: SteadyMs) -> bool {
        let Some((auto, its)) = tie.auto.zip(self.by_party.get(&tie.party)) else {
            return false;
        };
        let over = |bound: Bound| bound.end(its.waited) <= now;
        let kept = its.bounds.get(its.first_since(auto.heartbeats));
        !its.waits && auto.bound.is_some_and(over) && kept.is_none_or(|(_, bound)| over(*bound))
    }

    /// Takes a heartbeat of a connection: its holds are renewed for `ms` from now, or as long as before, whichever is later. The
    /// caller has removed the ties that have ended.
    pub fn keep(&mut self, client: ClientId, ms: Millis, now: SteadyMs) {
        let Some(its) = self.by_party.get_mut(&Party::Connection(client)) else {
            return;
        };
        if !its.paused.is_empty() {
            self.resumed.push(std::mem::take(&mut its.paused));
        }
        its.heartbeats += 1;
        let (bound, waited) = (Bound { since: now, ms }, its.waited);
        let later = |(_, earlier): &(u64, Bound)| earlier.end(waited) > bound.end(waited);
        let stay = its.bounds.iter().rposition(later).map_or(0, |at| at + 1);
        its.bounds.truncate(stay);
        its.bounds.push((its.heartbeats, bound));
        if its.bounds.len() > 2 * its.holds.len() {
            its.forget_bounds(&self.by_id);
        }
    }

    /// Returns the earliest end of a lease that the server renews for a party, or has renewed; none if it renews none.
    pub fn first_end(&self, party: Party) -> Option<WallMs> {
        let first = self.ordered(party)?.holds.first();
        let first = first.filter(|first| !first.ephemeral_only);
        first.map(|first| first.end)
    }

    /// Returns the reply to a heartbeat, and drops the losses that it reports.
    pub fn keep_reply(&mut self, client: ClientId) -> KeepReply {
        let first_end = self.first_end(Party::Connection(client));
        let its = self.by_party.get_mut(&Party::Connection(client));
        let its = its.map(|its| (its.holds.len(), its.lost.take()));
        let (ties, lost) = its.unwrap_or((0, Some(Vec::new())));
        KeepReply {
            ties,
            first_end,
            lost,
        }
    }

    /// Takes out a hold that is to be renewed now: its renewal is due, or its connection has sent a heartbeat.
    pub fn next_due(&mut self) -> Option<TieId> {
        if let Some(id) = self.due.pop_front() {
            return Some(id);
        }
        while let Some(holds) = self.resumed.last_mut() {
            if let Some(id) = holds.pop_first() {
                return Some(id);
            }
            self.resumed.pop();
        }
        None
    }

    /// Returns true if holds may be due for renewal.
    pub fn has_due(&self) -> bool {
        !(self.due.is_empty() && self.resumed.is_empty())
    }

    /// Defers the renewal of holds that are due: the server accepts no change of them now.
    pub fn put_off(&mut self, refused: Vec<TieId>) {
        self.due.extend(refused);
    }

    /// Returns a hold of this party whose lease has ended by that time, as far as is known here.
    pub fn ended(&self, party: Party, now: WallMs) -> Option<TieId> {
        let holds = &self.ordered(party)?.holds;
        let first = |ephemeral_only| holds.range(ByExpiry::first(ephemeral_only)..).next();
        let mut firsts = first(false).into_iter().chain(first(true));
        let ended = firsts.find(|hold| hold.end <= now);
        ended.map(|hold| hold.id)
    }

    /// Notes that a connection begins to wait for a request, or no longer waits.
    pub fn waits(&mut self, client: ClientId, waits: bool, now: SteadyMs) {
        if let Some(connection) = self.by_party.get_mut(&Party::Connection(client)) {
            connection.waits = waits;
            connection.waited = now;
        }
    }

    /// Returns how many holds are tied to a party.
    pub fn count(&self, party: Party) -> usize {
        self.by_party.get(&party).map_or(0, |bundle| bundle.count)
    }

    /// Returns the earliest end of a lease of this party that replicas have confirmed.
    pub fn first_confirmed(&self, party: Party) -> Option<WallMs> {
        let first = self.ordered(party)?.confirmed.first();
        first.map(|(end, _)| *end)
    }

    /// Sets until when replicas have confirmed a hold; none while its grant waits for that.
    pub fn set_confirmed(&mut self, id: TieId, end: Option<WallMs>) {
        let Some(tie) = self.by_id.get_mut(&id) else {
            return;
        };
        if let Some(its) = self.by_party.get_mut(&tie.party) {
            its.confirm(tie, id, end);
        }
    }

    /// Counts on confirmations from now on: of no hold of a session is any known.
    pub fn begin_to_confirm(&mut self) {
        for (id, tie) in &mut self.by_id {
            if let Party::Session(_) = tie.party {
                if let Some(its) = self.by_party.get_mut(&tie.party) {
                    its.confirm(tie, *id, Some(WallMs(0)));
                }
            }
        }
    }

    /// Resumes the renewals of a session that is alive again.
    pub fn resume(&mut self, party: Party) {
        if let Some(its) = self.by_party.get_mut(&party) {
            if !its.paused.is_empty() {
                self.resumed.push(std::mem::take(&mut its.paused));
            }
        }
    }

    /// Notes that the row by which a session learns of this hold has been seen, or has gone.
    pub fn forget_row(&mut self, id: TieId) {
        if let Some(tie) = self.by_id.get_mut(&id) {
            tie.row = 0;
        }
    }

    /// Sets the row by which a session learns of this hold.
    pub fn set_row(&mut self, id: TieId, row: u64) {
        if let Some(tie) = self.by_id.get_mut(&id) {
            tie.row = row;
            tie.untold = false;
        }
    }

    /// Returns the hold of a party that comes after this one, or its first.
    pub fn next_of(&self, party: Party, after: Option<TieId>) -> Option<TieId> {
        let holds = &self.ordered(party)?.holds;
        let after = after.and_then(|id| Some(self.get(id)?.ranked(id)));
        let next = match after {
            None => holds.first(),
            Some(after) => holds.range((Excluded(after), Unbounded)).next(),
        };
        next.map(|hold| hold.id)
    }

    /// Forgets a party that has ended, and has no ties left.
    pub fn forget(&mut self, party: Party) {
        self.by_party.remove(&party);
    }

    /// Returns the holds of the locks that this is true of.
    pub fn of(&self, chosen: impl Fn(NameRef) -> bool) -> Vec<TieId> {
        let ties = self.by_id.iter().filter(|(_, tie)| chosen(tie.name()));
        ties.map(|(id, _)| *id).collect()
    }
}
