//! A lock over three masters that know nothing of each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{await_until, Ask, Held, Quorum, Server, Vote, PATIENCE};

const LEASE: Duration = Duration::from_secs(600);
const AT_ONCE: Duration = Duration::from_millis(1);

/// So long a master that hangs is waited for.
const BOUND: Duration = Duration::from_millis(300);

fn masters() -> Vec<Server> {
    (0..3).map(|_| Server::start()).collect()
}

fn client(masters: &[Server], owner: &str) -> Quorum {
    let ports: Vec<u16> = masters.iter().map(Server::port).collect();
    // A loaded machine answers in its own time.
    Quorum::new(&ports, owner).with_bound(PATIENCE)
}

#[track_caller]
fn held(vote: Vote) -> Held {
    match vote {
        Vote::Held(held) => held,
        other => panic!("not held: {other:?}"),
    }
}

/// Milliseconds left of the hold at each master.
fn left_ms(masters: &[Server], hold: &Held) -> Vec<Option<u64>> {
    let of_one = |master: &Server| {
        let line = format!("DLOCK.HELD {} {}", hold.lock, hold.owner);
        let hold: Option<(u64, u64, u64)> = master.connection().ask(&line);
        hold.map(|(_, _, left)| left)
    };
    masters.iter().map(of_one).collect()
}

/// Whether an owner of this client holds the lock there or waits for it.
fn is_there(master: &mut Connection, lock: &str, name: &str) -> bool {
    let info: Value = master.ask(&format!("DLOCK.INFO {lock}"));
    format!("{info:?}").contains(name)
}

#[test]
fn the_lock_is_held_at_all_and_given_back_at_all() {
    let masters = masters();
    let mut alice = client(&masters, "alice");
    let hold = held(alice.acquire("k", LEASE, PATIENCE));
    assert_eq!(hold.votes(), 3);
    assert!(left_ms(&masters, &hold).iter().all(Option::is_some));
    alice.release(&hold);
    assert_eq!(left_ms(&masters, &hold), [None, None, None]);
}

/// Milliseconds left at each master: as much as the client believes, at least.
#[track_caller]
fn left_as_believed(masters: &[Server], hold: &Held) -> Vec<u64> {
    let left: Option<Vec<u64>> = left_ms(masters, hold).into_iter().collect();
    let left = left.expect("all masters have granted it");
    let believed = hold.deadline.saturating_duration_since(Instant::now());
    let least = left.iter().min().map(|least| Duration::from_millis(*least));
    assert!(least >= Some(believed), "{left:?} {believed:?}");
    left
}

#[test]
fn no_lease_ends_before_the_client_believes() {
    let masters = masters();
    let mut alice = client(&masters, "alice");
    let mut hold = held(alice.acquire("k", LEASE, PATIENCE));
    let check = |hold: &Held| {
        let left = left_as_believed(&masters, hold);
        // A dead holder's successor at the first finds the others free.
        assert!(left[0] > left[1] && left[0] > left[2], "{left:?}");
    };
    check(&hold);
    assert!(alice.renew(&mut hold, 2 * LEASE));
    assert!(hold.deadline > Instant::now() + LEASE);
    check(&hold);
}

#[test]
fn a_lease_that_the_server_cuts_is_believed_as_cut() {
    let cut = || Server::builder().config("dlock.max-hold-ms", "300000");
    let masters: Vec<Server> = (0..3).map(|_| cut().start()).collect();
    let mut alice = client(&masters, "alice");
    let mut hold = held(alice.acquire("k", LEASE, PATIENCE));
    left_as_believed(&masters, &hold);
    assert!(alice.renew(&mut hold, LEASE));
    left_as_believed(&masters, &hold);
}

#[test]
fn a_majority_is_enough_and_less_is_not() {
    let mut masters = masters();
    let mut alice = client(&masters, "alice");
    masters[0].kill9();
    let mut hold = held(alice.acquire("k", LEASE, PATIENCE));
    assert_eq!(hold.votes(), 2);
    assert!(alice.renew(&mut hold, LEASE));
    masters[2].kill9();
    let before = hold.deadline;
    assert!(!alice.renew(&mut hold, 2 * LEASE));
    assert_eq!(hold.deadline, before);
    // A majority did not agree to a shorter lease, but one has it.
    assert!(!alice.renew(&mut hold, LEASE / 10));
    assert!(hold.deadline < Instant::now() + LEASE / 10);
    alice.release(&hold);
    assert!(matches!(alice.acquire("k", LEASE, AT_ONCE), Vote::Split));
    assert!(!is_there(&mut masters[1].connection(), "k", "alice"));
    masters[1].kill9();
    assert!(matches!(
        alice.acquire("k", LEASE, AT_ONCE),
        Vote::Unreachable
    ));
}

/// Alice has a connection to each master; then one of them stands still, and Carol holds the lock at others. Alice gives up.
/// What Alice has asked for is granted when that master goes on, but to nobody.
#[track_caller]
fn nothing_is_left_at_a_master_that_hangs(hangs: usize, carols: &[usize]) {
    let masters = masters();
    let mut alice = client(&masters, "alice");
    let before = held(alice.acquire("before", LEASE, PATIENCE));
    alice.release(&before);
    for carol in carols {
        let lease = LEASE.as_millis();
        let line = format!("DLOCK.ACQUIRE k carol {lease}");
        masters[*carol].connection().run(&line);
    }
    let master = &masters[hangs];
    master.freeze();
    let vote = alice.with_bound(BOUND).acquire("k", LEASE, AT_ONCE);
    assert!(!matches!(vote, Vote::Held(_)), "{vote:?}");
    master.thaw();
    let mut connection = master.connection();
    await_until("it has read all that Alice has sent", PATIENCE, || {
        let clients: String = connection.ask("CLIENT LIST");
        clients.lines().count() == 1
    });
    await_until("nothing is left there", PATIENCE, || {
        !is_there(&mut connection, "k", "alice")
    });
}

