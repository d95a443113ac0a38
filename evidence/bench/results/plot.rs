//! Results as pictures.

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contending::contest::RATE;
use crate::contending::hot;
use crate::failure::Failure;
use crate::holding::pair;
use crate::plan::{HOT_LOCKS, PAIR, PAIR_EVERYSEC};
use crate::results::outcome::{Line, Outcome};
use crate::results::report::number;
use crate::tools::locking::{COUNTED_HASH, DLOCK, PING, SET_DEL, SET_SCRIPT};
use crate::tools::percentile::P99;

const FONT: &str = "sans-serif";
const TITLE: (&str, u32) = (FONT, 20);
const SUBTITLE: (&str, u32) = (FONT, 15);
const LABEL: (&str, u32) = (FONT, 13);

/// Colours that can be told apart, by those too who do not see red and green (Okabe and Ito's).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
const BOUND: RGBColor = RGBColor(213, 94, 0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws what the run has figures for.
pub fn draw_all(outcome: &Outcome, directory: &Path) -> Result<(), Failure> {
    let file = |name| directory.join(name);
    ratios(outcome, &file("ratios.svg"))?;
    pairs(outcome, &file("pair.svg"))?;
    one_element_a_line(&file("pair.svg"))?;
    let is_hot = |lock: &&_| median(outcome, group_of(lock), hot::BLOCKING, RATE).is_some();
    if HOT_LOCKS.iter().filter(is_hot).count() > 1 {
        hot_locks(outcome, &file("hot-lock.svg"))?;
        one_element_a_line(&file("hot-lock.svg"))?;
    }
    Ok(())
}

/// What is committed is as short as it can be read.
fn one_element_a_line(path: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(path)?;
    let lines = text.lines().map(|line| match line.contains('<') {
        true if !line.starts_with("</text") => format!("\n{line}"),
        _ => line.to_owned(),
    });
    Ok(fs::write(
        path,
        lines.collect::<String>().trim_start().to_owned() + "\n",
    )?)
}

fn group_of(lock: &crate::plan::HotLock) -> &'static str {
    lock.group
}

fn median(outcome: &Outcome, group: &str, way: &str, figure: &str) -> Option<f64> {
    outcome
        .figures
        .iter()
        .find(|known| (&*known.group, &*known.way, &*known.figure) == (group, way, figure))
        .map(|known| known.spread.median)
}

fn label_style(to_the: HPos) -> TextStyle<'static> {
    LABEL
        .into_text_style(&(1, 1))
        .pos(Pos::new(to_the, VPos::Center))
}

/// Every row with a bound, as a part of its bound: what reaches the line is too much.
fn ratios(outcome: &Outcome, path: &Path) -> Result<(), Failure> {
    const ROW: i32 = 26;
    const TEXT: i32 = 560;
    const BAR: f64 = 300.0;
    let rows: Vec<(&Line, f64)> = outcome
        .rows
        .iter()
        .filter_map(|row| Some((row, row.bound?)))
        .collect();
    let height = 60 + ROW * i32::try_from(rows.len())?;
    let area = canvas(path, (1_020, u32::try_from(height)?))?;
    area.draw(&Text::new(
        "Measured, as a part of the bound",
        (10, 12),
        TITLE,
    ))?;
    for (place, &(row, bound)) in (0..).zip(&rows) {
        let middle = 60 + ROW * place;
        let end = |value: f64| TEXT + (value / bound * BAR).min(BAR * 1.2) as i32;
        area.draw(&Text::new(
            format!("{}  ∕  {}", row.what, row.against),
            (TEXT - 8, middle),
            label_style(HPos::Right),
        ))?;
        let colour = if row.passes() == Some(true) {
            COLOURS[0]
        } else {
            BOUND
        };
        area.draw(&Rectangle::new(
            [(TEXT, middle - 8), (end(row.spread.median), middle + 8)],
            colour.filled(),
        ))?;
        area.draw(&PathElement::new(
            [
                (end(row.spread.lower), middle),
                (end(row.spread.upper), middle),
            ],
            BLACK.stroke_width(2),
        ))?;
        area.draw(&Text::new(
            format!("{} of {}", number(row.spread.median), number(bound)),
            (TEXT + (BAR * 1.2) as i32 + 10, middle),
            label_style(HPos::Left),
        ))?;
    }
    let line = TEXT + BAR as i32;
    area.draw(&PathElement::new(
        [(line, 46), (line, height - 6)],
        BOUND.stroke_width(2),
    ))?;
    Ok(area.present()?)
}

