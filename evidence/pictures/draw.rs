//! A picture from lines of text, one for each thing that is drawn. Numbers are pixels at the width of a page, 800.
//!
//! | line | draws |
//! |---|---|
//! | `size W H` | how large the picture is; comes first |
//! | `title WORDS` | what a reader hears who does not see it |
//! | `text X Y STYLE WORDS` | words; the style is `left`, `middle`, `right`, `bold`, `soft` or `mono` |
//! | `box X Y W H STYLE WORDS` | a box; its words are in the middle, `\n` begins a line; `plain`, `good`, `bad`, `busy` or `free` |
//! | `arrow X Y X Y STYLE WORDS` | an arrow with words above its middle; `plain`, `good`, `bad`, or `dashed` |
//! | `line X Y X Y` | a thin line |
//! | `bars X Y W FILE HEADING` | a bar for each row of the table of FILE that begins with HEADING: its second column; a line to its third |

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

/// Returns the picture as SVG.
///
/// # Errors
/// A line that cannot be read is named.
pub fn picture(text: &str, project: &Path) -> Result<String, String> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut size, mut title, mut body) = (None, "", String::new());
    for line in lines {
        let wrong = || format!("cannot be read: {line}");
        let (what, rest) = line.split_once(' ').ok_or_else(wrong)?;
        match what {
            "size" => size = Some(numbers::<2>(rest).ok_or_else(wrong)?.0),
            "title" => title = rest,
            "text" => body += &words(rest).ok_or_else(wrong)?,
            "box" => body += &boxed(rest).ok_or_else(wrong)?,
            "arrow" => body += &arrow(rest).ok_or_else(wrong)?,
            "line" => {
                let ([x1, y1, x2, y2], _) = numbers(rest).ok_or_else(wrong)?;
                let _ = writeln!(body, r#"<path class="line" d="M{x1} {y1}L{x2} {y2}"/>"#);
            }
            "bars" => body += &bars(rest, project).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        }
    }
    let [width, height] = size.ok_or("no size")?;
    let title = escaped(title);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n{body}</svg>\n"
    ))
}

/// The numbers that a line begins with, and what follows.
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

/// The largest number in a cell.
fn largest(cell: &str) -> Option<f64> {
    let numbers = cell.split(|c: char| !c.is_ascii_digit() && c != '.');
    let numbers = numbers.filter_map(|number| number.parse::<f64>().ok());
    numbers.reduce(f64::max)
}

fn bars(line: &str, project: &Path) -> Option<String> {
    let ([x, y, width], rest) = numbers(line)?;
    let (file, heading) = rest.split_once(' ')?;
    let page = fs::read_to_string(project.join(file)).ok()?;
    let rows = page.lines().skip_while(|line| !line.starts_with(heading));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<(String, f64, f64)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
            let [what, median, most] = cells[..] else {
                return None;
            };
            let median = largest(median)?;
            Some((what.replace('`', ""), median, largest(most)?.max(median)))
        })
        .collect::<Option<_>>()?;
    let most = rows.iter().map(|row| row.2).reduce(f64::max)?;
    let scale = width / most;
    let mut drawn = String::new();
    for (at, (what, median, longest)) in rows.iter().enumerate() {
        let top = y + 46.0 * at as f64;
        let (middle, end) = (top + 26.0, x + longest * scale);
        drawn += &label(x, top + 12.0, "left", what);
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
    }
    Some(drawn)
}
