//! Holds that are tied to a party. Those of a connection end with it (`EPHEMERAL`), or the server renews them as long as it is open
//! (`AUTO`). Those of a session are renewed as long as it is alive.
//!
//! A tie belongs to a party of this run of the server, so none of this is saved or replicated: on a server
//! that was restarted or promoted such a hold lives on until its lease ends, and no client id of an earlier run can be
//! taken for one of this. It belongs to the lock's name as well: a hold that comes to another name is tied to nothing there.
//!
//! The cost of `DLOCK.SESSION` must not grow with the holds: a party's ties stand in *orders*, by when their leases end. A *young* hold of
//! a session, less than a second old, is in no order yet, since most are released by then. It *matures* into them after that, or when
//! a command must read them.

use super::identity::{HoldId, HoldKey};
use crate::invariants::broken;
use crate::types::{ClientId, HoldRef, Millis, NameRef, Party, SteadyMs, Token, WallMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

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
    /// The latest end of the lease that replicas have confirmed, for a session that counts on it; 0 if none is known. None while its grant
    /// waits for that, or where no replica confirms anything.
    pub confirmed: Option<WallMs>,
    /// Whether it is in no order of its party yet.
    pub young: bool,
}

/// How the server renews a hold.
#[derive(Debug, Clone, Copy)]
pub struct Auto {
    /// The lease that each renewal gives.
    pub lease: Millis,
    /// How long the server renews; none without bound.
    pub bound: Option<RenewalBound>,
    /// When it renews next.
    pub next: Renewal,
}

/// How long a hold is renewed, by the command that tied it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalBound {
    /// When the command ran.
    pub since: SteadyMs,
    /// How long from then on. The time stops while the connection waits, and begins again when that ends.
    pub ms: Millis,
}

impl RenewalBound {
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

    /// Returns true if it is renewed as soon as its session is alive again.
    pub fn is_paused(&self) -> bool {
        matches!(self.next, Renewal::Paused)
    }
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy)]
pub enum Renewal {
    /// At this time, or as soon after it as the server accepts the change.
    At(SteadyMs),
    /// As soon as its session is alive again.
    Paused,
    /// Never again: its bound has passed, or the hold has reached `max-hold-ms`. It stays tied.
    Stopped,
}

