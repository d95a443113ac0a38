//! What is read in INFO.

use crate::node::{Node, QUARANTINE};
use dlock_confirm::Rule;

fn primary() -> Node {
    Node::primary(Rule::WHOLE, 2)
}

#[test]
fn a_partial_joiner_counts_at_once() {
    let mut node = primary();
    node.joins_partially(1);
    let status = node.status();
    assert_eq!((status.counting, status.partial, status.full), (1, 1, 0));
}

#[test]
fn the_only_replica_counts_at_once_however_it_joins() {
    let mut node = Node::primary(Rule::WHOLE, 1);
    node.joins_fully(1);
    assert_eq!(node.counting(), 1);
    node.joins_partially(2);
    assert_eq!(node.counting(), 0, "a second one is connected");
}

/// Others may have confirmed something before, as long as a lease lasts.
#[test]
fn the_only_one_of_fewer_than_before_counts_after_the_quarantine() {
    let mut node = primary();
    node.joins_fully(1);
    node.terms.replicas = 1;
    assert!(node.links.on_setting(&node.terms, node.now));
    assert!(!node.links.on_setting(&node.terms, node.now));
    assert_eq!(node.counting(), 0);
    node.now += QUARANTINE;
    assert_eq!(node.counting(), 1);
}

/// While the setting was 0 nothing was read: the server closes for what is left of the quarantine since it has its data, and those that
/// are connected count late.
#[test]
fn replicas_that_were_there_before_the_setting_count_late() {
    let mut node = Node::starting(Rule::WHOLE, 0, true);
    node.now += QUARANTINE / 2;
    node.partials = 1;
    node.slaves.push((1, "online", 0));
    node.read();
    node.terms.replicas = 2;
    assert!(node.links.on_setting(&node.terms, node.now));
    node.fulls = 1;
    node.read();
    assert_eq!((node.counting(), node.grants()), (0, false));
    node.now += QUARANTINE / 2;
    assert_eq!((node.counting(), node.grants()), (0, true));
    node.now += QUARANTINE / 2;
    assert_eq!(node.counting(), 1);
}

#[test]
fn one_that_is_not_online_does_not_count() {
    let mut node = primary();
    node.fulls += 1;
    node.slaves.push((1, "send_bulk", 0));
    node.read();
    node.now += 10 * QUARANTINE;
    node.read();
    assert_eq!(node.counting(), 0);
    node.is_online(1);
    assert_eq!(
        node.counting(),
        0,
        "the quarantine begins when it is online"
    );
    assert_eq!(
        node.links.next_to_count(node.now),
        Some(node.now + QUARANTINE)
    );
    node.now += QUARANTINE;
    assert_eq!(node.counting(), 1);
    assert_eq!(node.links.next_to_count(node.now), None);
}

/// A small copy is sent between two readings.
#[test]
fn a_full_joiner_that_was_never_seen_loading_counts_late() {
    let mut node = primary();
    node.fulls += 1;
    node.slaves.push((1, "online", 0));
    node.read();
    let status = node.status();
    assert_eq!((status.counting, status.full), (0, 1));
    assert!(node.links.standing.has_notice(&node.terms));
}

#[test]
fn of_two_that_join_together_by_one_partial_resynchronisation_none_counts() {
    let mut node = primary();
    node.partials += 1;
    node.slaves = vec![(1, "online", 0), (2, "online", 0)];
    node.read();
    assert_eq!(node.counting(), 0);
}

#[test]
fn a_newcomer_that_no_counter_explains_counts_late_and_so_does_the_next() {
    let mut node = primary();
    node.slaves.push((1, "online", 0));
    node.read();
    node.joins_partially(2);
    assert_eq!(node.counting(), 0);
}

/// CONFIG RESETSTAT: nobody knows what it hid.
#[test]
fn reset_counters_count_as_a_full_resynchronisation() {
    let mut node = primary();
    node.joins_partially(1);
    (node.fulls, node.partials) = (0, 0);
    node.read();
    assert!(node.links.standing.has_notice(&node.terms));
    assert_eq!(node.counting(), 0, "it may have joined again meanwhile");
}

