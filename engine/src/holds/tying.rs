//! Tying holds to parties, and untying them: by commands, by the end of a hold, by the return of an undelivered grant.

use super::identity::{HoldId, HoldKey};
use super::ties::{Auto, Loss, Renewal, RenewalBound, Tie, TieId, Ties};
use super::HoldTable;
use crate::lock::End;
use crate::types::{
    ClientId, HoldRef, Millis, NameRef, Now, Party, SessionNo, SteadyMs, Terms, Token, WallMs,
};

/// The shortest lease that the server renews by itself.
pub const SHORTEST_AUTO_LEASE_MS: Millis = 1_000;

/// How a command ties a hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct TieRequest {
    /// The connection.
    pub client: ClientId,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    /// Whether the server renews the hold, and for how long (0: without bound).
    pub auto: Option<Millis>,
    /// The session that the hold belongs to, instead of the connection.
    pub session: Option<SessionNo>,
}

impl TieRequest {
    /// Returns true if it ties.
    pub fn ties(&self) -> bool {
        self.ephemeral || self.auto.is_some() || self.session.is_some()
    }

    /// Returns the party that the request names. A hold may be tied to the session by another number (see `tie_to_session`).
    fn party(&self) -> Party {
        match self.session {
            Some(session) => Party::Session(session),
            None => Party::Connection(self.client),
        }
    }

    /// Returns how the server renews the hold of this token with this lease, if it does.
    fn renewals(&self, token: Token, lease: Millis, now: Now) -> Option<Auto> {
        let auto = self.session.map_or(self.auto, |_| Some(0));
        auto.map(|ms| Auto {
            lease,
            bound: (ms > 0).then(|| RenewalBound {
                since: now.steady(),
                ms,
            }),
            next: Renewal::At(next_renewal(token, lease, now)),
        })
    }
}

impl HoldTable {
    /// Ties a granted hold to the party that asks. A tie to the same connection keeps `EPHEMERAL`, and its `AUTO` unless the request
    /// has one. A tie to another party ends, and its session learns of that.
    // Not inlined: that would lengthen the plain grant.
    #[inline(never)]
    pub fn tie_granted(
        &mut self,
        whose: HoldRef,
        token: Token,
        end: WallMs,
        terms: &Terms,
        now: Now,
    ) {
        let how = TieRequest {
            client: terms.client,
            ephemeral: terms.ephemeral,
            auto: terms.auto.map(|ms| Millis::from(ms.get())),
            session: terms.session,
        };
        if how.session.is_some() {
            return self.tie_to_session(whose, token, end, terms.lease, &how, now);
        }
        let before = self.take_tie(whose, token, end);
        let (ephemeral, mut auto) = match &before {
            Some(tie) if tie.party == how.party() => (tie.ephemeral, tie.auto),
            _ => (false, None),
        };
        if how.auto.is_some() {
            auto = how.renewals(token, terms.lease, now);
        }
        let tie = Box::new(Tie {
            party: how.party(),
            whose: HoldKey::new(whose),
            ephemeral: ephemeral || how.ephemeral,
            auto,
            end,
            row: 0,
            untold: false,
            confirmed: None,
            young: false,
        });
        self.replace_tie(token, before, Some(tie), now);
    }

    /// Ties a hold to a session. Its renewals become no shorter.
    fn tie_to_session(
        &mut self,
        whose: HoldRef,
        token: Token,
        end: WallMs,
        lease: Millis,
        how: &TieRequest,
        now: Now,
    ) {
        let session = how.session.and_then(|no| self.sessions.get(no));
        let party = session.map_or(how.party(), |session| Party::Session(session.holds));
        let before = self.take_tie(whose, token, end);
        let longest = before.as_ref().and_then(|tie| tie.auto);
        let lease = lease.max(longest.map_or(SHORTEST_AUTO_LEASE_MS, |auto| auto.lease));
        let stays = before.as_ref().filter(|tie| tie.party == party);
        let row = stays.map_or(0, |tie| tie.row);
        let tie = Box::new(Tie {
            party,
            whose: HoldKey::new(whose),
            ephemeral: false,
            auto: how.renewals(token, lease, now),
            end,
            row,
            untold: stays.is_none_or(|tie| tie.untold) && self.sessions.confirms,
            confirmed: match stays {
                Some(tie) => tie.confirmed,
                None => self.sessions.confirms.then_some(WallMs(0)),
            },
            young: false,
        });
        self.replace_tie(token, before, Some(tie), now);
    }

