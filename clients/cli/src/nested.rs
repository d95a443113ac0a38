//! A `dlock run` in the command of another one, for the same lock: it would wait for what ends only after it.

use crate::hold::Wish;
use crate::server::{field, items, number, Place, BOUND};
use redis::cmd;
use std::env;

/// The variable with the tokens of all runs above a command, the nearest one last. (`DLOCK_LOCK` names the nearest lock, which may be one
/// of another server.)
pub(crate) const TOKENS: &str = "DLOCK_TOKENS";

/// As many holders are looked at.
const MOST: u64 = 5_000;

/// Returns what the variable is for the command of a run with this token.
pub(crate) fn with(token: u64) -> String {
    let above = env::var(TOKENS).unwrap_or_default();
    format!("{above} {token}").trim_start().to_owned()
}

/// Returns whether a run above this process holds the lock, and leaves no room for this wish. A run that may not see that, or that
/// cannot ask, waits.
pub(crate) fn is_for_ever(place: &Place, wish: &Wish) -> bool {
    let above = env::var(TOKENS).unwrap_or_default();
    let above: Vec<u64> = above
        .split(' ')
        .filter_map(|token| token.parse().ok())
        .collect();
    if above.is_empty() {
        return false;
    }
    let mut info = cmd("DLOCK.INFO");
    info.arg(&wish.lock).arg("COUNT").arg(MOST);
    let info = place
        .connect()
        .and_then(|mut link| link.ask_routed(place, &info, BOUND));
    let Ok(info) = info else {
        return false;
    };
    let holders = field(&info, "holders").map(items).unwrap_or_default();
    holders.iter().any(|holder| {
        let of = |name| field(holder, name).and_then(number);
        let is_above = of("token").is_some_and(|token| above.contains(&token));
        is_above && !wish.fits_beside(of("limit").unwrap_or(0), of("permits").unwrap_or(1))
    })
}
