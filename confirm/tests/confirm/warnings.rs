//! What the log says.

use crate::node::Node;
use dlock_confirm::{Line, Rule};

/// Returns what the log says now, each line up to here.
fn said(node: &mut Node, up_to: &str) -> Vec<String> {
    let begin = |text: String| text.split(up_to).next().map(str::to_owned);
    let lines = node.links.report(&node.terms, node.now).into_iter();
    let text = |line| match line {
        Line::Warning(text) => begin(text),
        Line::Notice(text) => Some(format!("(over) {text}")),
    };
    lines.filter_map(text).collect()
}

fn counts(node: &mut Node) -> Vec<String> {
    said(node, ". ")
}

const NOTHING: [&str; 0] = [];
const FEWER: [&str; 1] = ["connected replicas: 0, with dlock.replicas 1"];

#[test]
fn fewer_replicas_are_reported_after_five_seconds_and_their_return_once() {
    let mut node = Node::primary(Rule::WHOLE, 1);
    assert_eq!(counts(&mut node), NOTHING);
    node.now += 4_999;
    assert_eq!(counts(&mut node), NOTHING);
    node.now += 1;
    assert_eq!(counts(&mut node), FEWER);
    node.now += 60_000;
    assert_eq!(counts(&mut node), NOTHING);
    node.joins_partially(1);
    let over = ["(over) connected replicas: 1, as dlock.replicas says"];
    assert_eq!(counts(&mut node), over);
    assert_eq!(counts(&mut node), NOTHING);
}

#[test]
fn a_short_absence_is_not_reported_nor_its_end() {
    let mut node = Node::primary(Rule::WHOLE, 1);
    counts(&mut node);
    node.now += 4_999;
    node.joins_partially(1);
    assert_eq!(counts(&mut node), NOTHING);
    node.leaves(1);
    node.now += 1;
    assert_eq!(counts(&mut node), NOTHING, "the time begins anew");
}

#[test]
fn more_replicas_are_reported_at_once_and_by_a_primary_only() {
    let mut node = Node::primary(Rule::WHOLE, 1);
    node.joins_partially(1);
    node.joins_partially(2);
    assert_eq!(
        counts(&mut node),
        ["connected replicas: 2, with dlock.replicas 1"]
    );
    assert_eq!(counts(&mut node), NOTHING);
    node.terms.primary = false;
    node.now += 60_000;
    assert_eq!(counts(&mut node), NOTHING);
}

#[test]
fn refusals_are_reported_at_once_then_after_pauses_that_double_up_to_a_minute() {
    let mut node = Node::starting(Rule::WHOLE, 1, false);
    let refused = |node: &mut Node| -> Option<u64> {
        node.links.on_refused();
        let said = said(node, " refused");
        said.first()?.rsplit('(').next()?.parse().ok()
    };
    let (begun, mut reported) = (node.now, Vec::new());
    for second in 0..=300 {
        node.now = begun + second * 1_000;
        reported.extend(refused(&mut node).map(|number| (second, number)));
    }
    let reports = [(0, 1), (1, 1), (3, 2), (7, 4), (15, 8), (31, 16), (63, 32)];
    assert_eq!(reported[..7], reports);
    assert_eq!(reported[7..], [(123, 60), (183, 60), (243, 60)]);
    // A minute of silence, and a new event.
    node.now += 120_000;
    assert_eq!(refused(&mut node), Some(58));
    node.now += 1_000;
    assert_eq!(refused(&mut node), Some(1), "after a second again");
}