/// One that left and came back between two readings has the same address, and may have forgotten something while others joined.
#[test]
fn one_that_has_joined_again_unseen_within_the_time_counts_late() {
    let mut node = primary();
    node.joins_partially(1);
    node.joins_fully(2);
    assert_eq!(node.counting(), 1);
    node.partials += 1;
    node.read();
    assert_eq!(node.counting(), 0);
    // Also the one that has joined by a full one: its time begins again.
    node.now += QUARANTINE - 1;
    node.partials += 1;
    node.read();
    node.now += QUARANTINE - 1;
    assert_eq!(node.counting(), 0);
    node.now += 1;
    assert_eq!(node.counting(), 2);
}

#[test]
fn two_links_of_one_address_confirm_once() {
    let mut node = Node::primary(Rule::WHOLE, 3);
    node.offset = 10;
    node.joins_partially(1);
    node.joins_partially(1);
    assert_eq!((node.counting(), node.status().connected), (1, 1));
    assert_eq!(node.links.confirmed(&node.terms, node.now), 0);
    assert_eq!(node.links.have_acknowledged(&node.terms, 10, node.now), 1);
}

#[test]
fn a_link_that_is_no_longer_online_is_another_one() {
    let mut node = primary();
    node.joins_partially(1);
    node.slaves[0].1 = "wait_bgsave";
    node.read();
    node.is_online(1);
    assert_eq!((node.counting(), node.status().full), (0, 1));
    // Also after one that had joined by a full resynchronisation, before the counter shows it.
    node.now += 10 * QUARANTINE;
    node.links.standing.take_notice(&node.terms);
    node.slaves[0].1 = "wait_bgsave";
    node.read();
    assert!(node.links.standing.has_notice(&node.terms));
}

#[test]
fn the_second_of_three_acknowledgements_decides_where_two_are_needed() {
    let mut node = Node::primary(Rule::WHOLE, 3);
    node.offset = 30;
    for port in [1, 2, 3] {
        node.joins_partially(port);
        node.slaves[usize::from(port) - 1].2 = u64::from(port) * 10;
    }
    node.read();
    assert_eq!(node.links.confirmed(&node.terms, node.now), 20);
    let have = |offset| node.links.have_acknowledged(&node.terms, offset, node.now);
    assert_eq!([10, 20, 30, 31].map(have), [3, 2, 1, 0]);
}

#[test]
fn more_replicas_than_configured_raise_what_is_needed() {
    let mut node = Node::primary(Rule::WHOLE, 2);
    for port in [1, 2, 3] {
        node.joins_partially(port);
    }
    let status = node.status();
    assert_eq!(
        (status.needed, status.too_many, status.too_few),
        (2, true, false)
    );
    node.leaves(1);
    node.leaves(2);
    let status = node.status();
    assert_eq!(
        (status.needed, status.too_many, status.too_few),
        (1, false, true)
    );
}

/// Each question is a write for replicas and save points.
#[test]
fn replicas_are_asked_once_for_one_offset() {
    let mut node = primary();
    node.offset = 10;
    node.read();
    let links = &mut node.links;
    assert!(!links.ask(0, 0), "nothing is needed");
    assert!(links.ask(0, 5));
    assert!(!links.ask(0, 10), "they were asked up to 10");
    assert!(!links.ask(9, 20), "they have not answered");
    assert!(links.ask(10, 20));
}

#[test]
fn a_replica_forgets_those_from_its_time_as_a_primary() {
    let mut node = primary();
    node.joins_partially(1);
    node.terms.primary = false;
    node.links.standing.on_role(false);
    assert!(node.links.end_reading(&node.terms));
    assert!(!node.links.end_reading(&node.terms));
    assert_eq!(node.status().connected, 0);
}

#[test]
fn lines_that_are_no_replica_are_left_out() {
    let mut node = primary();
    node.slaves.push((1, "", 0));
    node.read();
    let fields = |name: &std::ffi::CStr| match name.to_bytes() {
        b"connected_slaves" => Some("3"),
        b"slave0" => Some("ip=127.0.0.1,port=1,state=online,offset=7,lag=0"),
        b"slave1" => Some("ip=127.0.0.1,port=2,state=online"),
        _ => None,
    };
    node.links.read(&node.terms, &fields, node.now);
    assert_eq!(node.status().connected, 1);
}
