//! Each clause: what holds with it, and fails without it. Without the second half a test would pass that says nothing of its clause.

use crate::node::{Node, QUARANTINE};
use dlock_confirm::Rule;

/// Checks what a clause is for: it holds with the whole rule, and fails without the clause.
fn needs(fault: &str, holds: impl Fn(Rule) -> bool) {
    let without = Rule::WHOLE.without(fault).expect("a clause");
    assert!(holds(Rule::WHOLE), "the whole rule, {fault}");
    assert!(!holds(without), "without a clause: {fault}");
}

#[test]
fn half_of_the_replicas_rounded_up_confirm() {
    needs("one-less", |rule| {
        let needed = |replicas| Node::primary(rule, replicas).status().needed;
        [1, 2, 3, 4, 5].map(needed) == [1, 1, 2, 2, 3]
    });
}

#[test]
fn one_that_joined_by_a_full_resynchronisation_counts_after_the_quarantine() {
    needs("at-once", |rule| {
        let mut node = Node::primary(rule, 2);
        node.joins_fully(1);
        let at_once = node.counting();
        node.now += QUARANTINE;
        (at_once, node.counting()) == (0, 1)
    });
}

#[test]
fn so_it_does_at_a_server_that_was_never_promoted() {
    needs("promotion-only", |rule| {
        let mut node = Node::primary(rule, 2);
        node.joins_fully(1);
        node.counting() == 0
    });
    let mut promoted = Node::starting(Rule::WHOLE.without("promotion-only").unwrap(), 2, false);
    promoted.terms.primary = true;
    promoted.links.standing.on_role(true);
    promoted.joins_fully(1);
    assert_eq!(promoted.counting(), 0, "at one that was");
}

#[test]
fn whoever_joins_after_a_full_resynchronisation_counts_late() {
    needs("no-word", |rule| {
        let mut node = Node::primary(rule, 2);
        node.joins_fully(1);
        let told = node.links.standing.take_notice(&node.terms);
        node.leaves(1);
        node.joins_partially(1);
        told && node.counting() == 0
    });
    needs("no-word", |rule| {
        let mut replica = Node::starting(rule, 2, false);
        replica.now += 100 * QUARANTINE;
        // Its primary's stream announces one; then it is promoted.
        replica
            .links
            .standing
            .on_full_sync(&replica.terms, replica.now);
        replica.terms.primary = true;
        replica.links.standing.on_role(true);
        replica.joins_partially(1);
        replica.counting() == 0
    });
}

#[test]
fn a_primary_announces_its_start() {
    needs("start-untold", |rule| {
        let mut node = Node::starting(rule, 2, true);
        let told = node.links.standing.take_notice(&node.terms);
        let again = node.links.standing.take_notice(&node.terms);
        node.joins_partially(1);
        (told, again, node.counting()) == (true, false, 0)
    });
}

#[test]
fn no_lease_is_longer_than_the_quarantine() {
    needs("short-quarantine", |rule| {
        let terms = Node::primary(rule, 2).terms;
        [QUARANTINE - 1, QUARANTINE + 1].map(|most| terms.longest_lease(most))
            == [QUARANTINE - 1, QUARANTINE]
    });
}

#[test]
fn a_primary_is_closed_after_its_start() {
    needs("open-after-start", |rule| {
        let mut node = Node::starting(rule, 2, true);
        let at_once = node.grants();
        node.now += QUARANTINE;
        (at_once, node.grants()) == (false, true)
    });
}

#[test]
fn a_replica_is_closed_after_its_own_full_resynchronisation() {
    needs("open-after-full", |rule| {
        let mut node = Node::starting(rule, 2, false);
        node.now += 100 * QUARANTINE;
        node.links.standing.begin(&node.terms, node.now);
        node.terms.primary = true;
        node.links.standing.on_role(true);
        let at_once = node.grants();
        node.now += QUARANTINE;
        (at_once, node.grants()) == (false, true)
    });
}

#[test]
fn a_closed_server_renews_nothing() {
    needs("closed-renews", |rule| {
        let node = Node::starting(rule, 2, true);
        assert!(
            !node.grants(),
            "without the clause it grants nothing either"
        );
        !node.renews()
    });
}

#[test]
fn what_was_sent_is_not_confirmed_before_it_is_acknowledged() {
    needs("sent", |rule| {
        let mut node = Node::primary(rule, 2);
        node.offset = 10;
        node.joins_partially(1);
        node.offset = 20;
        node.read();
        let sent = node.links.confirmed(&node.terms, node.now);
        node.slaves[0].2 = 20;
        node.read();
        (sent, node.links.confirmed(&node.terms, node.now)) == (10, 20)
    });
}

#[test]
fn a_hold_that_has_ended_is_not_confirmed() {
    needs("ended", |rule| rule.sends(true) && !rule.sends(false));
}

#[test]
fn a_replica_serves_no_replicas() {
    needs("chains", |rule| {
        let terms = Node::starting(rule, 2, false).terms;
        terms.refuses_requests() && terms.ends_links()
    });
    needs("chains-ended-later", |rule| {
        let terms = Node::starting(rule, 2, false).terms;
        assert!(terms.ends_links());
        terms.refuses_requests()
    });
    assert!(!Node::primary(Rule::WHOLE, 2).terms.refuses_requests());
    let off = Node::starting(Rule::WHOLE, 0, false).terms;
    assert!(!off.refuses_requests() && !off.ends_links());
}

#[test]
fn without_replicas_nothing_is_closed_and_nobody_confirms() {
    let mut node = Node::starting(Rule::WHOLE, 0, true);
    assert!(node.grants() && node.renews());
    assert_eq!(node.status().needed, 0);
    assert_eq!(node.links.confirmed(&node.terms, node.now), u64::MAX);
    assert!(!node.links.standing.take_notice(&node.terms));
}

#[test]
fn every_clause_has_a_test() {
    let tests = include_str!("clauses.rs");
    for fault in Rule::FAULTS {
        assert!(tests.contains(&format!("needs(\"{fault}\"")), "{fault}");
    }
    assert_eq!(Rule::WHOLE.without("no such clause"), None);
}