/// Why a session has lost a hold, other than by a command that named its token.
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
    /// Another party has the hold now, or nobody renews it any longer.
    Taken,
    /// It was released, by a command that did not name its token.
    Released,
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
        }
    }
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
        self.whose.hold_ref()
    }

    /// Returns why the hold is lost: its lease is over, or else what has happened.
    pub fn loss(&self, why: Loss, now: WallMs) -> Loss {
        if self.end <= now {
            Loss::Expired
        } else {
            why
        }
    }

    /// Returns until when a program may believe in the hold; `confirms`: only what replicas have confirmed counts.
    pub(crate) fn believed(&self, confirms: bool) -> Option<WallMs> {
        if confirms {
            self.confirmed
        } else {
            Some(self.end)
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
    // By the ends of their leases.
    by_end: BTreeSet<(WallMs, TieId)>,
    // By the ends that replicas have confirmed, where they confirm any.
    by_confirmed: BTreeSet<(WallMs, TieId)>,
    // Holds whose renewal came due while their session was not alive.
    paused: BTreeSet<TieId>,
    // Of a connection: whether it is blocked by a request, and when it last was.
    waits: bool,
    waited: SteadyMs,
}

impl Bundle {
    /// Enters a hold into the orders.
    fn order(&mut self, renewals: &mut Renewals, id: TieId, tie: &mut Tie) {
        tie.young = false;
        self.by_end.insert((tie.end, id));
        self.by_confirmed.extend(tie.confirmed.map(|end| (end, id)));
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
            Renewal::At(at) => {
                renewals.insert((at, id));
            }
            Renewal::Paused => {
                self.paused.insert(id);
            }
            Renewal::Stopped => {}
        }
    }

    /// Puts a hold of it in its place by the end of its lease.
    fn set_end(&mut self, tie: &mut Tie, id: TieId, end: WallMs) {
        if tie.young {
            tie.end = end;
        } else if tie.end != end {
            self.by_end.remove(&(tie.end, id));
            tie.end = end;
            self.by_end.insert((end, id));
        }
    }

    /// Enters until when replicas have confirmed a hold, in place of what was known.
    fn confirm(&mut self, tie: &mut Tie, id: TieId, end: Option<WallMs>) {
        let before = std::mem::replace(&mut tie.confirmed, end);
        if tie.young {
            return;
        }
        if let Some(before) = before {
            self.by_confirmed.remove(&(before, id));
        }
        self.by_confirmed.extend(end.map(|end| (end, id)));
    }

    /// Removes when a hold is renewed next.
    fn take_out(&mut self, renewals: &mut Renewals, id: TieId, next: Renewal) {
        match next {
            Renewal::At(at) => {
                renewals.remove(&(at, id));
            }
            Renewal::Paused => {
                self.paused.remove(&id);
            }
            Renewal::Stopped => {}
        }
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
    // Holds that were paused until their session was alive again, and are to be renewed.
    resumed: Vec<BTreeSet<TieId>>,
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
        let bundle = self.by_party.get(&party)?;
        debug_assert!(bundle.young.is_empty(), "not all its holds are in order");
        Some(bundle)
    }

    /// Returns the tie with this number.
    pub fn get(&self, id: TieId) -> Option<&Tie> {
        self.by_id.get(&id).map(|tie| &**tie)
    }

    /// Finds the tie of a lock's hold. No lock has two holds under one token, so the token identifies the hold without its owner.
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

    /// Ties a hold that has no tie. Returns the tie's number.
    pub fn tie(&mut self, token: Token, mut tie: Box<Tie>, now: SteadyMs) -> TieId {
        self.ephemeral += usize::from(tie.ephemeral);
        self.autos += usize::from(tie.renews());
        let id = self.number(&tie, token);
        let bundle = self.by_party.entry(tie.party).or_default();
        bundle.count += 1;
        tie.young = tie.may_be_young(now);
        if tie.young {
            if bundle.young.is_empty() {
                self.maturing.push_back((now.after(YOUNG_MS), tie.party));
            }
            bundle.young.push_back(id);
            if bundle.young.len() > MOST_YOUNG {
                bundle.order_oldest(tie.party, &mut self.renewals, &mut self.by_id);
            }
        } else {
            bundle.order(&mut self.renewals, id, &mut tie);
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

    /// Removes the tie of a hold.
    pub fn untie(&mut self, id: TieId) -> Option<Box<Tie>> {
        let tie = self.by_id.remove(&id)?;
        if id.twin > 0 {
            self.twins.remove(&HoldId::new(tie.whose(), id.token));
        }
        self.ephemeral -= usize::from(tie.ephemeral);
        self.autos -= usize::from(tie.renews());
        if let Some(bundle) = self.by_party.get_mut(&tie.party) {
            bundle.count -= 1;
            if tie.young {
                return Some(tie);
            }
            bundle.by_end.remove(&(tie.end, id));
            if let Some(end) = tie.confirmed {
                bundle.by_confirmed.remove(&(end, id));
            }
            if let Some(auto) = tie.auto {
                bundle.take_out(&mut self.renewals, id, auto.next);
            }
        }
        Some(tie)
    }

    /// Enters the newest holds of a party into its orders, which whoever reads them needs. Returns how many it looked at.
    pub fn order_all(&mut self, party: Party) -> usize {
        let Some(bundle) = self.by_party.get_mut(&party) else {
            return 0;
        };
        let young = bundle.young.len();
        while bundle.order_oldest(party, &mut self.renewals, &mut self.by_id) {}
        bundle.young = VecDeque::new();
        young
    }

    /// Removes the tie of this owner's hold.
    pub fn untie_hold(&mut self, whose: HoldRef, token: Token) -> Option<Box<Tie>> {
        self.untie(self.find_hold(whose, token)?)
    }

    /// Returns true if a hold was paused, and is to be renewed because its session is alive again.
    pub fn is_resumed(&self, id: TieId) -> bool {
        self.resumed.iter().any(|holds| holds.contains(&id))
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
            matured += 1 + self.order_all(party);
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
        let Some(bundle) = self.by_party.get_mut(&tie.party) else {
            return broken!("a hold is tied to a party that is known");
        };
        self.autos -= usize::from(tie.renews());
        if tie.young {
            bundle.order(&mut self.renewals, id, tie);
        }
        bundle.set_end(tie, id, end);
        if let Some(auto) = &mut tie.auto {
            let before = std::mem::replace(&mut auto.next, next);
            bundle.take_out(&mut self.renewals, id, before);
            bundle.enter(&mut self.renewals, id, next);
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
        if let Some(bundle) = self.by_party.get_mut(&tie.party) {
            bundle.set_end(tie, id, end);
        }
    }

    /// Returns true if a hold's bound has passed. Its time stops while the connection waits, and begins again when that ends.
    pub fn is_over(&self, tie: &Tie, now: SteadyMs) -> bool {
        let bound = tie.auto.and_then(|auto| auto.bound);
        let bundle = self.by_party.get(&tie.party).filter(|bundle| !bundle.waits);
        bound
            .zip(bundle)
            .is_some_and(|(bound, bundle)| bound.end(bundle.waited) <= now)
    }

    /// Returns the earliest end of a lease of a party; none if nothing is tied to it.
    pub fn first_end(&self, party: Party) -> Option<WallMs> {
        let first = self.ordered(party)?.by_end.first();
        first.map(|(end, _)| *end)
    }

    /// Takes out a hold that is to be renewed now: its renewal is due, or its session is alive again.
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
        let first = self.ordered(party)?.by_end.first();
        let ended = first.filter(|(end, _)| *end <= now);
        ended.map(|(_, id)| *id)
    }

    /// Notes that a connection begins to wait for a request, or no longer waits.
    pub fn set_waiting(&mut self, client: ClientId, waits: bool, now: SteadyMs) {
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
        let first = self.ordered(party)?.by_confirmed.first();
        first.map(|(end, _)| *end)
    }

    /// Sets until when replicas have confirmed a hold; none while its grant waits for that.
    pub fn set_confirmed(&mut self, id: TieId, end: Option<WallMs>) {
        let Some(tie) = self.by_id.get_mut(&id) else {
            return;
        };
        if let Some(bundle) = self.by_party.get_mut(&tie.party) {
            bundle.confirm(tie, id, end);
        }
    }

    /// Counts on confirmations from now on: of no hold of a session is any known.
    pub fn begin_to_confirm(&mut self) {
        for (id, tie) in &mut self.by_id {
            if let Party::Session(_) = tie.party {
                if let Some(bundle) = self.by_party.get_mut(&tie.party) {
                    bundle.confirm(tie, *id, Some(WallMs(0)));
                }
            }
        }
    }

    /// Resumes the renewals of a session that is alive again.
    pub fn resume(&mut self, party: Party) {
        if let Some(bundle) = self.by_party.get_mut(&party) {
            if !bundle.paused.is_empty() {
                self.resumed.push(std::mem::take(&mut bundle.paused));
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
        let holds = &self.ordered(party)?.by_end;
        let after = after.and_then(|id| Some((self.get(id)?.end, id)));
        let next = match after {
            None => holds.first(),
            Some(after) => holds.range((Excluded(after), Unbounded)).next(),
        };
        next.map(|(_, id)| *id)
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