/// What users know the ways by which a lock is taken and given back as.
const PAIRS: [(&str, &str); 5] = [
    (DLOCK, "dlock"),
    (SET_DEL, "SET NX PX + DEL (checks no owner)"),
    (SET_SCRIPT, "SET NX PX + compare-and-delete"),
    (COUNTED_HASH, "re-entrant lock by scripts"),
    (PING, "two PINGs, to compare"),
];

/// The CPU time of a pair, way by way, without and with an append-only file.
fn pairs(outcome: &Outcome, path: &Path) -> Result<(), Failure> {
    const ROW: i32 = 26;
    const TEXT: i32 = 270;
    const BAR: f64 = 430.0;
    let settings = [
        (PAIR, "in memory only"),
        (PAIR_EVERYSEC, "with an append-only file, everysec"),
    ];
    let bars = |group: &'static str| -> Vec<(&str, f64)> {
        PAIRS
            .iter()
            .filter_map(|(way, label)| Some((*label, median(outcome, group, way, pair::CPU)?)))
            .collect()
    };
    let groups: Vec<(&str, Vec<(&str, f64)>)> = settings
        .iter()
        .map(|(group, title)| (*title, bars(group)))
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let most = all().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    let rows = i32::try_from(all().count() + 2 * groups.len())?;
    let area = canvas(path, (800, u32::try_from(64 + ROW * rows)?))?;
    area.draw(&Text::new(
        "Server CPU to take a lock and give it back",
        (10, 12),
        TITLE,
    ))?;
    area.draw(&Text::new(
        format!(
            "microseconds, shorter is better · {}",
            outcome.machine.server
        ),
        (10, 40),
        LABEL,
    ))?;
    let mut middle = 64 + ROW;
    for (title, bars) in &groups {
        area.draw(&Text::new(*title, (TEXT, middle), label_style(HPos::Left)))?;
        for (label, value) in bars {
            middle += ROW;
            let end = TEXT + (value / most * BAR) as i32;
            let colour = COLOURS[if *label == DLOCK { 0 } else { 5 }];
            let texts = [
                (*label, TEXT - 8, HPos::Right),
                (&*format!("{value:.2}"), end + 8, HPos::Left),
            ];
            for (text, left, side) in texts {
                area.draw(&Text::new(text, (left, middle), label_style(side)))?;
            }
            area.draw(&Rectangle::new(
                [(TEXT, middle - 9), (end, middle + 9)],
                colour.filled(),
            ))?;
        }
        middle += 2 * ROW;
    }
    Ok(area.present()?)
}

/// What users know the ways to wait as.
const WAITS: [(&str, &str); 6] = [
    (hot::BLOCKING, "dlock"),
    (hot::POLLING_1MS, "SET NX PX, polled each ms"),
    (hot::PUBSUB, "scripts, publish/subscribe"),
    (hot::PYTHON_REDIS_LOCK, "python-redis-lock (BLPOP)"),
    (hot::REDIS_PY_100MS, "redis-py Lock, sleeps 100 ms"),
    (hot::REDIS_PY_1MS, "redis-py Lock, sleeps 1 ms"),
];

