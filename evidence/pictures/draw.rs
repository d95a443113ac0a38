//! A picture from lines of text, one for each element. Numbers are pixels at the width of a page, 800. The lines of a table, which
//! begin with `|`, are data: FILE may be the text itself.
//!
//! | line | draws |
//! |---|---|
//! | `size W H` | the size of the picture; comes first |
//! | `title WORDS` | the text for readers who do not see it |
//! | `text X Y STYLE WORDS` | words; the style is `left`, `middle`, `right`, `bold`, `soft` or `mono` |
//! | `made X Y FILE WORDS` | soft words, and what FILE says that its figures are of: the version, the date and the server |
//! | `box X Y W H STYLE WORDS` | a box; its words are in the middle, `\n` begins a line; `plain`, `good`, `bad`, `busy` or `free` |
//! | `arrow X Y X Y STYLE WORDS` | an arrow with words above its middle; `plain`, `good`, `bad`, or `dashed` |
//! | `line X Y X Y` | a thin line |
//! | `bars X Y W LETTERS FILE HEADING` | a bar for each row of the table of FILE that begins with HEADING: its second column; a line to its third. Above it words, in lines of at most LETTERS |
//! | `column X Y LABEL W NUMBER FILE HEADING` | words and a bar for each row of such a table: the column of this number, on one scale with the others. LABEL is the width of the words; 0 puts them above the bar |
//! | `curves X Y W H NAMES SCALE FILE HEADING` | a curve for each row of such a table, over the words in its heading. The names stand on the `right` or `below`; the scale is `linear` or `powers` of ten |

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Colours for both colour schemes: dark ink on nothing, light ink on nothing.
const STYLE: &str = "\
text{font:14px system-ui,sans-serif;fill:#1f2328}\
.bold{font-weight:600}.soft{fill:#59636e;font-size:13px}.mono{font:12px ui-monospace,monospace;white-space:pre}\
.middle{text-anchor:middle}.right{text-anchor:end}\
.box{fill:#f6f8fa;stroke:#818b98}.box.good{fill:#dafbe1;stroke:#1a7f37}.box.bad{fill:#ffebe9;stroke:#cf222e}\
.box.busy{fill:#ddf4ff;stroke:#0969da}.box.free{fill:none;stroke:#818b98;stroke-dasharray:4 3}\
.line{stroke:#818b98;fill:none}.arrow{stroke:#59636e;stroke-width:1.5;fill:none}.arrow.good{stroke:#1a7f37}\
.arrow.bad{stroke:#cf222e}.arrow.dashed{stroke-dasharray:5 4}\
.head{fill:#59636e}.head.good{fill:#1a7f37}.head.bad{fill:#cf222e}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.soft{fill:#9198a1}\
.box{fill:#151b23;stroke:#656c76}.box.good{fill:#12261e;stroke:#3fb950}.box.bad{fill:#25171c;stroke:#f85149}\
.box.busy{fill:#121d2f;stroke:#4493f8}.line{stroke:#656c76}.arrow{stroke:#9198a1}.arrow.good{stroke:#3fb950}\
.arrow.bad{stroke:#f85149}.head{fill:#9198a1}.head.good{fill:#3fb950}.head.bad{fill:#f85149}}";

/// The colours of curves and of their names, in both colour schemes, for the pictures that have some.
const CURVES: &str = "\
path.curve{fill:none;stroke-width:1.5}path.c0{stroke:#0969da;stroke-width:3}path.c1{stroke:#9a6700}path.c2{stroke:#1a7f37}\
path.c3{stroke:#bf3989}path.c4{stroke:#1b7c83}path.c5{stroke:#59636e}\
text.c0{fill:#0969da;font-weight:600}text.c1{fill:#9a6700}text.c2{fill:#1a7f37}text.c3{fill:#bf3989}text.c4{fill:#1b7c83}\
text.c5{fill:#59636e}\
@media(prefers-color-scheme:dark){path.c0{stroke:#4493f8}path.c1{stroke:#d29922}path.c2{stroke:#3fb950}path.c3{stroke:#db61a2}\
path.c4{stroke:#39c5cf}path.c5{stroke:#9198a1}text.c0{fill:#4493f8}text.c1{fill:#d29922}text.c2{fill:#3fb950}text.c3{fill:#db61a2}\
text.c4{fill:#39c5cf}text.c5{fill:#9198a1}}";