    /// Ties a renewed hold: the last command that ties it decides. `EPHEMERAL` stays if the renewal ties nothing, or comes from the
    /// connection that set it. The server's own renewals end unless the renewal asks for them.
    pub fn tie_renewed(
        &mut self,
        whose: HoldRef,
        token: Token,
        end: WallMs,
        lease: Millis,
        how: &TieRequest,
        now: Now,
    ) {
        if how.session.is_some() {
            return self.tie_to_session(whose, token, end, lease, how, now);
        }
        let asked = how.ties();
        let before = self.take_tie(whose, token, end);
        if !asked && before.is_none() {
            return;
        }
        let stays = before
            .as_ref()
            .filter(|tie| tie.ephemeral && (!asked || tie.party == how.party()));
        let ephemeral = how.ephemeral || stays.is_some();
        let tie = (ephemeral || how.auto.is_some()).then(|| {
            Box::new(Tie {
                party: stays.map_or(how.party(), |tie| tie.party),
                whose: HoldKey::new(whose),
                ephemeral,
                auto: how.renewals(token, lease, now),
                end,
                row: 0,
                untold: false,
                confirmed: None,
                young: false,
            })
        });
        self.replace_tie(token, before, tie, now);
    }

    /// Takes out the tie of a hold, and sets its end to `end`; none if the hold is not tied.
    fn take_tie(&mut self, whose: HoldRef, token: Token, end: WallMs) -> Option<Box<Tie>> {
        let mut tie = self.ties.untie_hold(whose, token)?;
        tie.end = end;
        tie.confirmed = tie.confirmed.map(|confirmed| confirmed.min(end));
        Some(tie)
    }

    /// Replaces a tie that was removed. A session that had it learns of the loss.
    fn replace_tie(
        &mut self,
        token: Token,
        before: Option<Box<Tie>>,
        tie: Option<Box<Tie>>,
        now: Now,
    ) {
        let mut stays = false;
        if let Some(before) = before {
            match &tie {
                Some(tie) if tie.party == before.party => stays = true,
                _ => self.sessions.hold_lost(token, &before, Loss::Taken),
            }
        }
        let Some(tie) = tie else {
            return;
        };
        let (party, row) = (tie.party, tie.row);
        let id = self.ties.tie(token, tie, now.steady());
        if !stays {
            self.sessions.hold_came(party, id, &mut self.ties);
        } else if row > 0 {
            self.sessions.renumber(party, row, id);
        }
    }

    /// Notes that replicas have confirmed a hold until `end`, and reports it to its session if that does not know of it; `anew`: even
    /// if it does.
    pub(crate) fn tell_confirmed(&mut self, whose: HoldRef, token: Token, end: WallMs, anew: bool) {
        self.confirm_end(whose, token, end);
        let Some(id) = self.ties.find_hold(whose, token) else {
            return;
        };
        let Some(tie) = self.ties.get(id) else {
            return;
        };
        if anew || tie.untold {
            self.sessions.forget_hold(tie);
            self.sessions
                .confirmed(tie.party, id, !anew, &mut self.ties);
        }
    }

    /// Notes that replicas have confirmed a hold until `end`, but no longer than it lasts: a command may have shortened it since.
    pub(crate) fn confirm_end(&mut self, whose: HoldRef, token: Token, end: WallMs) {
        let id = self.ties.find_hold(whose, token);
        let tie = id.and_then(|id| self.ties.get(id));
        let of_session = |tie: &&Tie| matches!(tie.party, Party::Session(_));
        if let Some((id, tie)) = id.zip(tie.filter(of_session)) {
            let end = tie.confirmed.map_or(end, |before| before.max(end));
            let end = end.min(tie.end);
            self.ties.set_confirmed(id, Some(end));
        }
    }

