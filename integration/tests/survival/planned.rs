//! Planned failovers. No server tells a module that a promotion has lost nothing, so without `dlock.replicas` there is a quarantine
//! after each; a planned one can do without. With `dlock.replicas` the ways of `docs/cluster.md` keep all holds.

use dlock_harness::{
    assert_sound_log, await_until, planned, Ask, Grant, Sentinel, Server, Watch, PATIENCE,
};

use super::confirmed::Group;

const QUARANTINE_MS: u64 = 600_000;

fn pair() -> (Server, Server) {
    let start = || {
        let builder = Server::builder().module_argument("quarantine-ms");
        builder.module_argument(QUARANTINE_MS).start()
    };
    let (old, new) = (start(), start());
    new.replica_of(&old);
    // Not the quarantine of the start; setting it begins none.
    old.connection().run("CONFIG SET dlock.quarantine-ms 0");
    let line = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
    old.connection().run(&line);
    (old, new)
}

fn hand_over(old: &Server, new: &Server) {
    let line = format!("FAILOVER TO 127.0.0.1 {}", new.port());
    // The primary refuses it until it knows that its replica is ready.
    await_until("a failover is possible", PATIENCE, || {
        old.connection().try_ask(&line).is_ok()
    });
    await_until("the other is primary", PATIENCE, || {
        new.info("replication").text("role") == "master"
            && old.info("replication").text("role") == "slave"
    });
}

#[test]
fn after_a_coordinated_failover_there_is_a_quarantine_as_after_any_other() {
    let (old, new) = pair();
    let (token, _): Grant = old.connection().ask("DLOCK.ACQUIRE k alice 600000");
    hand_over(&old, &new);
    let mut connection = new.connection();
    assert!(connection
        .refusal("DLOCK.ACQUIRE l bob 1000")
        .starts_with("QUARANTINE"));
    let line = format!("DLOCK.RENEW k alice 600000 TOKEN {token}");
    assert_eq!(connection.ask::<u64>(&line), 600_000);
}

#[test]
fn who_plans_a_failover_can_go_without_the_quarantine() {
    let (old, new) = pair();
    let (token, _): Grant = old.connection().ask("DLOCK.ACQUIRE k alice 600000");
    new.connection().run("CONFIG SET dlock.quarantine-ms 0");
    hand_over(&old, &new);
    let mut connection = new.connection();
    let (later, _): Grant = connection.ask("DLOCK.ACQUIRE l bob 1000");
    assert!(later > token);
    let taken: Option<Grant> = connection.ask("DLOCK.ACQUIRE k bob 1000");
    assert_eq!(taken, None);
    let line = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
    connection.run(&line);
    let _: Grant = connection.ask("DLOCK.ACQUIRE m bob 1000");
    // The next unplanned promotion begins one.
    old.wait_in_sync(&new);
    old.promote();
    assert!(old
        .connection()
        .refusal("DLOCK.ACQUIRE n bob 1000")
        .starts_with("QUARANTINE"));
}

/// A group under three Sentinels that know it.
struct Watched {
    group: Group,
    sentinels: Vec<Sentinel>,
}

impl Watched {
    fn start(replicas: usize) -> Watched {
        let group = Group::start(replicas);
        // A replica whose link is made again, or a slow machine, is no fault.
        group.set("ack-timeout-ms", QUARANTINE_MS);
        let watch = Watch {
            port: group.primary.port(),
            quorum: 2,
            down_after_ms: 10_000,
            program: None,
        };
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(&watch)).collect();
        await_until("the Sentinels know all", PATIENCE, || {
            let mut each = sentinels.iter();
            each.all(|sentinel| sentinel.knows() == (2, replicas))
        });
        Watched { group, sentinels }
    }

    /// Returns the server that the Sentinels name.
    fn primary(&self) -> &Server {
        let port = self.sentinels[0].primary();
        let mut all = self.group.all();
        all.find(|server| server.port() == port)
            .expect("one of them")
    }
}

/// The other nodes join what the old primary has written, by a partial resynchronisation, and so grants continue at once. With a
/// full copy nothing would be granted or renewed for ten minutes.
#[test]
fn a_planned_failover_under_sentinel_keeps_all_holds() {
    for replicas in [2, 1] {
        let watched = Watched::start(replicas);
        let old = &watched.group.primary;
        let mut c = old.connection();
        let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
        let (tied, _): Grant = c.ask("DLOCK.ACQUIRE tied bob 600000 AUTO 1000");
        planned::fail_over(old, &watched.sentinels[0]);
        let new = watched.primary();
        await_until("all replicas count", PATIENCE, || {
            let section: String = planned::steadily(new, "INFO dlock");
            section.contains(&format!("dlock_replicas_counting:{replicas}\r"))
        });
        let section: String = planned::steadily(new, "INFO dlock");
        assert!(
            section.contains("dlock_replicas_joined_full:0\r"),
            "{section}"
        );
        for (key, owner, token) in [("k", "alice", token), ("tied", "bob", tied)] {
            let line = format!("DLOCK.RENEW {key} {owner} 600000 TOKEN {token}");
            assert_eq!(planned::steadily::<u64>(new, &line), 600_000);
        }
        let (later, _): Grant = planned::steadily(new, "DLOCK.ACQUIRE other carol 1000");
        assert!(later > tied);
        // The setting that the page changes is as it was.
        let (_, every): (String, u64) =
            planned::steadily(old, "CONFIG GET repl-ping-replica-period");
        assert_eq!(every, 10);
        watched.group.all().for_each(assert_sound_log);
    }
}
