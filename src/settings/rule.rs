//! The terms of the rule of confirmations at this server. In a release all its clauses are in force.
//!
//! A build with the feature `planted` lacks the clause that the environment names in `DLOCK_WITHOUT`. `make schedules` plays with
//! such builds what happens then: two owners.

use super::config;
use crate::node::gate;
use dlock_confirm::{Rule, Terms};

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("a release has all clauses");

#[cfg(not(feature = "planted"))]
const fn rule() -> Rule {
    Rule::WHOLE
}

#[cfg(feature = "planted")]
fn rule() -> Rule {
    static RULE: std::sync::OnceLock<Rule> = std::sync::OnceLock::new();
    *RULE.get_or_init(|| match std::env::var("DLOCK_WITHOUT") {
        Ok(fault) => {
            let rule = Rule::WHOLE.without(&fault);
            crate::ffi::log::warning(&format!("planted: without {fault}: {rule:?}"));
            rule.unwrap_or(Rule::WHOLE)
        }
        Err(_) => Rule::WHOLE,
    })
}

/// Returns the terms of the rule now: the settings, and the server's role.
pub(crate) fn terms() -> Terms<u64> {
    Terms {
        rule: rule(),
        replicas: config::REPLICAS.amount() as u32,
        quarantine: config::QUARANTINE_MS.amount() as u64,
        primary: gate::primary(),
    }
}
