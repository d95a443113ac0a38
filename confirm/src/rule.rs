//! The clauses of the rule.

macro_rules! clauses {
    ($($(#[$doc:meta])* $clause:ident, without it $name:literal;)*) => {
        /// The rule as a value: a clause that is `false` is not in force. Outside of tests and of the model all are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Rule {
            $($(#[$doc])* pub $clause: bool,)*
        }

        impl Rule {
            /// The rule with all clauses in force.
            pub const WHOLE: Rule = Rule { $($clause: true),* };

            /// The names that the absence of each clause has, in the model and in the schedules.
            pub const FAULTS: &'static [&'static str] = &[$($name),*];

            /// Returns the rule without the clause whose absence has this name. None if no clause's has.
            #[must_use]
            pub fn without(mut self, fault: &str) -> Option<Rule> {
                match fault {
                    $($name => self.$clause = false,)*
                    _ => return None,
                }
                Some(self)
            }
        }
    };
}

clauses! {
    /// Half of the replicas, rounded up, confirm an answer: with the primary more than half of all servers know of it.
    half_confirm, without it "one-less";
    /// A replica that joined by a full resynchronisation counts after the quarantine: what it confirmed elsewhere, and has
    /// forgotten, has ended by then.
    full_counts_late, without it "at-once";
    /// So it does at every server, not only at one that was promoted.
    whoever_serves, without it "promotion-only";
    /// A full resynchronisation is announced in the stream, and whoever joins within the quarantine after it counts late.
    full_announced, without it "no-word";
    /// The start of a primary is announced as well: what it has forgotten, others may have confirmed.
    start_announced, without it "start-untold";
    /// No lease is longer than the quarantine.
    lease_within_quarantine, without it "short-quarantine";
    /// A primary is closed for the quarantine after its start.
    closed_after_start, without it "open-after-start";
    /// A replica is closed for the quarantine after it began to load: at its start, or by a full resynchronisation.
    closed_after_full, without it "open-after-full";
    /// A closed server renews nothing: it may have lost the end of a hold.
    closed_renews_nothing, without it "closed-renews";
    /// A replica confirms what it has acknowledged, not what was sent to it.
    acknowledged, without it "sent";
    /// A hold that has ended by the time of its confirmation is not confirmed.
    ended_not_confirmed, without it "ended";
    /// A replica serves no replicas: it could announce to nobody that one of them joins by a full resynchronisation.
    serves_none, without it "chains";
    /// It refuses them before it sends anything; to end their links a little later is not enough.
    refuses_at_once, without it "chains-ended-later";
}

impl Rule {
    /// Returns true if an answer is sent that replicas have confirmed. `stands`: whether its promises still stand.
    #[must_use]
    pub fn sends(&self, stands: bool) -> bool {
        stands || !self.ended_not_confirmed
    }

    /// Returns the offset that `needed` of these replicas have confirmed, each of which has acknowledged one of these offsets.
    #[must_use]
    pub fn confirmed(&self, acknowledged: &mut [u64], needed: u32) -> u64 {
        let Some(below) = (needed as usize).checked_sub(1) else {
            return u64::MAX;
        };
        acknowledged.sort_unstable_by(|one, other| other.cmp(one));
        match acknowledged.get(below) {
            None => 0,
            Some(_) if !self.acknowledged => u64::MAX,
            Some(offset) => *offset,
        }
    }
}
