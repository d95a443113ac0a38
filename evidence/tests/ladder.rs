//! The ladder (`make ladder`), with small numbers: each step shows its fault, and would notice a failure of DLOCK.

use std::process::{Command, Output};

/// The beginning of each row of the table.
const STEPS: [&str; 10] = [
    "1. The holder is killed",
    "2. Clients are killed at any moment",
    "3. Some work is slower than the lease",
    "4. A client is stopped at any moment",
    "5. All work is slower than the lease",
    "6. The holder is stopped, its renewals too",
    "7. Many want it at once",
    "8. The next in the queue is killed",
    "9. A function takes its caller's lock",
    "10. Two locks, in either order",
];

const PAGE: &str = include_str!("../../docs/ladder.md");

fn climb(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ladder"))
        .args(arguments)
        .output()
        .expect("the ladder can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        STEPS.iter().all(|step| said.contains(step)),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (output, said)
}

#[test]
fn plain_locks_fail_at_each_step_and_dlock_at_none() {
    let (output, said) = climb(&["--quick"]);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("WRONG"), "{said}");
}

/// At each step DLOCK is used wrongly: without EPHEMERAL, by FORCERELEASE, without renewals, …
#[test]
fn each_step_notices_a_failure() {
    let (output, said) = climb(&["--quick", "--planted"]);
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.matches("WRONG").count(), STEPS.len(), "{said}");
}

#[test]
fn the_page_has_every_step() {
    for step in STEPS {
        // Once in the table, once in its explanation.
        assert_eq!(PAGE.matches(step).count(), 2, "{step}");
    }
}
