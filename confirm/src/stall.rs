//! Stalls of the process (SIGSTOP, a paused machine). After one the server still counts the replicas from before it as good, although
//! another server may have been promoted meanwhile.

/// The stalls of a process. Times are in milliseconds of a clock that never steps.
#[derive(Debug, Default)]
pub struct Stalls {
    // When the process was last seen to run, if it was.
    last_beat: Option<u64>,
    recounted_at: Option<u64>,
}

impl Stalls {
    /// The shortest stall. The server's own timer fires ten times a second.
    const SHORTEST_MS: u64 = 1_000;

    /// How long the server takes after a stall to count its replicas again: it does so once a second.
    const RECOUNT_MS: u64 = 1_100;

    /// Begins with a process that was not seen to run.
    #[must_use]
    pub const fn new() -> Stalls {
        Stalls {
            last_beat: None,
            recounted_at: None,
        }
    }

    fn has_stalled(&self, now: u64) -> bool {
        let silence = self.last_beat.map(|last| now.saturating_sub(last));
        silence.is_some_and(|silence| silence >= Self::SHORTEST_MS)
    }

    /// Notes that the process runs, each time the server's own timer fires. The end of a stall is left to `on_event`.
    pub fn on_beat(&mut self, now: u64) {
        if !self.has_stalled(now) {
            self.last_beat = Some(now);
        }
    }

    /// Notes that an event begins. Returns true if the process has stalled before it.
    pub fn on_event(&mut self, now: u64) -> bool {
        let stalled = self.has_stalled(now);
        self.last_beat = Some(now);
        stalled
    }

    /// Notes that the server, which counts its replicas before it accepts a write, has not counted them since a stall.
    pub fn await_recount(&mut self, now: u64) {
        self.recounted_at = Some(now + Self::RECOUNT_MS);
    }

    /// Returns when the server has counted its replicas again, after the last stall for which that was awaited.
    #[must_use]
    pub fn recounted_at(&self) -> Option<u64> {
        self.recounted_at
    }
}
