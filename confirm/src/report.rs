//! What the log says about replicas: more or fewer are connected than configured, and others were refused.

use crate::links::Terms;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A warning.
    Warning(String),
    /// The end of what a warning was about.
    Notice(String),
}

/// What was said, and when the next line may follow.
#[derive(Debug, Default)]
pub(crate) struct Report {
    count: Count,
    refusals: Backoff,
    // Since the last line about them.
    pub(crate) refused: u64,
}

/// The number of replicas that are connected to a primary, compared with `dlock.replicas`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Count {
    #[default]
    AsConfigured,
    // More; the log has said so.
    More,
    // Fewer, since this time.
    Fewer(u64),
    // Fewer, and the log has said so.
    FewerReported,
}

/// How long fewer replicas must be connected before that is logged: after a failover they come one by one.
const FEWER_MS: u64 = 5_000;

impl Report {
    /// Returns what is to be said now.
    pub(crate) fn lines(&mut self, terms: &Terms, connected: u32, now: u64) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.refused > 0 && self.refusals.reports(now) {
            let refused = std::mem::take(&mut self.refused);
            lines.push(Line::Warning(format!(
                "this server is a replica: with dlock.replicas it serves no replicas of its own ({refused} refused). Have them \
                 follow its primary"
            )));
        }
        lines.extend(self.count(terms, connected, now));
        lines
    }

    /// Returns a line about more or fewer replicas than configured, once as long as it lasts, and about the end of it.
    fn count(&mut self, terms: &Terms, connected: u32, now: u64) -> Option<Line> {
        let configured = terms.replicas;
        let before = self.count;
        self.count = match before {
            _ if !terms.on() || !terms.primary => Count::AsConfigured,
            _ if connected > configured => Count::More,
            _ if connected == configured => Count::AsConfigured,
            Count::Fewer(since) if now >= since + FEWER_MS => Count::FewerReported,
            Count::Fewer(_) | Count::FewerReported => before,
            Count::AsConfigured | Count::More => Count::Fewer(now),
        };
        let what = match self.count {
            after if after == before => return None,
            Count::More => format!(
                "dlock uses {connected} until there are fewer. A replica that does not count can be promoted without the grants \
                 that others have confirmed"
            ),
            Count::FewerReported => {
                "Look for those that are missing: they may be down, or follow a replica of this server, which serves none".into()
            }
            Count::AsConfigured if before == Count::FewerReported && connected == configured => {
                let text = format!("connected replicas: {connected}, as dlock.replicas says");
                return Some(Line::Notice(text));
            }
            _ => return None,
        };
        let counts = format!("connected replicas: {connected}, with dlock.replicas {configured}");
        Some(Line::Warning(format!("{counts}. {what}")))
    }
}

/// Limits log lines about a repeated event: one at once, one a second later, and then after twice as long each time, up to a
/// minute. After a minute of silence it begins again.
#[derive(Debug, Default)]
struct Backoff {
    next: u64,
    pause: u64,
}

impl Backoff {
    const SHORTEST: u64 = 1_000;
    const LONGEST: u64 = 60_000;

    /// Returns true if it is reported now.
    fn reports(&mut self, now: u64) -> bool {
        if now < self.next {
            return false;
        }
        self.pause = if now - self.next > Self::LONGEST {
            Self::SHORTEST
        } else {
            (self.pause * 2).clamp(Self::SHORTEST, Self::LONGEST)
        };
        self.next = now + self.pause;
        true
    }
}