#[test]
fn a_first_master_that_hangs_is_left_when_another_is_busy() {
    nothing_is_left_at_a_master_that_hangs(0, &[1, 2]);
}

#[test]
fn a_first_master_that_hangs_is_left_in_its_queue() {
    nothing_is_left_at_a_master_that_hangs(0, &[0, 1, 2]);
}

#[test]
fn another_master_that_hangs_is_left_after_a_split_vote() {
    nothing_is_left_at_a_master_that_hangs(1, &[2]);
}

/// What the first try has left at a master that is slow gives back nothing of the second's.
#[test]
fn each_try_has_an_owner_of_its_own() {
    let masters = masters();
    let mut alice = client(&masters, "alice");
    let first = held(alice.acquire("k", LEASE, PATIENCE));
    alice.release(&first);
    let second = held(alice.acquire("k", LEASE, PATIENCE));
    alice.release(&first);
    assert!(left_ms(&masters, &second).iter().all(Option::is_some));
}

/// Were it asked first again, the whole wait would be spent on it.
#[test]
fn a_master_that_was_silent_a_moment_ago_is_asked_last() {
    const TRIES: usize = 5;
    const WAIT: Duration = Duration::from_secs(5);
    let masters = masters();
    let ports: Vec<u16> = masters.iter().map(Server::port).collect();
    masters[0].freeze();
    // A loaded machine may let the moment pass, or be silent itself.
    let passed_over = (0..TRIES).any(|_| {
        let mut alice = Quorum::new(&ports, "alice").with_bound(BOUND);
        if let Vote::Held(hold) = alice.acquire("k", LEASE, AT_ONCE) {
            alice.release(&hold);
        }
        let asked = Instant::now();
        let vote = alice.acquire("k", LEASE, WAIT);
        let at_once = asked.elapsed() < WAIT;
        let Vote::Held(hold) = vote else {
            return false;
        };
        alice.release(&hold);
        at_once
    });
    assert!(passed_over);
}

#[test]
fn whoever_comes_second_waits_at_the_first() {
    let masters = masters();
    let (mut alice, mut bob) = (client(&masters, "alice"), client(&masters, "bob"));
    let hold = held(alice.acquire("k", LEASE, PATIENCE));
    assert!(matches!(bob.acquire("k", LEASE, AT_ONCE), Vote::Busy));
    thread::scope(|scope| {
        let waiting = scope.spawn(move || bob.acquire("k", LEASE, PATIENCE));
        let mut first: Connection = masters[0].connection();
        await_until("bob waits", PATIENCE, || is_there(&mut first, "k", "bob"));
        alice.release(&hold);
        let hold = held(waiting.join().expect("no panic"));
        assert_eq!(hold.votes(), 3);
    });
}

/// Were the others not asked by the head of one queue only, or given back last, this would see split votes.
#[test]
fn votes_are_not_split() {
    const CLIENTS: usize = 6;
    const TURNS: usize = 20;
    let masters = masters();
    let (inside, at_most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = client(&masters, &format!("client-{number}"));
            let (inside, at_most) = (&inside, &at_most);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let hold = held(client.acquire("k", LEASE, PATIENCE));
                    let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    at_most.fetch_max(now_inside, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    client.release(&hold);
                }
            });
        }
    });
    assert_eq!(at_most.into_inner(), 1);
}

#[test]
fn a_dead_holder_is_followed_without_a_split_vote() {
    let masters = masters();
    let (mut alice, mut bob) = (client(&masters, "alice"), client(&masters, "bob"));
    let hold = held(alice.acquire("k", Duration::from_secs(5), PATIENCE));
    let next = held(bob.acquire("k", LEASE, PATIENCE));
    assert!(Instant::now() > hold.deadline);
    assert_eq!(next.votes(), 3);
}

/// Alice has the first and the second; the third was away. The first dies and comes back. Does Bob get the first and the
/// third, and with them a majority, while Alice holds?
fn a_master_comes_back(start: impl Fn() -> Server) -> Vote {
    let mut masters: Vec<Server> = (0..3).map(|_| start()).collect();
    // What is measured is not the quarantine of the start.
    for master in &masters {
        master.connection().run("CONFIG SET dlock.quarantine-ms 0");
    }
    masters[2].kill9();
    let mut alice = client(&masters, "alice");
    let hold = held(alice.acquire("k", LEASE, PATIENCE));
    assert_eq!(hold.votes(), 2);
    masters[2].restart();
    masters[2]
        .connection()
        .run("CONFIG SET dlock.quarantine-ms 0");
    masters[0].kill9();
    masters[0].restart();
    let vote = client(&masters, "bob").acquire("k", LEASE, Duration::from_millis(200));
    assert!(Instant::now() < hold.deadline);
    vote
}

#[test]
fn a_master_that_forgets_votes_twice() {
    assert!(matches!(a_master_comes_back(Server::start), Vote::Held(_)));
}

#[test]
fn a_master_with_an_aof_votes_once() {
    let start = || {
        Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .start()
    };
    assert!(matches!(a_master_comes_back(start), Vote::Busy));
}

#[test]
fn a_master_in_quarantine_votes_once() {
    let start = || {
        let builder = Server::builder().module_argument("quarantine-ms");
        builder.module_argument(LEASE.as_millis()).start()
    };
    assert!(matches!(a_master_comes_back(start), Vote::Busy));
}