/// Returns the picture as SVG.
///
/// # Errors
/// A line that cannot be read is named.
pub fn picture(text: &str, project: &Path) -> Result<String, String> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '|']));
    let (mut size, mut title, mut body) = (None, "", String::new());
    for line in lines {
        let wrong = || format!("cannot be read: {line}");
        let (what, rest) = line.split_once(' ').ok_or_else(wrong)?;
        match what {
            "size" => size = Some(numbers::<2>(rest).ok_or_else(wrong)?.0),
            "title" => title = rest,
            "text" => body += &words(rest).ok_or_else(wrong)?,
            "made" => body += &made(rest, project).ok_or_else(wrong)?,
            "box" => body += &boxed(rest).ok_or_else(wrong)?,
            "arrow" => body += &arrow(rest).ok_or_else(wrong)?,
            "line" => {
                let ([x1, y1, x2, y2], _) = numbers(rest).ok_or_else(wrong)?;
                let _ = writeln!(body, r#"<path class="line" d="M{x1} {y1}L{x2} {y2}"/>"#);
            }
            "bars" => body += &bars(rest, project).ok_or_else(wrong)?,
            "column" => body += &column(rest, project).ok_or_else(wrong)?,
            "curves" => body += &curves(rest, project).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        }
    }
    let [width, height] = size.ok_or("no size")?;
    let title = escaped(title);
    let curves = match body.contains("class=\"curve") {
        true => CURVES,
        false => "",
    };
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}{curves}</style>\n{body}</svg>\n"
    ))
}

