//! What is done to the servers.

/// One kind of fault, or of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The primary is killed (SIGKILL), and comes back as a replica when another has taken over.
    Kill,
    /// The primary is killed, and is started again in its place before anybody has missed it. It has forgotten everything.
    Restart,
    /// The replicas hear nothing of the primary for a while; then it is killed.
    LagThenKill,
    /// The primary is stopped (SIGSTOP), and goes on when another has taken over.
    Stop,
    /// The primary is busy for so long that it is replaced (DEBUG SLEEP).
    Stall,
    /// The primary stands still until a replica has been promoted, and no longer: the other replicas still follow it.
    BriefStop,
    /// One replica hears nothing of the primary for a while, and is promoted all the same, for its priority.
    WrongChoice,
    /// The primary is cut off with half of the clients.
    Partition,
    /// The same with so many of its replicas on its side.
    PartitionBeside(u8),
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
    /// Schedule 15 of the model: a replica that has confirmed grants for the old primary asks a replica of the new one for a copy, and
    /// joins the new one.
    ChainedLater,
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
            Fault::Restart => "kill -9, back in its place",
            Fault::LagThenKill => "lag, then kill -9",
            Fault::Stop => "SIGSTOP",
            Fault::Stall => "stalled",
            Fault::BriefStop => "SIGSTOP until a promotion",
            Fault::WrongChoice => "lag of the preferred replica, then kill -9",
            Fault::Partition => "partition",
            Fault::PartitionBeside(1) => "partition, a replica beside the primary",
            Fault::PartitionBeside(_) => "partition, two replicas beside the primary",
            Fault::Migrate => "slot moves by MIGRATE",
            Fault::MoveAtOnce => "slot moves in one step",
            Fault::Failover => "CLUSTER FAILOVER",
            Fault::FailoverForce => "CLUSTER FAILOVER FORCE",
            Fault::FailoverTakeover => "CLUSTER FAILOVER TAKEOVER",
            Fault::ChainedLater => "a copy from a replica (schedule 15)",
        }
    }

    /// Is there a server that is there and does not answer? One that comes back accepts connections before it answers.
    pub fn is_silent(self) -> bool {
        let is_gone = matches!(self, Fault::Stop | Fault::Stall | Fault::BriefStop);
        is_gone || self.is_cut() || self.is_deadly()
    }

    /// Is the primary cut off from those who replace it?
    pub fn is_cut(self) -> bool {
        matches!(self, Fault::Partition | Fault::PartitionBeside(_))
    }

    /// How many replicas stay with a primary that is cut off.
    pub fn beside(self) -> usize {
        match self {
            Fault::PartitionBeside(replicas) => replicas.into(),
            _ => 0,
        }
    }

    /// Does the old primary end before another takes over?
    pub fn is_deadly(self) -> bool {
        matches!(
            self,
            Fault::Kill | Fault::Restart | Fault::LagThenKill | Fault::WrongChoice
        )
    }

    /// Is another server primary after it?
    pub fn replaces(self) -> bool {
        !matches!(self, Fault::Migrate | Fault::MoveAtOnce | Fault::Restart)
    }

    /// Can a grant or a place be lost in it?
    pub fn is_lossy(self) -> bool {
        !matches!(self, Fault::Migrate | Fault::MoveAtOnce | Fault::Failover)
    }
}
