//! The quick part of `make check-long`: seconds, and everything that needs no search.

use dlock_protocol::action::Action;
use dlock_protocol::settings::{setting, with_fault, FAULTS, SETTINGS};
use dlock_protocol::system::Setup;
use dlock_protocol::walk::{breaks, walk};
use dlock_protocol::{breadth, page, schedule};

const PAGE: &str = include_str!("../../docs/results/model.md");
const RESULTS: &str = include_str!("../../docs/results/schedules.md");

fn setup(name: &str, replicas: u8) -> Setup {
    (setting(name).expect("a row of the table").setup)(replicas)
}

#[test]
fn each_schedule_breaks_the_rules_that_it_names_and_no_other() {
    for (name, schedule) in schedule::all().expect("schedules") {
        let r = schedule.replicas;
        let settings: Vec<&str> = SETTINGS
            .iter()
            .filter(|s| schedule.breaks((s.setup)(r).conduct))
            .map(|s| s.name)
            .collect();
        assert_eq!(settings, schedule.breaks, "{name}: settings");
        let right = setup("rule", r).conduct;
        let faults: Vec<&str> = FAULTS
            .iter()
            .filter(|f| schedule.breaks(with_fault(f.0, right)))
            .map(|f| f.0)
            .collect();
        assert_eq!(faults, schedule.faults, "{name}: clauses taken out");
    }
}

#[test]
fn a_walk_finds_two_owners_under_weaker_rules() {
    for name in [
        "nothing",
        "wait",
        "all-count",
        "promotion-only",
        "no-word",
        "one-less",
    ] {
        let walked = walk(&setup(name, 2), 1, 500_000);
        let found = walked
            .found
            .unwrap_or_else(|| panic!("{name}: none in {} steps", walked.steps));
        assert!(
            breaks(&setup(name, 2), &found),
            "{name}: what was shortened still breaks it"
        );
    }
}

#[test]
fn a_walk_finds_none_under_the_rule() {
    for replicas in 1..=5 {
        let walked = walk(&setup("rule", replicas), 2, 200_000);
        assert!(
            walked.found.is_none(),
            "r = {replicas}: {:#?}",
            walked.found
        );
    }
}

#[test]
fn the_same_seed_walks_the_same_way() {
    let run = || walk(&setup("all-count", 3), 7, 500_000);
    let (one, two) = (run(), run());
    assert_eq!((one.steps, one.found), (two.steps, two.found));
}

#[test]
fn breadth_first_finds_the_shortest() {
    let shortest = breadth::search(&setup("one-less", 2).quiet(), 20_000)
        .found
        .expect("two owners");
    let words: Vec<String> = shortest.iter().map(Action::to_string).collect();
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(breadth::search(&setup("rule", 2).quiet(), 20_000)
        .found
        .is_none());
}

#[test]
fn every_step_is_read_as_it_is_written() {
    for (_, schedule) in schedule::all().expect("schedules") {
        for step in schedule.steps {
            assert_eq!(Action::parse(&step.to_string()), Some(step));
        }
    }
}

#[test]
fn the_page_has_the_rows_of_the_table_and_the_schedules() {
    for setting in SETTINGS {
        assert!(
            PAGE.contains(&page::promise(setting)),
            "docs/results/model.md lacks {}",
            page::promise(setting)
        );
    }
    assert_eq!(
        PAGE.matches("| possible, ").count() + PAGE.matches("| none, ").count(),
        SETTINGS.len()
    );
    for (name, _) in schedule::all().expect("schedules") {
        assert!(
            PAGE.contains(&format!("(../../protocol/schedules/{name}.txt)")),
            "docs/results/model.md lacks {name}"
        );
    }
}

#[test]
fn the_page_has_what_was_seen_on_servers() {
    let same = page::with_servers(PAGE, RESULTS).expect("the page has the table");
    assert!(same == PAGE, "cargo run -p dlock-protocol -- --servers");
    for (name, _) in schedule::all().expect("schedules") {
        assert_ne!(page::on_servers(RESULTS, &name), "not played", "{name}");
    }
}

#[test]
fn a_cell_says_what_all_servers_showed() {
    let results = "| 1 | none / none | `a` 2.1 / 2.2, `b` 3.0 / none, `c` none / none |\n| 2 | none / 0.1 | |\n";
    let one = "one owner; two with `a`; two on some servers with `b`; one also with `c`";
    assert_eq!(page::on_servers(results, "1"), one);
    let two = "**two owners** with all clauses";
    assert_eq!(page::on_servers(results, "2"), two);
    assert_eq!(page::on_servers(results, "3"), "not played");
}

#[test]
fn a_row_says_what_was_found_and_not_what_should_have_been() {
    let row = setting("chains-ended-later").expect("a row");
    let found = |how| [page::Found { replicas: 4, how }];
    let of = |how| page::row(row, &found(how));
    assert!(of(page::How::Not(7)).contains("| none, r = 4 | r = 4: 7 |"));
    for how in [page::How::Walk(7, 3), page::How::Schedule("15".into())] {
        assert!(of(how).starts_with(&page::promise(row)));
    }
}

/// Data that a replica has sent before it ends the link suffices, and refusing at once is also enough: the schedule that showed
/// this on real servers.
#[test]
fn a_copy_that_a_replica_has_sent_gives_two_owners() {
    let all = schedule::all().expect("schedules");
    let (_, chained) = all
        .iter()
        .find(|(name, _)| name == "15-chained-later")
        .expect("it is there");
    assert!(breaks(&setup("chains-ended-later", 4), &chained.steps));
    assert!(!breaks(&setup("no-chains", 4), &chained.steps));
    // A tick is the end of a link that began in it.
    let mut late = chained.steps.clone();
    let joins = "R4 joins fully";
    let at = late.iter().position(|step| step.to_string() == joins);
    late.insert(at.expect("it joins") + 1, Action::Tick);
    assert!(!breaks(&setup("chains-ended-later", 4), &late));
    assert!(breaks(&setup("chains", 4), &late));
}
