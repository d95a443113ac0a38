//! What the user sees: tables, where a peer is better, and a plot.

use std::fmt::Write as _;

use crate::cell::{CPU, HELD, MAX, NEXT, P50, P99, RATE, WAITER};
use crate::outcome::Outcome;
use crate::service::{Promise, PLANS};
use crate::{HOT, JAVA, KILL_DEFAULT, KILL_SHORT, MEMORY, UNCONTENDED};

/// So much better than dlock counts as better: less is chance.
const CLEARLY: f64 = 1.1;

/// All tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    head(&mut text, outcome);
    for promise in Promise::ALL {
        group(&mut text, outcome, promise);
    }
    java(&mut text, outcome);
    kills(&mut text, outcome);
    memory(&mut text, outcome);
    better(&mut text, outcome);
    text
}

macro_rules! line {
    ($text:expr, $($words:tt)*) => {
        writeln!($text, $($words)*).expect("a String takes all")
    };
}

fn head(text: &mut String, outcome: &Outcome) {
    line!(
        text,
        "{}, {}, load before the run {}{}. A write of 4 KiB takes {:.0} µs to reach the disk (`fdatasync`, median).\n",
        outcome.cpu,
        outcome.kernel,
        outcome.load,
        if outcome.quick { ", the quick plan" } else { "" },
        outcome.fsync_us,
    );
    line!(text, "{}.\n", outcome.versions.join("; "));
    for reason in &outcome.left_out {
        line!(text, "- Not measured: {reason}");
    }
    line!(
        text,
        "Each cell: times a second · wait p99 · server CPU each (all processes of the service, all nodes).\n"
    );
}

fn table(text: &mut String, first: &str, heads: &[String]) {
    line!(text, "| {first} | {} |", heads.join(" | "));
    line!(text, "|---|{}", "---:|".repeat(heads.len()));
}

/// A figure with its thousands apart.
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
        (Some(rate), Some(wait), Some(cpu)) => {
            format!(
                "{}/s · {} ms · {} µs",
                number(rate),
                number(wait / 1e3),
                number(cpu)
            )
        }
        _ => "–".to_owned(),
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

/// Says of each cell in which another service has a clearly better figure than dlock which it is.
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
    let mut any = false;
    for promise in Promise::ALL {
        let group = promise.text();
        let services = outcome.services(group);
        let Some(ours) = services.iter().find(|service| service.starts_with("dlock")) else {
            continue;
        };
        for peer in services
            .iter()
            .filter(|service| !service.starts_with("dlock"))
        {
            for cell in outcome
                .cells
                .iter()
                .filter(|cell| cell.group == group && cell.service == **peer)
            {
                for (figure, words, more_is_better) in FIGURES {
                    let pair = (
                        cell.figures.get(figure),
                        outcome.get(group, ours, &cell.cell, figure),
                    );
                    // Where memory was given back meanwhile, nothing is known.
                    let (Some(theirs), Some(own)) = (pair.0.filter(|value| **value > 0.0), pair.1)
                    else {
                        continue;
                    };
                    let times = if more_is_better {
                        theirs / own
                    } else {
                        own / theirs.max(1.0)
                    };
                    if times > CLEARLY {
                        any = true;
                        line!(
                            text,
                            "- {group}, {}: **{peer}** has {words}: {} against {}.",
                            cell.cell,
                            number(*theirs),
                            number(own)
                        );
                    }
                }
            }
        }
    }
    let services = outcome.services(JAVA);
    for pair in services.chunks(2) {
        let [theirs, ours] = pair else { continue };
        for cell in outcome
            .cells
            .iter()
            .filter(|cell| cell.group == JAVA && cell.service == **theirs)
        {
            for (figure, words, more_is_better) in FIGURES {
                let pair = (
                    cell.figures.get(figure),
                    outcome.get(JAVA, ours, &cell.cell, figure),
                );
                let (Some(peer), Some(own)) = pair else {
                    continue;
                };
                let times = if more_is_better {
                    peer / own
                } else {
                    own / peer.max(1.0)
                };
                if times > CLEARLY {
                    any = true;
                    line!(
                        text,
                        "- {JAVA}, {}: **{theirs}** has {words} than {ours}: {} against {}.",
                        cell.cell,
                        number(*peer),
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

/// Bars: hand-overs a second of one hot lock, and what each costs the service.
pub fn plot(outcome: &Outcome) -> String {
    const ROW: usize = 24;
    const SHOWN: &str = "hot, 16 clients, 0 ms";
    let mut bars = Vec::new();
    for promise in Promise::ALL {
        for service in outcome.services(promise.text()) {
            let get = |figure| outcome.get(promise.text(), service, SHOWN, figure);
            if let (Some(rate), Some(cpu)) = (get(RATE), get(CPU)) {
                bars.push((promise.text(), service, rate, cpu));
            }
        }
    }
    let most = |of: fn(&(&str, &str, f64, f64)) -> f64| bars.iter().map(of).fold(1.0_f64, f64::max);
    let (most_rate, most_cpu) = (most(|bar| bar.2), most(|bar| bar.3));
    let height = 70 + ROW * bars.len();
    let mut text = String::new();
    line!(
        text,
        "<svg width=\"1100\" height=\"{height}\" viewBox=\"0 0 1100 {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"1100\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"18\">One hot lock, 16 clients, no work in between</text>\n\
         <text x=\"430\" y=\"50\">hand-overs a second</text>\n<text x=\"770\" y=\"50\">server CPU each, µs</text>"
    );
    for (place, (promise, service, rate, cpu)) in bars.iter().enumerate() {
        let middle = 76 + ROW * place;
        let colour = if service.starts_with("dlock") {
            "#0072b2"
        } else {
            "#787878"
        };
        let label = format!("{service} — {}", promise.to_lowercase());
        let mut row = format!(
            "<text x=\"420\" y=\"{middle}\" text-anchor=\"end\" font-size=\"11\">{label}</text>"
        );
        for (left, value, most) in [(430, *rate, most_rate), (770, *cpu, most_cpu)] {
            let width = (value / most * 250.0).max(1.0);
            row += &format!(
                "<rect x=\"{left}\" y=\"{}\" width=\"{width:.0}\" height=\"16\" fill=\"{colour}\"/>\
                 <text x=\"{:.0}\" y=\"{middle}\">{}</text>",
                middle - 12,
                left as f64 + width + 6.0,
                number(value)
            );
        }
        line!(text, "{row}");
    }
    text + "</svg>\n"
}
