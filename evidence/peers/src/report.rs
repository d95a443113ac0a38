//! The output: tables, and the cases in which a peer is better.

use std::fmt::Write as _;

use crate::cell::{CPU, HELD, MAX, NEXT, P50, P99, PER_CORE, RATE, WAITER};
use crate::handover::{self, COUNT, P999};
use crate::outcome::{Cell, Outcome};
use crate::permits;
use crate::service::{Promise, PLANS};
use crate::{HOT, JAVA, KILL_DEFAULT, KILL_SHORT, MEMORY, UNCONTENDED};

/// From this factor on a result counts as better than dlock's: less may be chance.
const CLEARLY: f64 = 1.1;

macro_rules! line {
    ($text:expr, $($words:tt)*) => {
        writeln!($text, $($words)*).expect("a String takes all")
    };
}

/// Returns all tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    head(&mut text, outcome);
    line!(
        text,
        "Each cell: times a second (lowest – highest of the rounds) · wait p99 · server CPU each (all processes of the service, all \
         nodes). Medians of the rounds, in which the services take turns.\n"
    );
    for promise in Promise::ALL {
        group(&mut text, outcome, promise);
    }
    java(&mut text, outcome);
    kills(&mut text, outcome);
    memory(&mut text, outcome);
    better(&mut text, outcome);
    text
}

fn head(text: &mut String, outcome: &Outcome) {
    line!(
        text,
        "Made by `make bench-peers`: {}{}. A write of 4 KiB takes {:.0} µs to reach the disk (`fdatasync`, median).\n",
        outcome.made,
        if outcome.quick { ", the quick plan" } else { "" },
        outcome.fsync_us,
    );
    for reason in &outcome.left_out {
        line!(text, "- Not measured: {reason}");
    }
    if !outcome.left_out.is_empty() {
        line!(text, "");
    }
}

fn table(text: &mut String, first: &str, heads: &[String]) {
    line!(text, "| {first} | {} |", heads.join(" | "));
    line!(text, "|---|{}", "---:|".repeat(heads.len()));
}

/// Formats a figure with separated thousands.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut digits = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            digits.push(',');
        }
        digits.push(digit);
    }
    digits + rest
}

fn cell(outcome: &Outcome, group: &str, service: &str, name: &str) -> String {
    let get = |figure| outcome.get(group, service, name, figure);
    match (get(RATE), get(P99), get(CPU)) {
        (Some(_), Some(wait), Some(cpu)) => {
            let (rate, range) = ranged(outcome, group, service, name, RATE);
            format!(
                "{rate}/s{range} · {} ms · {} µs",
                number(wait / 1e3),
                number(cpu)
            )
        }
        _ => "–".to_owned(),
    }
}

/// Formats a figure, and the range of the rounds.
fn ranged(
    outcome: &Outcome,
    group: &str,
    service: &str,
    name: &str,
    figure: &str,
) -> (String, String) {
    let Some(cell) = outcome.cell(group, service, name) else {
        return ("–".to_owned(), String::new());
    };
    let median = cell.figures.get(figure);
    let range = cell
        .ranges
        .get(figure)
        .map(|(lowest, highest)| format!(" ({} – {})", number(*lowest), number(*highest)));
    (
        median.map_or("–".to_owned(), |median| number(*median)),
        range.unwrap_or_default(),
    )
}

/// Returns the tables of hand-overs and permits.
pub fn hand_overs(outcome: &Outcome) -> String {
    let mut text = String::new();
    head(&mut text, outcome);
    line!(
        text,
        "## By clients and hold time\n\nAll clients want one lock of dlock in memory, keep it for the hold time, and ask again at once. \
         A *hand-over* lasts from the moment at which the holder sends its release until the next client has its grant. In brackets: the \
         lowest and the highest of the rounds. p99.9 is of all rounds together.\n\n\
         *A second of a core* is what the server would grant with a core of its own: grants, divided by the processor time of the \
         server. The clients need the rest.\n"
    );
    let heads = [
        "hold time",
        "locks a second",
        "a second of a core",
        "hand-over p50 µs",
        "p99 µs",
        "p99.9 µs",
        "hand-overs measured",
    ];
    let heads = heads.map(str::to_owned);
    for server in outcome.services(handover::GROUP) {
        line!(text, "### {server}\n");
        table(&mut text, "clients", &heads);
        for (hold_ms, _) in handover::HOLDS {
            for clients in handover::CLIENTS {
                let name = handover::situation(clients, hold_ms);
                let cell = |figure| {
                    let (median, range) = ranged(outcome, handover::GROUP, server, &name, figure);
                    median + &range
                };
                let exact = |figure| {
                    let value = outcome.get(handover::GROUP, server, &name, figure);
                    value.map_or("–".to_owned(), number)
                };
                let count = outcome.get(handover::GROUP, server, &name, COUNT);
                line!(
                    text,
                    "| {} | {hold_ms} ms | {} | {} | {} | {} | {} | {} |",
                    number_of(clients as f64),
                    cell(RATE),
                    exact(PER_CORE),
                    exact(handover::P50),
                    cell(handover::P99),
                    exact(P999),
                    number_of(count.unwrap_or_default()),
                );
            }
        }
        line!(text, "");
    }
    several_permits(&mut text, outcome);
    text
}

