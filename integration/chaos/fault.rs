//! What is done to the servers.

/// One kind of fault, or of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The primary is killed (SIGKILL), and comes back as a replica when another has taken over.
    Kill,
    /// The replicas hear nothing of the primary for a while; then it is killed.
    LagThenKill,
    /// The primary is stopped (SIGSTOP), and goes on when another has taken over.
    Stop,
    /// The primary is busy for so long that it is replaced (DEBUG SLEEP).
    Stall,
    /// The primary is cut off with half of the clients.
    Partition,
    /// A slot moves key by key (MIGRATE).
    Migrate,
    /// A slot moves in one step (Redis 8.4 and later, Valkey 9 and later).
    MoveAtOnce,
    /// CLUSTER FAILOVER.
    Failover,
    /// CLUSTER FAILOVER FORCE.
    FailoverForce,
    /// CLUSTER FAILOVER TAKEOVER.
    FailoverTakeover,
}

impl Fault {
    /// What Sentinels are for.
    pub const SENTINEL: [Fault; 5] = [
        Fault::Kill,
        Fault::LagThenKill,
        Fault::Stop,
        Fault::Partition,
        Fault::Stall,
    ];

    /// What happens in a cluster.
    pub const CLUSTER: [Fault; 8] = [
        Fault::Migrate,
        Fault::MoveAtOnce,
        Fault::Failover,
        Fault::FailoverForce,
        Fault::FailoverTakeover,
        Fault::Kill,
        Fault::Stop,
        Fault::Partition,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::LagThenKill => "lag, then kill -9",
            Fault::Stop => "SIGSTOP",
            Fault::Stall => "stalled",
            Fault::Partition => "partition",
            Fault::Migrate => "slot moves by MIGRATE",
            Fault::MoveAtOnce => "slot moves in one step",
            Fault::Failover => "CLUSTER FAILOVER",
            Fault::FailoverForce => "CLUSTER FAILOVER FORCE",
            Fault::FailoverTakeover => "CLUSTER FAILOVER TAKEOVER",
        }
    }

    /// Is there a server that is there and does not answer? One that comes back accepts connections before it answers.
    pub fn is_silent(self) -> bool {
        let is_gone = matches!(self, Fault::Stop | Fault::Stall | Fault::Partition);
        is_gone || self.is_deadly()
    }

    /// Does the old primary end before another takes over?
    pub fn is_deadly(self) -> bool {
        matches!(self, Fault::Kill | Fault::LagThenKill)
    }

    /// Can a grant or a place be lost in it?
    pub fn is_lossy(self) -> bool {
        !matches!(self, Fault::Migrate | Fault::MoveAtOnce | Fault::Failover)
    }
}
