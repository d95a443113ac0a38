//! Tying holds to connections, and untying them: by commands, by the end of a hold, by the return of an undelivered grant.

use super::identity::{HoldId, HoldKey};
use super::ties::{Auto, Bound, Loss, Renewal, Tie, TieId, Ties};
use super::HoldTable;
use crate::lock::End;
use crate::types::{ClientId, HoldRef, Millis, NameRef, Now, SteadyMs, Terms, Token, WallMs};

/// The shortest lease that the server renews by itself.
pub const SHORTEST_AUTO_LEASE_MS: Millis = 1_000;

/// How a command ties a hold to its connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct TieRequest {
    /// The connection.
    pub client: ClientId,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    /// Whether the server renews the hold, and for how long (0: without bound).
    pub auto: Option<Millis>,
}

impl TieRequest {
    /// Returns how the server renews the hold of this token with this lease, if it does.
    fn renewals(&self, ties: &Ties, token: Token, lease: Millis, now: Now) -> Option<Auto> {
        self.auto.map(|ms| Auto {
            lease,
            bound: (ms > 0).then(|| Bound {
                since: now.steady(),
                ms,
            }),
            heartbeats: ties.heartbeats(self.client),
            next: Renewal::At(next_renewal(token, lease, now)),
        })
    }
}

impl HoldTable {
    /// Ties a granted hold to the connection that asks. A tie to that connection keeps what it has; a tie to another ends.
    // Not cold, as what follows is: a grant that ties runs through it. Not within the plain grant either, which it would lengthen.
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
        };
        let before = self.ties.untie_hold(whose, token);
        let (ephemeral, mut auto) = match &before {
            Some(tie) if tie.client == how.client => (tie.ephemeral, tie.auto),
            _ => (false, None),
        };
        if how.auto.is_some() {
            auto = how.renewals(&self.ties, token, terms.lease, now);
        }
        let tie = Box::new(Tie {
            client: how.client,
            whose: HoldKey::new(whose),
            ephemeral: ephemeral || how.ephemeral,
            auto,
            end,
        });
        self.replace_tie(token, before, Some(tie));
    }

    /// Ties a renewed hold: the last command that ties it decides, and only `EPHEMERAL` of the same connection stays. A renewal
    /// without `EPHEMERAL` and `AUTO` ends the server's own renewals.
    pub fn tie_renewed(
        &mut self,
        whose: HoldRef,
        token: Token,
        end: WallMs,
        lease: Millis,
        how: &TieRequest,
        now: Now,
    ) {
        let asked = how.ephemeral || how.auto.is_some();
        let before = self.ties.untie_hold(whose, token);
        if !asked && before.is_none() {
            return;
        }
        let stays = before
            .as_ref()
            .filter(|tie| tie.ephemeral && (!asked || tie.client == how.client));
        let ephemeral = how.ephemeral || stays.is_some();
        let tie = (ephemeral || how.auto.is_some()).then(|| {
            Box::new(Tie {
                client: stays.map_or(how.client, |tie| tie.client),
                whose: HoldKey::new(whose),
                ephemeral,
                auto: how.renewals(&self.ties, token, lease, now),
                end,
            })
        });
        self.replace_tie(token, before, tie);
    }

    /// Replaces a tie that was removed. `DLOCK.KEEP` reports the loss to another connection that had it.
    fn replace_tie(&mut self, token: Token, before: Option<Box<Tie>>, tie: Option<Box<Tie>>) {
        if let Some(before) = before {
            match &tie {
                Some(tie) if tie.client == before.client => {}
                Some(_) => self.ties.revoke(token, &before, Loss::Taken),
                None => self.ties.lose(token, &before, Loss::Taken),
            }
        }
        if let Some(tie) = tie {
            self.ties.tie(token, tie);
        }
    }

    /// Unties a hold, which has ended or has left its name, and records the loss. If the lease is over, that is the reason,
    /// whatever has happened to the hold since.
    pub fn lose(&mut self, id: TieId, why: Loss, now: WallMs) {
        let why = self.ties.get(id).map(|tie| tie.loss(why, now));
        if let Some(why) = why {
            self.lose_as(id, why);
        }
    }

    /// Records a loss whose reason is certain. No client knows of a new hold that replicas have not confirmed: nobody loses it.
    pub fn lose_as(&mut self, id: TieId, why: Loss) {
        let Some(tie) = self.ties.untie(id) else {
            return;
        };
        if self.is_unconfirmed(tie.whose(), id.token) != Some(true) {
            self.ties.lose(id.token, &tie, why);
        }
    }

    /// Unties everything after a demotion.
    pub fn lose_all(&mut self, now: WallMs) {
        for (hold, is_new) in std::mem::take(&mut self.unconfirmed) {
            if is_new {
                self.ties.untie_hold(hold.whose.as_ref(), hold.token);
            }
        }
        self.ties.lose_all(now);
    }

    /// Returns whether a hold is new that replicas have not confirmed; none if nothing about it is unconfirmed.
    pub fn is_unconfirmed(&self, whose: HoldRef, token: Token) -> Option<bool> {
        if self.unconfirmed.is_empty() {
            return None;
        }
        self.unconfirmed.get(&HoldId::new(whose, token)).copied()
    }

    /// Records the loss of a hold for another connection than this one, under the token that it knows.
    pub fn lose_to(&mut self, whose: HoldRef, token: Token, client: ClientId) {
        let Some(id) = self.ties.find_hold(whose, token) else {
            return;
        };
        let other = self.ties.get(id).is_some_and(|tie| tie.client != client);
        if let Some(tie) = other.then(|| self.ties.untie(id)).flatten() {
            self.ties.revoke(token, &tie, Loss::Taken);
        }
    }

    /// Unties the hold of this lock, which ends for this reason.
    #[inline(never)]
    pub fn lose_by(&mut self, name: NameRef, token: Token, end: End) {
        let Some(id) = self.ties.find(name, token) else {
            return;
        };
        let why = match end {
            End::Released => Loss::Taken,
            End::Expired => Loss::Expired,
            End::Forced => Loss::Forced,
            End::Removed => Loss::Removed,
            // Its connection has ended: there is nobody to report a loss to.
            End::Closed => return drop(self.ties.untie(id)),
        };
        // The reason that the unlock message gives.
        self.lose_as(id, why);
    }

    /// Moves a tie to the hold's new token.
    pub fn retie(&mut self, whose: HoldRef, old: Token, new: Token) {
        let Some(old) = self.ties.find_hold(whose, old) else {
            return;
        };
        if let Some(tie) = self.ties.untie(old) {
            let new = self.ties.tie(new, tie);
            self.ties.resume_as(old, new);
        }
    }
}

/// Returns when a hold is renewed next: after a quarter to a third of its lease, so that holds that were taken together are not
/// renewed together for ever.
pub(crate) fn next_renewal(token: Token, lease: Millis, now: Now) -> SteadyMs {
    // Tokens of one moment follow each other: the low bits spread best.
    let early = token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let third = lease / 3 - early % (lease / 12 + 1);
    now.steady().after(third.max(1))
}
