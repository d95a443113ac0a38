//! Results as pictures.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contest::RATE;
use crate::failure::Failure;
use crate::locking::{COUNTED_HASH, DLOCK, PING, SET_DEL, SET_SCRIPT};
use crate::outcome::{Line, Outcome};
use crate::percentile::P99;
use crate::plan::{HOT_LOCKS, PAIR, PAIR_EVERYSEC};
use crate::report::number;
use crate::{hot, pair};

const FONT: &str = "sans-serif";
const TITLE: (&str, u32) = (FONT, 20);
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
    ratios(outcome, &directory.join("ratios.svg"))?;
    pairs(outcome, &directory.join("pair.svg"))?;
    let is_hot = |lock: &&_| median(outcome, group_of(lock), hot::BLOCKING, RATE).is_some();
    if HOT_LOCKS.iter().filter(is_hot).count() > 1 {
        hot_locks(outcome, &directory.join("hot-lock.svg"))?;
    }
    Ok(())
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

/// The CPU time of a pair, way by way, without and with an append-only file.
fn pairs(outcome: &Outcome, path: &Path) -> Result<(), Failure> {
    const ROW: i32 = 24;
    const TEXT: i32 = 230;
    const BAR: f64 = 420.0;
    let bars: Vec<(String, f64, RGBColor)> = [(PAIR, ""), (PAIR_EVERYSEC, ", AOF")]
        .into_iter()
        .flat_map(|(group, suffix)| {
            [DLOCK, SET_DEL, SET_SCRIPT, COUNTED_HASH, PING].map(|way| (group, suffix, way))
        })
        .filter_map(|(group, suffix, way)| {
            let colour = COLOURS[if way == DLOCK { 0 } else { 5 }];
            let value = median(outcome, group, way, pair::CPU)?;
            Some((format!("{way}{suffix}"), value, colour))
        })
        .collect();
    let most = bars
        .iter()
        .map(|bar| bar.1)
        .fold(f64::MIN_POSITIVE, f64::max);
    let height = 60 + ROW * i32::try_from(bars.len())?;
    let area = canvas(path, (760, u32::try_from(height)?))?;
    area.draw(&Text::new(
        "Server CPU to take and give back an uncontended lock, µs",
        (10, 12),
        TITLE,
    ))?;
    for (number, (name, value, colour)) in (0..).zip(bars) {
        let middle = 60 + ROW * number;
        let end = TEXT + (value / most * BAR) as i32;
        area.draw(&Text::new(
            name,
            (TEXT - 8, middle),
            label_style(HPos::Right),
        ))?;
        area.draw(&Rectangle::new(
            [(TEXT, middle - 8), (end, middle + 8)],
            colour.filled(),
        ))?;
        area.draw(&Text::new(
            format!("{value:.2}"),
            (end + 8, middle),
            label_style(HPos::Left),
        ))?;
    }
    Ok(area.present()?)
}

/// Hand-overs a second and the wait of the unluckiest in a hundred, by the number of clients.
fn hot_locks(outcome: &Outcome, path: &Path) -> Result<(), Failure> {
    let area = canvas(path, (1_000, 430))?;
    let (left, right) = area.split_horizontally(500);
    curves(outcome, &left, "Hand-overs a second, 1 ms each", RATE, 1.0)?;
    curves(outcome, &right, "Wait, p99, ms", P99, 1e3)?;
    Ok(area.present()?)
}

fn curves(
    outcome: &Outcome,
    area: &Area,
    title: &str,
    figure: &str,
    unit: f64,
) -> Result<(), Failure> {
    let ways = [
        hot::BLOCKING,
        hot::POLLING_1MS,
        hot::PUBSUB,
        hot::PYTHON_REDIS_LOCK,
        hot::REDIS_PY_100MS,
        hot::REDIS_PY_1MS,
    ];
    let points = |way: &str| -> Vec<(f64, f64)> {
        HOT_LOCKS
            .iter()
            .filter(|lock| lock.section_us == 1_000)
            .filter_map(|lock| {
                let value = median(outcome, lock.group, way, figure)?;
                Some((lock.clients as f64, value / unit))
            })
            .collect()
    };
    let values: Vec<f64> = ways
        .iter()
        .flat_map(|way| points(way))
        .map(|(_, value)| value)
        .collect();
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, TITLE)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (1.5..700.0).log_scale(),
            (least / 1.5..most * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("clients")
        .x_label_formatter(&|clients| format!("{clients:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (way, colour) in ways.iter().zip(COLOURS) {
        let points = points(way);
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(std::iter::once(PathElement::new(
                points.clone(),
                colour.stroke_width(2),
            )))?
            .label(*way)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(
            points
                .into_iter()
                .map(|point| Circle::new(point, 3, colour.filled())),
        )?;
    }
    // Once is enough.
    if figure == RATE {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .position(SeriesLabelPosition::LowerLeft)
            .draw()?;
    }
    Ok(())
}

fn canvas(path: &Path, size: (u32, u32)) -> Result<DrawingArea<SVGBackend<'_>, Shift>, Failure> {
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}
