//! A great many at once: what it costs grows with their number and no faster, and it is done in steps that stop nobody.

use std::time::{Duration, Instant};

use dlock_integration::redis::{cmd, Connection};
use dlock_integration::{Ask, Server};

/// The least of some tries: what else the machine does only ever adds.
fn least(tries: usize, mut once: impl FnMut() -> Duration) -> Duration {
    let tries = (0..tries).map(|_| once());
    tries.min().expect("one try at least")
}

/// How long it takes to take so many locks in one command and to give them back.
fn take_together(c: &mut Connection, count: usize) -> Duration {
    let keys: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    let began = Instant::now();
    for name in ["DLOCK.MACQUIRE", "DLOCK.MRELEASE"] {
        let mut command = cmd(name);
        command.arg(count).arg(&keys).arg("owner");
        c.ask_command::<Vec<u64>>(&command);
    }
    began.elapsed()
}

/// Comparing each key with all others would make eight times as many take some thirty times as long.
#[test]
fn a_key_costs_the_same_among_many() {
    const FEW: usize = 128;
    const TIMES: u32 = 8;
    let server = Server::start();
    let mut c = server.connection();
    // Side by side: what the machine does meanwhile concerns both.
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for _ in 0..10 {
        few = few.min(least(3, || take_together(&mut c, FEW)));
        many = many.min(take_together(&mut c, FEW * TIMES as usize));
    }
    assert!(many < few * TIMES * 2, "{many:?} against {few:?}");
}
