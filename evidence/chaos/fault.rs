//! The faults of the servers.

/// A kind of fault, or of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The primary is killed (SIGKILL), and comes back as a replica when another has taken over.
    Kill,
    /// The primary is killed and restarted in its place before its absence is noticed. It has forgotten everything.
    Restart,
    /// The replicas receive nothing from the primary for a while; then it is killed.
    LagThenKill,
    /// The primary is stopped (SIGSTOP), and resumes when another has taken over.
    Stop,
    /// The primary is busy until it has been replaced (DEBUG SLEEP).
    Stall,
    /// The primary stalls until a replica has been promoted, and no longer: the other replicas still follow it.
    BriefStop,
    /// One replica receives nothing from the primary for a while, and is promoted nevertheless, for its priority.
    WrongChoice,
    /// The primary is cut off with half of the clients.
    Partition,
    /// The primary is cut off with half of the clients and this number of its replicas.
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
    /// Schedule 15 of the model: a replica that has confirmed grants for the old primary asks a replica of the new one for a
    /// copy, and joins the new one.
    ChainedLater,
}

impl Fault {
    /// All faults.
    const ALL: [Fault; 16] = [
        Fault::Kill,
        Fault::Restart,
        Fault::LagThenKill,
        Fault::Stop,
        Fault::Stall,
        Fault::BriefStop,
        Fault::WrongChoice,
        Fault::Partition,
        Fault::PartitionBeside(1),
        Fault::PartitionBeside(2),
        Fault::Migrate,
        Fault::MoveAtOnce,
        Fault::Failover,
        Fault::FailoverForce,
        Fault::FailoverTakeover,
        Fault::ChainedLater,
    ];

    /// Returns the fault of this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.name() == name)
    }

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

    /// Returns true if a server runs and does not answer. One that comes back accepts connections before it answers.
    pub fn is_silent(self) -> bool {
        let is_gone = matches!(self, Fault::Stop | Fault::Stall | Fault::BriefStop);
        is_gone || self.is_cut() || self.is_deadly()
    }

    /// Returns true if the primary is cut off from the servers that replace it.
    pub fn is_cut(self) -> bool {
        matches!(self, Fault::Partition | Fault::PartitionBeside(_))
    }

    /// Returns the number of replicas that stay with a primary that is cut off.
    pub fn beside(self) -> usize {
        match self {
            Fault::PartitionBeside(replicas) => replicas.into(),
            _ => 0,
        }
    }

    /// Returns true if the old primary ends before another takes over.
    pub fn is_deadly(self) -> bool {
        matches!(
            self,
            Fault::Kill | Fault::Restart | Fault::LagThenKill | Fault::WrongChoice
        )
    }

    /// Returns true if another server is primary after it.
    pub fn replaces(self) -> bool {
        !self.moves() && self != Fault::Restart
    }

    /// Returns true if a slot moves, and all servers stay.
    pub fn moves(self) -> bool {
        matches!(self, Fault::Migrate | Fault::MoveAtOnce)
    }

    /// Returns true if it can lose a grant or a place.
    pub fn is_lossy(self) -> bool {
        !self.moves() && self != Fault::Failover
    }
}
