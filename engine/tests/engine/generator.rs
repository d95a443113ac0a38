//! Random commands, as lines of a [`script`](crate::script).

use crate::random::Random;
use dlock_engine::Millis;

/// The bounds of random requests.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Whether requests have other limits than 1.
    pub limits: bool,
    pub lease: Millis,
    pub block: Millis,
    pub claim: Millis,
    /// Whether the server renews holds.
    pub auto: bool,
    /// Whether it renews them from the grant on, and for a limited time.
    pub bounded: bool,
}

impl Wishes {
    /// Returns the words of ACQUIRE, FAIRACQUIRE or MACQUIRE. `may_wait` is false for a script.
    pub fn request(
        &self,
        random: &mut Random,
        verb: &str,
        locks: &str,
        owner: &str,
        may_wait: bool,
    ) -> String {
        let lease = 1 + random.below(self.lease);
        let mut words = format!("{verb} {locks} {owner} {lease}");
        let say = |words: &mut String, chance: bool, option: String| {
            if chance {
                words.push(' ');
                words.push_str(&option);
            }
        };
        let block = if random.chance(30) {
            0
        } else {
            random.below(self.block)
        };
        say(&mut words, random.chance(70), format!("BLOCK {block}"));
        let claim = 1 + random.below(self.claim);
        say(
            &mut words,
            verb == "FAIRACQUIRE" && random.chance(40),
            format!("CLAIM {claim}"),
        );
        let holds = 1 + random.below(3);
        say(&mut words, random.chance(20), format!("HOLDS {holds}"));
        say(
            &mut words,
            may_wait && random.chance(25),
            "EPHEMERAL".into(),
        );
        let auto = 1 + random.below(3_000);
        let bounded = self.bounded && may_wait && random.chance(40);
        say(&mut words, bounded, format!("AUTO {auto}"));
        let limit = self.share(random);
        say(&mut words, self.limits && random.chance(70), limit);
        words
    }

    /// Returns the option for a random limit.
    pub fn limit(&self, random: &mut Random) -> String {
        match random.below(4) {
            0 => "LIMIT 1".into(),
            1 => format!("LIMIT {}", 2 + random.below(3)),
            _ => "SHARED".into(),
        }
    }

    /// Returns the options for a random limit and a number of its permits.
    fn share(&self, random: &mut Random) -> String {
        let limit = self.limit(random);
        let most = limit.strip_prefix("LIMIT ").and_then(|n| n.parse().ok());
        match most.filter(|_| random.chance(60)) {
            Some(most) => format!("{limit} PERMITS {}", 1 + random.below(most)),
            None => limit,
        }
    }

    /// Returns the words of a command that is no request for locks.
    pub fn other(
        &self,
        random: &mut Random,
        verb: &str,
        locks: &str,
        owner: &str,
        may_wait: bool,
    ) -> String {
        let lease = 1 + random.below(self.lease);
        match verb {
            "RENEW" | "MRENEW" => {
                let bound = match self.bounded && random.chance(50) {
                    true => 1 + random.below(3_000),
                    false => 0,
                };
                let tie = match random.below(6) {
                    0 if may_wait => " EPHEMERAL".into(),
                    1..=2 if may_wait && self.auto => format!(" AUTO {bound}"),
                    3 if may_wait && self.auto => format!(" EPHEMERAL AUTO {bound}"),
                    _ => String::new(),
                };
                format!("{verb} {locks} {owner} {lease}{tie}")
            }
            "RELEASE" if random.chance(40) => {
                format!("{verb} {locks} {owner} HOLDS {}", random.below(3))
            }
            "DOWNGRADE" => format!("{verb} {locks} {owner} {}", self.limit(random)),
            "FORCERELEASE" if random.chance(50) => format!("{verb} {locks}"),
            _ => format!("{verb} {locks} {owner}"),
        }
    }
}

/// Returns some of these keys, in any order, as MACQUIRE names them.
pub fn some_of(random: &mut Random, keys: &[&str]) -> String {
    let mut left = keys.to_vec();
    let count = 1 + random.below(keys.len() as u64) as usize;
    let chosen: Vec<&str> = (0..count)
        .map(|_| left.remove(random.below(left.len() as u64) as usize))
        .collect();
    format!("{count} {}", chosen.join(" "))
}