    /// Returns the session that a hold is in.
    pub(crate) fn session_of(&self, whose: HoldRef, token: Token) -> Option<SessionNo> {
        if self.sessions.is_empty() {
            return None;
        }
        let tie = self.ties.of_hold(whose, token)?;
        self.sessions.of_party(tie.party)
    }

    /// Removes the tie of a hold, and reports that to nobody.
    pub fn untie_silently(&mut self, id: TieId) {
        if let Some(tie) = self.ties.untie(id) {
            self.sessions.forget_hold(&tie);
        }
    }

    /// Removes the tie of a hold, which has ended or has left its name, and tells its session. If the lease is over, that is the
    /// reason, whatever has happened to the hold since.
    pub fn lose(&mut self, id: TieId, why: Loss, now: WallMs) {
        let why = self.ties.get(id).map(|tie| tie.loss(why, now));
        if let Some(why) = why {
            self.lose_for(id, why);
        }
    }

    /// Removes the tie of a hold for a reason that is certain. No client knows of a new hold that replicas have not confirmed:
    /// nobody loses it.
    pub fn lose_for(&mut self, id: TieId, why: Loss) {
        let Some(tie) = self.ties.untie(id) else {
            return;
        };
        match self.unconfirmed_grant(tie.whose(), id.token) {
            Some(true) => self.sessions.forget_hold(&tie),
            _ => self.sessions.hold_lost(id.token, &tie, why),
        }
    }

    /// Forgets all ties, all unconfirmed holds and all sessions, after a demotion.
    pub fn forget_all(&mut self) {
        self.unconfirmed.clear();
        self.ties = Ties::default();
        self.sessions.clear();
    }

    /// Returns what replicas have not confirmed of a hold: true if its grant, false if only its prolongation; none if nothing.
    pub fn unconfirmed_grant(&self, whose: HoldRef, token: Token) -> Option<bool> {
        if self.unconfirmed.is_empty() {
            return None;
        }
        self.unconfirmed.get(&HoldId::new(whose, token)).copied()
    }

    /// Removes the tie of a hold that is upgraded, unless its party keeps it: the connection that asks, if it ties, or any
    /// connection, if it does not. A session loses it, under the token that it knows.
    pub fn lose_upgraded(&mut self, whose: HoldRef, token: Token, terms: &Terms) {
        let Some(id) = self.ties.find_hold(whose, token) else {
            return;
        };
        let keeps = |tie: &Tie| match tie.party {
            Party::Connection(_) => !terms.ties() || tie.party == terms.party(),
            Party::Session(_) => false,
        };
        let other = self.ties.get(id).is_some_and(|tie| !keeps(tie));
        if let Some(tie) = other.then(|| self.ties.untie(id)).flatten() {
            self.sessions.hold_lost(token, &tie, Loss::Taken);
        }
    }

    /// Removes the tie of this lock's hold, which ends for this reason. Its session gets the reason that the unlock message gives,
    /// whatever the time is.
    #[inline(never)]
    pub fn lose_at_end(&mut self, name: NameRef, token: Token, end: End) {
        let Some(id) = self.ties.find(name, token) else {
            return;
        };
        let why = match end {
            End::Released => Loss::Released,
            End::Expired => Loss::Expired,
            End::Forced => Loss::Forced,
            End::Removed => Loss::Removed,
            // Its connection has ended, and sessions lose nothing by that.
            End::Closed => return self.untie_silently(id),
        };
        self.lose_for(id, why);
    }

    /// Moves a tie to the hold's new token. It is a connection's: [`HoldTable::lose_upgraded`] has removed one to a session.
    pub fn retie(&mut self, whose: HoldRef, old: Token, new: Token, now: Now) {
        let Some(old) = self.ties.find_hold(whose, old) else {
            return;
        };
        if let Some(tie) = self.ties.untie(old) {
            self.ties.tie(new, tie, now.steady());
        }
    }
}

/// Returns when a hold is renewed next: after a quarter to a third of its lease, so that holds that were taken together are not
/// renewed together for ever.
pub(crate) fn next_renewal(token: Token, lease: Millis, now: Now) -> SteadyMs {
    // Tokens of one moment differ in their low bits only. The multiplication spreads them; its upper bits are mixed best.
    let early = token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let third = lease / 3 - early % (lease / 12 + 1);
    now.steady().after(third.max(1))
}