/// Returns the numbers at the beginning of a line, and the rest.
fn numbers<const COUNT: usize>(mut line: &str) -> Option<([f64; COUNT], &str)> {
    let mut found = [0.0; COUNT];
    for number in &mut found {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        *number = word.parse().ok()?;
        line = rest;
    }
    Some((found, line))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn label(x: f64, y: f64, style: &str, words: &str) -> String {
    let words = escaped(words);
    format!("<text x=\"{x}\" y=\"{y}\" class=\"{style}\" xml:space=\"preserve\">{words}</text>\n")
}

fn words(line: &str) -> Option<String> {
    let ([x, y], rest) = numbers(line)?;
    let (style, words) = rest.split_once(' ')?;
    Some(label(x, y, &style.replace('+', " "), words))
}

fn made(line: &str, project: &Path) -> Option<String> {
    let ([x, y], rest) = numbers(line)?;
    let (file, words) = rest.split_once(' ')?;
    let page = fs::read_to_string(project.join(file)).ok()?;
    let facts = page.lines().find(|line| line.starts_with("dlock "))?;
    let facts: Vec<&str> = facts.splitn(4, ", ").take(3).collect();
    let facts = facts.join(", ");
    Some(label(x, y, "soft", &format!("{words} {facts}.")))
}

fn boxed(line: &str) -> Option<String> {
    let ([x, y, width, height], rest) = numbers(line)?;
    let (style, words) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut drawn = format!(
        "<rect class=\"box {style}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    let lines: Vec<&str> = words
        .split("\\n")
        .filter(|words| !words.is_empty())
        .collect();
    let first = y + height / 2.0 + 5.0 - 9.0 * (lines.len().saturating_sub(1)) as f64;
    for (at, words) in lines.iter().enumerate() {
        drawn += &label(x + width / 2.0, first + 18.0 * at as f64, "middle", words);
    }
    Some(drawn)
}

fn arrow(line: &str) -> Option<String> {
    let ([x1, y1, x2, y2], rest) = numbers(line)?;
    let (style, words) = rest.split_once(' ').unwrap_or((rest, ""));
    let length = (x2 - x1).hypot(y2 - y1);
    let (dx, dy) = ((x2 - x1) / length, (y2 - y1) / length);
    // The head ends at the point; the line ends in the head.
    let (backx, backy) = (x2 - 9.0 * dx, y2 - 9.0 * dy);
    let mut drawn = format!(
        "<path class=\"arrow {style}\" d=\"M{x1} {y1}L{backx:.1} {backy:.1}\"/>\n\
         <path class=\"head {style}\" d=\"M{x2} {y2}L{:.1} {:.1}L{:.1} {:.1}Z\"/>\n",
        backx - 4.5 * dy,
        backy + 4.5 * dx,
        backx + 4.5 * dy,
        backy - 4.5 * dx,
    );
    if !words.is_empty() {
        drawn += &label((x1 + x2) / 2.0, (y1 + y2) / 2.0 - 6.0, "middle", words);
    }
    Some(drawn)
}

/// Returns the largest number in a cell.
fn largest(cell: &str) -> Option<f64> {
    let numbers = cell.split(|c: char| !c.is_ascii_digit() && c != '.');
    let numbers = numbers.filter_map(|number| number.parse::<f64>().ok());
    numbers.reduce(f64::max)
}

fn bars(line: &str, project: &Path) -> Option<String> {
    let ([x, y, width, letters], rest) = numbers(line)?;
    let (file, heading) = rest.split_once(' ')?;
    let rows: Vec<(String, f64, f64)> = table(project, file, heading)?
        .iter()
        .skip(1)
        .map(|row| {
            let [what, median, most] = &row[..] else {
                return None;
            };
            let median = largest(median)?;
            Some((what.clone(), median, largest(most)?.max(median)))
        })
        .collect::<Option<_>>()?;
    let most = rows.iter().map(|row| row.2).reduce(f64::max)?;
    let scale = width / most;
    let (mut drawn, mut top) = (String::new(), y);
    for (what, median, longest) in &rows {
        for (at, words) in wrapped(what, letters as usize).iter().enumerate() {
            top += if at == 0 { 0.0 } else { LINE };
            drawn += &label(x, top + 12.0, "left", words);
        }
        let (middle, end) = (top + 26.0, x + longest * scale);
        let _ = write!(
            drawn,
            "<rect class=\"box busy\" x=\"{x}\" y=\"{}\" width=\"{:.1}\" height=\"16\"/>\n\
             <path class=\"line\" d=\"M{:.1} {middle}H{end:.1}M{end:.1} {}V{}\"/>\n",
            top + 18.0,
            median * scale,
            x + median * scale,
            middle - 6.0,
            middle + 6.0,
        );
        drawn += &label(
            end + 8.0,
            middle + 5.0,
            "soft",
            &format!("{median} s, at most {longest} s"),
        );
        top += 46.0;
    }
    Some(drawn)
}

/// Returns words in lines of at most this many letters.
fn wrapped(words: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            *line += word;
        } else if line.chars().count() + 1 + word.chars().count() <= letters {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns the cells of the first table of a page that begins with this heading, which is the first row.
fn table(project: &Path, file: &str, heading: &str) -> Option<Vec<Vec<String>>> {
    let page = fs::read_to_string(project.join(file)).ok()?;
    let lines = page.lines().skip_while(|line| !line.starts_with(heading));
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| line.starts_with('|'))
        .filter(|line| !line.starts_with("|--"))
        .map(|line| {
            let line = line.strip_prefix('|').unwrap_or(line).trim_end();
            let cells = line.strip_suffix('|').unwrap_or(line).split('|');
            cells.map(|cell| cell.trim().replace('`', "")).collect()
        })
        .collect();
    (rows.len() > 1).then_some(rows)
}

fn column(line: &str, project: &Path) -> Option<String> {
    const BAR: f64 = 26.0;
    const WORDS: f64 = 20.0;
    let ([x, y, label_width, width, number], rest) = numbers(line)?;
    let (file, heading) = rest.split_once(' ')?;
    let rows = table(project, file, heading)?.split_off(1);
    let most = rows.iter().flat_map(|row| &row[1..]);
    let most = most.filter_map(|cell| largest(cell)).reduce(f64::max)?;
    let mut drawn = String::new();
    for (at, row) in rows.iter().enumerate() {
        let value = row.get(number as usize)?;
        let (long, left) = (largest(value)? / most * width, x + label_width);
        let style = if at == 0 { "busy" } else { "plain" };
        let top = if label_width > 0.0 {
            let top = y + BAR * at as f64;
            drawn += &label(left - 10.0, top + 13.0, "right", &row[0]);
            top
        } else {
            let top = y + (WORDS + BAR) * at as f64;
            drawn += &label(left, top + 13.0, "left", &row[0]);
            top + WORDS
        };
        let _ = writeln!(
            drawn,
            "<rect class=\"box {style}\" x=\"{left}\" y=\"{top}\" width=\"{long:.1}\" height=\"18\"/>"
        );
        drawn += &label((left + long + 8.0).round(), top + 13.0, "left", value);
    }
    Some(drawn)
}

/// A value on the scale, and its label.
type Tick = (f64, String);

fn curves(line: &str, project: &Path) -> Option<String> {
    let ([x, y, width, height], rest) = numbers(line)?;
    let (names, rest) = rest.split_once(' ')?;
    let (scale, rest) = rest.split_once(' ')?;
    let (file, heading) = rest.split_once(' ')?;
    let table = table(project, file, heading)?;
    let (across, rows) = (&table[0][1..], &table[1..]);
    let values = rows.iter().flat_map(|row| &row[1..]);
    let values: Vec<f64> = values.filter_map(|cell| largest(cell)).collect();
    let (ticks, scaled): (Vec<Tick>, fn(f64) -> f64) = match scale {
        "linear" => (quarters(&values), |value| value),
        "powers" => (powers(&values), f64::log10),
        _ => return None,
    };
    let (bottom, top) = (scaled(ticks.first()?.0), scaled(ticks.last()?.0));
    let place = |value: f64| y + height - (scaled(value) - bottom) / (top - bottom) * height;
    let step = width / across.len().saturating_sub(1).max(1) as f64;
    let mut drawn = String::new();
    for (value, words) in &ticks {
        let at = place(*value);
        let right = x + width;
        let _ = writeln!(
            drawn,
            "<path class=\"line\" opacity=\".4\" d=\"M{x} {at:.1}H{right}\"/>"
        );
        drawn += &label(x - 8.0, (at + 5.0).round(), "soft right", words);
    }
    for (at, words) in across.iter().enumerate() {
        drawn += &label(
            (x + step * at as f64).round(),
            y + height + 20.0,
            "soft middle",
            words,
        );
    }
    let mut ends = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let points = row[1..].iter().enumerate();
        let points =
            points.filter_map(|(at, cell)| Some((x + step * at as f64, place(largest(cell)?))));
        let points: Vec<(f64, f64)> = points.collect();
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1} {y:.1}"))
            .collect();
        let _ = writeln!(
            drawn,
            "<path class=\"curve c{number}\" d=\"M{}\"/>",
            path.join("L")
        );
        ends.push((points.last()?.1, number, &row[0]));
    }
    let (left, places) = match names {
        "right" => {
            ends.sort_by(|one, other| one.0.total_cmp(&other.0));
            let wanted: Vec<f64> = ends.iter().map(|end| end.0).collect();
            (x + width + 10.0, apart(&wanted, y + height))
        }
        "below" => {
            let below = y + height + 40.0;
            (
                x,
                (0..ends.len()).map(|at| below + LINE * at as f64).collect(),
            )
        }
        _ => return None,
    };
    for (at, (_, number, words)) in places.into_iter().zip(ends) {
        drawn += &label(left, (at + 5.0).round(), &format!("c{number}"), words);
    }
    Some(drawn)
}

