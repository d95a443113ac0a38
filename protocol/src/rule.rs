//! The behaviour of servers and clients, as switches: a setting is one value of [`Rule`], and a planted fault differs from the
//! right rule by one switch.

/// The replicas whose confirmations a primary counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Every connected replica.
    AtOnce,
    /// A server that was promoted distinguishes partial from full joiners; one that was not counts all.
    SincePromotion,
    /// Every server distinguishes: partial joiners count at once, full ones after the quarantine.
    ByJoining,
}

/// Where a replica's request for a full resynchronisation is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Nowhere.
    None,
    /// In the stream only: a snapshot does not carry it, and a restart forgets it.
    Stream,
    /// In the stream, and it is data from then on: snapshots carry it, and a restart keeps it with the rest.
    Data,
}

/// The reaction of a replica when another server asks it for a resynchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chains {
    /// It serves it.
    Served,
    /// It serves it, and ends the link a little later: events without a tick can happen before.
    EndedLater,
    /// It refuses it.
    Refused,
}

/// Everything that a setting, or a planted fault, can change. Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Replicas that must have confirmed before an answer is believed. 0: answers are sent at once.
    pub confirmations: u8,
    pub counting: Counting,
    pub word: Word,
    /// Whether, after a word, a partial joiner counts when the word's time is over; otherwise a whole quarantine after its
    /// joining.
    pub word_ends: bool,
    pub lease: i16,
    pub quarantine: i16,
    /// How much earlier than its lease a client stops.
    pub allowance: i16,
    /// Whether a primary that starts writes its start as a word, before anything else.
    pub start_is_told: bool,
    /// Whether a server grants nothing for a quarantine after its start.
    pub closed_after_start: bool,
    /// Whether a server grants nothing for a quarantine after the beginning of its own full resynchronisation.
    pub closed_after_full: bool,
    /// Whether a failed full resynchronisation has that quarantine, too.
    pub closed_after_failed_full: bool,
    /// Whether a server grants nothing for a quarantine after its promotion.
    pub closed_after_promotion: bool,
    /// Whether any joiner counts as a full one while a server is closed by its start or its own full resynchronisation.
    pub closed_is_word: bool,
    /// Whether RENEW needs the hold's token while a server is closed.
    pub closed_renews_by_token: bool,
    /// Whether a closed server answers no RENEW, and counts no hold in the `left-ms` of SESSION.
    pub closed_renews_never: bool,
    /// Whether a hold that has ended by the time of its confirmation is not confirmed.
    pub ended_is_not_confirmed: bool,
    /// Whether a joiner counts only for its acknowledgements since it joined.
    pub acknowledged_since: bool,
    /// Whether a joiner counts at once if there is one replica.
    pub alone_counts: bool,
    /// The reaction of a replica to a request for a resynchronisation.
    pub chains: Chains,
    /// Whether a client counts its lease from the sending of the request, not from the answer.
    pub counts_from_sending: bool,
    /// Whether a client that asked for a shorter lease and was not answered believes the earlier end.
    pub believes_earlier: bool,
    /// The server refuses writes with fewer replicas that have acknowledged within `lag`. 0: it never does.
    pub min_replicas: u8,
    pub lag: i16,
}

/// The lease of most requests.
pub const LEASE: i16 = 4;
/// The lease of a renewal that shortens.
pub const SHORT: i16 = 2;
/// The most by which servers' clocks differ, and how much earlier a client stops.
pub const SKEW: i16 = 1;

/// Returns `floor((r + 1) / 2)`: the confirmations for r replicas.
#[must_use]
pub const fn needed(replicas: u8) -> u8 {
    replicas.div_ceil(2)
}

impl Rule {
    /// Returns the rule without any measure for failovers.
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            confirmations: 0,
            counting: Counting::AtOnce,
            word: Word::None,
            word_ends: false,
            lease: LEASE,
            quarantine: 0,
            allowance: SKEW,
            start_is_told: false,
            closed_after_start: false,
            closed_after_full: false,
            closed_after_failed_full: false,
            closed_after_promotion: false,
            closed_is_word: false,
            closed_renews_by_token: false,
            closed_renews_never: false,
            ended_is_not_confirmed: true,
            acknowledged_since: true,
            alone_counts: false,
            chains: Chains::Served,
            counts_from_sending: true,
            believes_earlier: true,
            min_replicas: 0,
            lag: 0,
        }
    }

    /// Returns `dlock.quarantine-ms` alone, longer than the lease by `allowance` ticks.
    #[must_use]
    pub const fn quarantine(allowance: i16) -> Self {
        Self {
            quarantine: LEASE + allowance,
            closed_after_start: true,
            closed_after_promotion: true,
            ..Self::nothing()
        }
    }

    /// Returns the first version of `dlock.replicas`, without the additions of [`Rule::mended`].
    #[must_use]
    pub const fn first(replicas: u8) -> Self {
        Self {
            confirmations: needed(replicas),
            counting: Counting::ByJoining,
            word: Word::Data,
            quarantine: LEASE,
            closed_after_start: true,
            closed_after_full: true,
            closed_after_failed_full: true,
            closed_renews_by_token: true,
            alone_counts: replicas == 1,
            ..Self::nothing()
        }
    }

    /// Returns the present rule: a primary's start is a word as well, and a closed server confirms nothing.
    #[must_use]
    pub const fn mended(replicas: u8) -> Self {
        Self {
            start_is_told: true,
            closed_renews_never: true,
            chains: Chains::Refused,
            ..Self::first(replicas)
        }
    }

    /// Returns the client's own `WAIT n` after each grant and renewal.
    #[must_use]
    pub const fn wait(n: u8) -> Self {
        Self {
            confirmations: n,
            ..Self::nothing()
        }
    }

    /// Returns `min-replicas-to-write n` with a small lag, and a quarantine of the lease and the duration of orderly failovers.
    #[must_use]
    pub const fn min_replicas(n: u8) -> Self {
        Self {
            min_replicas: n,
            lag: 1,
            ..Self::quarantine(2)
        }
    }
}