fn several_permits(text: &mut String, outcome: &Outcome) {
    let services = outcome.services(permits::GROUP);
    if services.is_empty() {
        return;
    }
    let sizes = permits::SIZES.map(|size| size.to_string()).join(", ");
    line!(
        text,
        "## Several permits at once\n\n{} clients share a semaphore of {} permits. Of ten clients they take {sizes}, each as many every \
         time, for {} ms, and ask again at once, for {} s. Then nobody asks anew, and all that wait are served. A *large* request takes {}. \
         All are threads of one Java program. A request that has not been served 10 s after that waits *in vain*, and counts as a wait \
         until then. In no round were more than {} permits held at once.\n",
        number_of(permits::CLIENTS as f64),
        permits::LIMIT,
        permits::WORK.as_millis(),
        if outcome.quick { permits::DURATION / 4 } else { permits::DURATION }.as_secs(),
        permits::LARGE,
        permits::LIMIT,
    );
    let heads = [
        "large requests: wait p99 ms",
        "wait p50 ms",
        "served while all ask",
        "in vain",
        "other requests: wait p99 ms",
        "grants a second",
        "server CPU each, µs",
    ];
    table(text, "semaphore", &heads.map(str::to_owned));
    for service in &services {
        let cell = |figure| {
            let name = permits::SITUATION;
            let (median, range) = ranged(outcome, permits::GROUP, service, name, figure);
            median + &range
        };
        line!(
            text,
            "| {service} | {} | {} | {} | {} | {} | {} | {} |",
            cell(permits::LARGE_P99),
            cell(permits::LARGE_P50),
            cell(permits::LARGE_IN_TIME),
            cell(permits::IN_VAIN),
            cell(permits::SMALL_P99),
            cell(RATE),
            cell(CPU),
        );
    }
    line!(text, "");
    for service in services {
        let get = |figure| outcome.get(permits::GROUP, service, permits::CHECKED, figure);
        if let (Some(ordered), Some(overtaken)) = (get(permits::ORDERED), get(permits::OVERTAKEN)) {
            line!(
                text,
                "The order of {service}, in a run of its own: the server shows by `MONITOR` in which order {} requests came. {} of them \
                 were granted after one that came later.",
                number_of(ordered),
                if overtaken > 0.0 { number_of(overtaken) } else { "None".to_owned() },
            );
        }
    }
}

/// Formats a whole number with separated thousands.
fn number_of(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.0}")
    } else {
        number(value)
    }
}

fn note(group: &str, service: &str) -> &'static str {
    let plan = PLANS
        .iter()
        .find(|plan| plan.promise.text() == group && plan.name == service);
    plan.map_or("", |plan| plan.note)
}

fn group(text: &mut String, outcome: &Outcome, promise: Promise) {
    let name = promise.text();
    let services = outcome.services(name);
    if services.is_empty() {
        return;
    }
    let names: Vec<String> = UNCONTENDED
        .iter()
        .chain(HOT.iter())
        .map(|cell| cell.0.to_owned())
        .collect();
    let shown: Vec<String> = names
        .into_iter()
        .filter(|cell| {
            services
                .iter()
                .any(|service| outcome.get(name, service, cell, RATE).is_some())
        })
        .collect();
    if shown.is_empty() {
        return;
    }
    line!(text, "### {name}\n");
    let mut heads = vec!["to be known".to_owned()];
    heads.extend(shown.iter().cloned());
    table(text, "service", &heads);
    for service in services {
        let cells: Vec<String> = shown
            .iter()
            .map(|shown| cell(outcome, name, service, shown))
            .collect();
        line!(
            text,
            "| {service} | {} | {} |",
            note(name, service),
            cells.join(" | ")
        );
    }
    line!(text, "");
}

fn java(text: &mut String, outcome: &Outcome) {
    let services = outcome.services(JAVA);
    if services.is_empty() {
        return;
    }
    line!(text, "### {JAVA}\n");
    line!(
        text,
        "One hot lock, memory only. Redisson's clients share one program's connections; dlock has a connection for each.\n"
    );
    let is_known = |cell: &str| {
        outcome
            .cells
            .iter()
            .any(|known| known.group == JAVA && known.cell == cell)
    };
    let shown: Vec<String> = HOT
        .iter()
        .map(|cell| cell.0.to_owned())
        .filter(|cell| is_known(cell))
        .collect();
    let mut heads = shown.clone();
    heads.push("longest wait, most clients".to_owned());
    table(text, "lock", &heads);
    for service in services {
        let mut cells: Vec<String> = shown
            .iter()
            .map(|shown| cell(outcome, JAVA, service, shown))
            .collect();
        let last = shown
            .last()
            .and_then(|shown| outcome.get(JAVA, service, shown, MAX));
        cells.push(last.map_or("–".to_owned(), |us| format!("{} ms", number(us / 1e3))));
        line!(text, "| {service} | {} |", cells.join(" | "));
    }
    line!(text, "");
}

