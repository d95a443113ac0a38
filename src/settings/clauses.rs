//! The clauses of the rule for confirmations (`docs/protocol.md`) that can be taken away. In a release all of them stand.
//!
//! A build with the feature `planted` lacks the one that the environment names in `DLOCK_WITHOUT`. `make schedules` plays with such
//! builds what happens then: two owners.

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("a release has all clauses");

/// A clause. The name that stands for its absence is in `protocol/src/settings.rs`, and in the schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clause {
    /// Half of the replicas, rounded up, confirm an answer: `one-less`.
    HalfConfirm,
    /// A replica that joined by a full resynchronisation counts later: `at-once`.
    FullCountsLate,
    /// Also at a server that was never promoted: `promotion-only`.
    WhoeverServes,
    /// A full resynchronisation is announced in the stream: `no-word`.
    FullAnnounced,
    /// A primary's start is: `start-untold`.
    StartAnnounced,
    /// No lease is longer than the quarantine: `short-quarantine`.
    LeaseWithinQuarantine,
    /// A server is closed after its start: `open-after-start`.
    ClosedAfterStart,
    /// A closed server renews nothing: `closed-renews`.
    ClosedRenewsNothing,
    /// A confirmation is what a replica has acknowledged: `sent`.
    Acknowledged,
    /// A hold that has ended is not confirmed: `ended`.
    EndedNotConfirmed,
    /// A replica serves no replicas: `chains`.
    ServesNone,
    /// It refuses them before it sends anything: `chains-ended-later`.
    RefusesAtOnce,
}

/// Returns true if this clause stands.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn stands(_: Clause) -> bool {
    true
}

/// Notes the server's role.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn note_role(_primary: bool) {}

/// Returns true if this server was promoted.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn promoted() -> bool {
    true
}

#[cfg(feature = "planted")]
pub(crate) use planted::{note_role, promoted, stands};

#[cfg(feature = "planted")]
mod planted {
    use super::Clause;
    use crate::ffi::log;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::OnceLock;

    /// The environment's word for the clause that does not stand.
    const WITHOUT: &str = "DLOCK_WITHOUT";

    const NAMES: [(&str, Clause); 12] = [
        ("one-less", Clause::HalfConfirm),
        ("at-once", Clause::FullCountsLate),
        ("promotion-only", Clause::WhoeverServes),
        ("no-word", Clause::FullAnnounced),
        ("start-untold", Clause::StartAnnounced),
        ("short-quarantine", Clause::LeaseWithinQuarantine),
        ("open-after-start", Clause::ClosedAfterStart),
        ("closed-renews", Clause::ClosedRenewsNothing),
        ("sent", Clause::Acknowledged),
        ("ended", Clause::EndedNotConfirmed),
        ("chains", Clause::ServesNone),
        ("chains-ended-later", Clause::RefusesAtOnce),
    ];

    /// Returns true if this clause stands.
    pub(crate) fn stands(clause: Clause) -> bool {
        static ABSENT: OnceLock<Option<Clause>> = OnceLock::new();
        let absent = ABSENT.get_or_init(|| {
            let name = std::env::var(WITHOUT).ok()?;
            let found = NAMES.iter().find(|(known, _)| *known == name);
            log::warning(&format!("planted: without {name}: {found:?}"));
            found.map(|(_, clause)| *clause)
        });
        *absent != Some(clause)
    }

    static FOLLOWED: AtomicBool = AtomicBool::new(false);
    static PROMOTED: AtomicBool = AtomicBool::new(false);

    /// Notes the server's role.
    pub(crate) fn note_role(primary: bool) {
        let followed = FOLLOWED.swap(!primary, Ordering::Relaxed);
        PROMOTED.fetch_or(primary && followed, Ordering::Relaxed);
    }

    /// Returns true if this server was promoted.
    pub(crate) fn promoted() -> bool {
        PROMOTED.load(Ordering::Relaxed)
    }
}