/// The wait of the unluckiest in a hundred, and hand-overs a second, by the number of clients.
fn hot_locks(outcome: &Outcome, path: &Path) -> Result<(), Failure> {
    let area = canvas(path, (1_240, 460))?;
    area.draw(&Text::new(
        "One lock that many clients want, held for 1 ms each time",
        (10, 12),
        TITLE,
    ))?;
    let waits = curves(outcome, P99, 1e6);
    let panel = Panel {
        title: "Wait that 99 of 100 do not exceed (p99), logarithmic: lower is better",
        left: 60,
        ticks: decades(&waits),
        is_logarithmic: true,
    };
    panel.draw(&area, &waits)?;
    let rates = curves(outcome, RATE, 1.0);
    let panel = Panel {
        title: "Hand-overs a second: higher is better",
        left: 680,
        ticks: quarters(&rates),
        is_logarithmic: false,
    };
    panel.draw(&area, &rates)?;
    Ok(area.present()?)
}

/// A way to wait: its label, and its values by the number of clients.
type Curve = (&'static str, Vec<(usize, f64)>);

fn curves(outcome: &Outcome, figure: &str, unit: f64) -> Vec<Curve> {
    let slow = HOT_LOCKS.iter().filter(|lock| lock.section_us == 1_000);
    let point = |lock: &crate::plan::HotLock, way: &str| {
        let value = median(outcome, lock.group, way, figure)?;
        Some((lock.clients, value / unit))
    };
    let points = |way: &str| slow.clone().filter_map(|lock| point(lock, way)).collect();
    WAITS.map(|(way, label)| (label, points(way))).to_vec()
}

/// A value on the scale, and how it is written.
type Tick = (f64, String);

fn most(curves: &[Curve]) -> f64 {
    let values = curves.iter().flat_map(|(_, points)| points);
    values
        .map(|point| point.1)
        .fold(f64::MIN_POSITIVE, f64::max)
}

/// From zero to a round number that no value exceeds.
fn quarters(curves: &[Curve]) -> Vec<Tick> {
    let least = most(curves) / 4.0;
    let unit = 10f64.powf(least.log10().floor());
    let rounds = [1.0, 2.5, 5.0, 10.0].map(|round| round * unit);
    let step = rounds.into_iter().find(|step| *step >= least);
    let values = (0..=4).map(|number| f64::from(number) * step.unwrap_or(least));
    values.map(|value| (value, format!("{value:.0}"))).collect()
}

/// Powers of ten of a second, so that all values lie between them.
fn decades(curves: &[Curve]) -> Vec<Tick> {
    let values = curves.iter().flat_map(|(_, points)| points);
    let least = values.map(|point| point.1).fold(most(curves), f64::min);
    let exponents = least.log10().floor() as i32..=most(curves).log10().ceil() as i32;
    let label = |value: f64| match value {
        value if value >= 0.999 => format!("{value:.0} s"),
        value if value >= 0.000_999 => format!("{:.0} ms", value * 1e3),
        value => format!("{:.0} µs", value * 1e6),
    };
    let values = exponents.map(|exponent| 10f64.powi(exponent));
    values.map(|value| (value, label(value))).collect()
}

/// A plot over numbers of clients, each as far from the next.
struct Panel {
    title: &'static str,
    left: i32,
    /// From the bottom to the top.
    ticks: Vec<Tick>,
    is_logarithmic: bool,
}

impl Panel {
    const WIDTH: i32 = 330;
    const HEIGHT: f64 = 320.0;
    const FLOOR: i32 = 410;

    fn height(&self, value: f64) -> i32 {
        let scale = |value: f64| {
            if self.is_logarithmic {
                value.log10()
            } else {
                value
            }
        };
        let end = |tick: Option<&Tick>| tick.map_or(0.0, |tick| scale(tick.0));
        let (bottom, top) = (end(self.ticks.first()), end(self.ticks.last()));
        Self::FLOOR - ((scale(value) - bottom) / (top - bottom) * Self::HEIGHT) as i32
    }

    fn draw(&self, area: &Area, curves: &[Curve]) -> Result<(), Failure> {
        let right = self.left + Self::WIDTH;
        area.draw(&Text::new(self.title, (self.left, 52), SUBTITLE))?;
        for (value, label) in &self.ticks {
            let height = self.height(*value);
            area.draw(&PathElement::new(
                [(self.left, height), (right, height)],
                BLACK.mix(0.15),
            ))?;
            let place = (self.left - 8, height);
            area.draw(&Text::new(label.clone(), place, label_style(HPos::Right)))?;
        }
        let mut clients: Vec<usize> = curves
            .iter()
            .flat_map(|(_, points)| points.iter().map(|point| point.0))
            .collect();
        clients.sort_unstable();
        clients.dedup();
        let gaps = i32::try_from(clients.len().max(2) - 1)?;
        let across = |number: usize| -> i32 {
            let at = clients.iter().position(|known| *known == number);
            self.left + 12 + (Self::WIDTH - 24) / gaps * at.unwrap_or_default() as i32
        };
        for number in &clients {
            let place = (across(*number), Self::FLOOR + 16);
            area.draw(&Text::new(
                number.to_string(),
                place,
                label_style(HPos::Center),
            ))?;
        }
        let place = (self.left + Self::WIDTH / 2, Self::FLOOR + 36);
        area.draw(&Text::new("clients", place, label_style(HPos::Center)))?;
        let mut labels = Vec::new();
        for ((label, points), colour) in curves.iter().zip(COLOURS) {
            let points: Vec<(i32, i32)> = points
                .iter()
                .map(|(clients, value)| (across(*clients), self.height(*value)))
                .collect();
            let Some(end) = points.last() else { continue };
            labels.push((end.1, *label, colour));
            let width = if *label == DLOCK { 4 } else { 2 };
            area.draw(&PathElement::new(points, colour.stroke_width(width)))?;
        }
        labels.sort_by_key(|label| label.0);
        let wanted: Vec<i32> = labels.iter().map(|label| label.0).collect();
        for (height, (_, label, colour)) in apart(&wanted, Self::FLOOR).into_iter().zip(labels) {
            let style = label_style(HPos::Left).color(&colour);
            area.draw(&Text::new(label, (right + 8, height), style))?;
        }
        Ok(())
    }
}

/// Moves labels, from the top down, so that none covers another or stands below the floor.
fn apart(wanted: &[i32], floor: i32) -> Vec<i32> {
    const LINE: i32 = 17;
    let mut places = wanted.to_vec();
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + LINE);
    }
    let mut lowest = floor;
    for place in places.iter_mut().rev() {
        *place = (*place).min(lowest);
        lowest = *place - LINE;
    }
    places
}

fn canvas(path: &Path, size: (u32, u32)) -> Result<DrawingArea<SVGBackend<'_>, Shift>, Failure> {
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

#[test]
fn labels_do_not_cover_each_other() {
    assert_eq!(apart(&[10, 100], 400), [10, 100]);
    assert_eq!(apart(&[10, 12, 14], 400), [10, 27, 44]);
    assert_eq!(apart(&[395, 398, 400], 400), [366, 383, 400]);
}

#[test]
fn scales_contain_all_values() {
    let curves = |values: [f64; 2]| [("", vec![(1, values[0]), (2, values[1])])];
    let ends = |ticks: Vec<Tick>| {
        let texts: Vec<String> = ticks.into_iter().map(|tick| tick.1).collect();
        format!("{} to {}", texts[0], texts[texts.len() - 1])
    };
    assert_eq!(ends(quarters(&curves([42.0, 810.0]))), "0 to 1000");
    assert_eq!(ends(quarters(&curves([1.0, 1001.0]))), "0 to 2000");
    assert_eq!(ends(decades(&curves([0.000_67, 8.8]))), "100 µs to 10 s");
    assert_eq!(ends(decades(&curves([0.002, 0.7]))), "1 ms to 1 s");
}