fn kills(text: &mut String, outcome: &Outcome) {
    let killed: Vec<_> = outcome
        .cells
        .iter()
        .filter(|cell| cell.figures.contains_key(NEXT))
        .collect();
    if killed.is_empty() {
        return;
    }
    line!(
        text,
        "### The holder is killed (`kill -9`): seconds until the next has the lock\n"
    );
    line!(
        text,
        "The kernel closes the connections of a killed process. A machine that loses its power closes nothing: then every service \
         needs its lease, its session's time, or TCP keepalive.\n"
    );
    table(
        text,
        "service",
        &["setting".to_owned(), "seconds".to_owned()],
    );
    for cell in killed {
        let setting = cell
            .cell
            .trim_start_matches(KILL_DEFAULT)
            .trim_start_matches(KILL_SHORT);
        let kind = if cell.cell.starts_with(KILL_DEFAULT) {
            "default"
        } else {
            "shortest"
        };
        let seconds = cell.figures[NEXT];
        line!(
            text,
            "| {} | {kind}: {} | {seconds:.3} |",
            cell.service,
            setting.trim_start_matches(": ")
        );
    }
    line!(text, "");
}

fn memory(text: &mut String, outcome: &Outcome) {
    let measured: Vec<_> = outcome
        .cells
        .iter()
        .filter(|cell| cell.cell == MEMORY)
        .collect();
    if measured.is_empty() {
        return;
    }
    line!(text, "### Memory of all the service's processes\n");
    line!(
        text,
        "By the kernel's account (proportional set size), so room that a service had already taken is not seen: PostgreSQL's lock \
         table is made at the start, and Java's heap is as it was last collected. A waiter includes its connection.\n"
    );
    table(
        text,
        "service",
        &["bytes a held lock".to_owned(), "bytes a waiter".to_owned()],
    );
    for cell in measured {
        let get = |figure| match cell.figures.get(figure) {
            Some(bytes) if *bytes > 0.0 => number(*bytes),
            _ => "not seen".to_owned(),
        };
        line!(
            text,
            "| {} ({}) | {} | {} |",
            cell.service,
            cell.group,
            get(HELD),
            get(WAITER)
        );
    }
    line!(text, "");
}

/// Names, for each cell in which another service has a clearly better figure than dlock, that service.
fn better(text: &mut String, outcome: &Outcome) {
    const FIGURES: [(&str, &str, bool); 6] = [
        (RATE, "more a second", true),
        (P50, "shorter waits (p50)", false),
        (P99, "shorter waits (p99)", false),
        (CPU, "less server CPU", false),
        (HELD, "less memory for a held lock", false),
        (WAITER, "less memory for a waiter", false),
    ];
    line!(text, "### Where a peer is better\n");
    // Each peer, and dlock in the same group.
    let mut pairs: Vec<(&str, &str, &str)> = Vec::new();
    for promise in Promise::ALL {
        let is_ours = |service: &&&str| service.starts_with("dlock");
        let services = outcome.services(promise.text());
        let Some(ours) = services.iter().find(is_ours) else {
            continue;
        };
        let peers = services.iter().filter(|service| !is_ours(service));
        pairs.extend(peers.map(|peer| (promise.text(), *peer, *ours)));
    }
    let services = outcome.services(JAVA);
    let in_java = services
        .chunks_exact(2)
        .map(|pair| (JAVA, pair[0], pair[1]));
    pairs.extend(in_java);
    let mut any = false;
    for (group, peer, ours) in pairs {
        let of_peer = |cell: &&Cell| cell.group == group && cell.service == peer;
        for cell in outcome.cells.iter().filter(of_peer) {
            for (figure, words, more_is_better) in FIGURES {
                // Where memory was freed meanwhile, nothing is known.
                let theirs = cell.figures.get(figure).filter(|value| **value > 0.0);
                let own = outcome.get(group, ours, &cell.cell, figure);
                let (Some(theirs), Some(own)) = (theirs, own) else {
                    continue;
                };
                let times = match more_is_better {
                    true => theirs / own,
                    false => own / theirs.max(1.0),
                };
                if times > CLEARLY {
                    any = true;
                    line!(
                        text,
                        "- {group}, {}: **{peer}** has {words} than {ours}: {} against {}.",
                        cell.cell,
                        number(*theirs),
                        number(own)
                    );
                }
            }
        }
    }
    if !any {
        line!(text, "Nowhere by more than a tenth.");
    }
}