/// Returns ticks from zero to a round number that no value exceeds.
fn quarters(values: &[f64]) -> Vec<Tick> {
    let least = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max) / 4.0;
    let unit = 10f64.powf(least.log10().floor());
    let rounds = [1.0, 2.5, 5.0, 10.0].map(|round| round * unit);
    let step = rounds.into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(least);
    let digits = usize::from(step.fract() > 0.0);
    let values = (0..=4).map(|number| f64::from(number) * step);
    values
        .map(|value| (value, format!("{value:.digits$}")))
        .collect()
}

/// Returns powers of ten of a millisecond, with all values between them.
fn powers(values: &[f64]) -> Vec<Tick> {
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let least = values.iter().copied().fold(most, f64::min);
    let exponents = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let words = |value: f64| match value {
        value if value > 999.0 => format!("{:.0} s", value / 1e3),
        value if value > 0.999 => format!("{value:.0} ms"),
        value => format!("{:.0} µs", value * 1e3),
    };
    let values = exponents.map(|exponent| 10f64.powi(exponent));
    values.map(|value| (value, words(value))).collect()
}

/// The height of a line of words.
const LINE: f64 = 18.0;

/// Moves labels, from the top down, so that none covers another or stands below the floor.
fn apart(wanted: &[f64], floor: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + LINE);
    }
    let mut lowest = floor;
    for place in places.iter_mut().rev() {
        *place = place.min(lowest);
        lowest = *place - LINE;
    }
    places
}

#[test]
fn labels_do_not_cover_each_other() {
    assert_eq!(apart(&[10.0, 100.0], 400.0), [10.0, 100.0]);
    assert_eq!(apart(&[10.0, 12.0, 14.0], 400.0), [10.0, 28.0, 46.0]);
    assert_eq!(apart(&[395.0, 398.0, 400.0], 400.0), [364.0, 382.0, 400.0]);
}

#[test]
fn lines_are_no_longer_than_they_may_be() {
    assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
    assert_eq!(wrapped("one two three", 2), ["one", "two", "three"]);
}

#[test]
fn scales_contain_all_values() {
    let ends = |ticks: Vec<Tick>| {
        let texts: Vec<String> = ticks.into_iter().map(|tick| tick.1).collect();
        format!("{} to {}", texts[0], texts[texts.len() - 1])
    };
    assert_eq!(ends(quarters(&[42.0, 810.0])), "0 to 1000");
    assert_eq!(ends(quarters(&[1.0, 1001.0])), "0 to 2000");
    assert_eq!(ends(quarters(&[0.5, 1.7])), "0.0 to 2.0");
    assert_eq!(ends(powers(&[0.67, 8800.0])), "100 µs to 10 s");
    assert_eq!(ends(powers(&[2.0, 700.0])), "1 ms to 1 s");
}
