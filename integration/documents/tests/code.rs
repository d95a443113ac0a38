//! Code in a page is code of a test.

use dlock_documents::read;

/// Returns the lines without their common indentation.
fn dedented(lines: &[&str]) -> String {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty());
    let common = common.map(indent).min().unwrap_or(0);
    let lines = lines.iter().map(|line| line.get(common..).unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns true if this code is in the source, at any indentation.
fn stands_in(source: &str, code: &str) -> bool {
    let lines: Vec<&str> = source.lines().collect();
    let count = code.lines().count();
    lines.windows(count).any(|window| dedented(window) == code)
}

/// Returns the number of compared blocks of a page: a comment before each names the file that contains it.
pub fn compared(page: &str) -> usize {
    let page = read(page);
    let lines: Vec<&str> = page.lines().collect();
    let mut seen = 0;
    let mut at = 0;
    while at < lines.len() {
        if !lines[at].starts_with("```") {
            at += 1;
            continue;
        }
        let end = (at + 1..lines.len()).find(|line| lines[*line] == "```");
        let end = end.expect("a block of code ends");
        let above = at.checked_sub(1).map_or("", |above| lines[above]);
        let from = above.strip_prefix("<!-- ");
        // A block with a prompt is of another kind.
        let from = from.and_then(|from| from.strip_suffix(" -->"));
        if let Some(from) = from.filter(|from| !from.contains("> ")) {
            let code = dedented(&lines[at + 1..end]);
            let there = stands_in(&read(from), &code);
            assert!(there, "line {}: not in {from}", at + 1);
            seen += 1;
        }
        at = end + 1;
    }
    seen
}

/// The other languages' own tests read their pages.
#[test]
fn the_blocks_of_phps_page_are_those_of_its_tests() {
    assert_eq!(compared("clients/php/README.md"), 5);
}
