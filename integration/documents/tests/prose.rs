//! The language of the documents: phrases that no native writer uses, sentences that are too long, table cells that hide a page.
//!
//! The phrases are data, in `prose.txt`. Code is left out.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use dlock_documents::project;

const RULES: &str = include_str!("prose.txt");
const TABLE: &str = include_str!("../../../commands/src/table.rs");
const ALERTS: &str = include_str!("../../../observability/alerts.yml");

/// The pages to which the rules apply, as they do to every page of `docs/` itself.
const PAGES: [&str; 12] = [
    "CONTRIBUTING.md",
    "README.md",
    "clients/DESIGN.md",
    "clients/cli/README.md",
    "clients/go/README.md",
    "clients/java/README.md",
    "clients/node/README.md",
    "clients/php/README.md",
    "clients/python/README.md",
    "clients/rust/README.md",
    "docs/results/chaos.md",
    "evidence/README.md",
];

const LONGEST_SENTENCE: usize = 38;
const LONGEST_CELL: usize = 30;

/// A phrase that the pages must not have.
struct Rule {
    phrase: String,
    opens: bool,
    closes: bool,
    instead: &'static str,
    /// A sentence with the phrase.
    planted: &'static str,
}

impl Rule {
    fn read(line: &'static str) -> Rule {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [phrase, instead, planted] = parts[..] else {
            panic!("{line}: not a phrase, what to say instead, and a sentence");
        };
        Rule {
            phrase: phrase.trim_matches(['^', '$']).to_lowercase(),
            opens: phrase.starts_with('^'),
            closes: phrase.ends_with('$'),
            instead,
            planted,
        }
    }

    fn is_in(&self, sentence: &str) -> bool {
        let sentence = sentence.to_lowercase();
        let sentence = sentence.trim_matches(|c: char| "*(\"".contains(c) || c.is_whitespace());
        let sentence = sentence.trim_end_matches(|c: char| ".!?:;)*\"".contains(c));
        let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        sentence.match_indices(&self.phrase).any(|(at, found)| {
            let (before, after) = (&sentence[..at], &sentence[at + found.len()..]);
            let begins_inside = is_letter(found.chars().next()) && is_letter(before.chars().last());
            let ends_inside = is_letter(after.chars().next());
            !begins_inside
                && !ends_inside
                && (!self.opens || before.is_empty())
                && (!self.closes || after.is_empty())
        })
    }
}

fn rules() -> Vec<Rule> {
    let lines = RULES.lines().filter(|line| !line.starts_with('#'));
    lines.map(Rule::read).collect()
}

/// A paragraph, a heading, an item of a list, or a cell of a table, and the line where it begins.
#[derive(Debug, PartialEq)]
struct Text {
    line: usize,
    is_cell: bool,
    words: String,
}

/// Returns the texts of a page, without code, targets of links, and comments.
fn texts(page: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let (mut in_code, mut is_open) = (false, false);
    for (at, line) in page.lines().enumerate() {
        let (number, line) = (at + 1, line.trim());
        if line.starts_with("```") {
            in_code = !in_code;
            is_open = false;
        }
        // A program writes the contents of a table of this kind.
        if line.starts_with("<!-- table") || line.starts_with("<!-- end of table") {
            in_code = line.starts_with("<!-- table");
        }
        if in_code || line.is_empty() || line.starts_with("```") || line.starts_with("<!--") {
            is_open = false;
            continue;
        }
        if let Some(row) = line.strip_prefix('|') {
            is_open = false;
            let cells = row.trim_end_matches('|').split(" | ");
            texts.extend(cells.map(|cell| Text {
                line: number,
                is_cell: true,
                words: plain(cell),
            }));
            continue;
        }
        let item = line.split_once(' ').is_some_and(|(mark, _)| {
            ["-", "*"].contains(&mark)
                || mark.ends_with('.') && mark.starts_with(|first: char| first.is_ascii_digit())
        });
        if item || !is_open || line.starts_with('#') {
            texts.push(Text {
                line: number,
                is_cell: false,
                words: line.to_owned(),
            });
        } else if let Some(text) = texts.last_mut() {
            text.words += " ";
            text.words += line;
        }
        is_open = !line.starts_with('#');
    }
    for text in texts.iter_mut().filter(|text| !text.is_cell) {
        text.words = plain(&text.words);
    }
    texts
}

/// Returns the words without code, which counts as one, and without the targets of links.
pub(super) fn plain(text: &str) -> String {
    let mut pieces = text.split('`');
    let mut words = pieces.next().unwrap_or_default().to_owned();
    while let (Some(_), Some(rest)) = (pieces.next(), pieces.next()) {
        words += "CODE";
        words += rest;
    }
    let mut plain = String::new();
    let mut rest = words.as_str();
    while let Some((before, link)) = rest.split_once("](") {
        plain += before;
        rest = link.split_once(')').map_or("", |(_, rest)| rest);
    }
    (plain + rest).replace(['[', ']'], "")
}

/// Returns the sentences of a text. A sentence ends with a mark before a word that begins with a capital, or at the end.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices(' ') {
        let before = text[..at].trim_end_matches(['*', ')', '"']);
        let after = text[at..].trim_start_matches([' ', '*', '(', '"']);
        let ends = before.ends_with(['.', '!', '?', ':']);
        if ends && after.starts_with(char::is_uppercase) {
            found.push(&text[from..at]);
            from = at + 1;
        }
    }
    found.push(&text[from..]);
    found
}

fn count(text: &str) -> usize {
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    text.split_whitespace().filter(is_word).count()
}

/// Returns the phrases in a text that native writers do not use.
pub(super) fn phrases(text: &str) -> impl Iterator<Item = String> + '_ {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(rules);
    sentences(text).into_iter().flat_map(move |sentence| {
        let found = rules.iter().filter(move |rule| rule.is_in(sentence));
        found.map(move |rule| {
            let (phrase, instead) = (&rule.phrase, rule.instead);
            format!("not \"{phrase}\", say \"{instead}\": {sentence}")
        })
    })
}

/// Returns the faults of a page.
fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for text in texts(page) {
        let mut fault = |what: String| faults.push(format!("line {}: {what}", text.line));
        let length = count(&text.words);
        if text.is_cell && length > LONGEST_CELL {
            fault(format!("a cell of {length} words: {}", text.words));
        }
        for sentence in sentences(&text.words) {
            let length = count(sentence);
            if length > LONGEST_SENTENCE {
                fault(format!("a sentence of {length} words: {sentence}"));
            }
        }
        phrases(&text.words).for_each(fault);
    }
    faults
}

/// Returns the rows that have another number of cells than the heading of their table. A bar in code must be escaped.
fn uneven(page: &str) -> Vec<&str> {
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let (mut wrong, mut heading, mut in_code) = (Vec::new(), None, false);
    for line in page.lines().map(str::trim) {
        in_code ^= line.starts_with("```");
        if in_code || !line.starts_with('|') {
            heading = None;
        } else if cells(line) != *heading.get_or_insert(cells(line)) {
            wrong.push(line);
        }
    }
    wrong
}

#[test]
fn an_uneven_row_is_found() {
    let page = "| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | 2 | 3 |\n\n| a |\n|---|\n| `x \\| y` |\n```\n| |\n```\n";
    assert_eq!(uneven(page), ["| 1 | 2 | 3 |"]);
}

#[test]
fn the_pages_are_plain_english() {
    let docs = fs::read_dir(project().join("docs")).expect("the documents");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    let docs = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let pages: Vec<PathBuf> = docs.chain(PAGES.map(|name| project().join(name))).collect();
    assert!(pages.len() > 20, "{pages:?}");
    let mut found = Vec::new();
    for path in pages {
        let page = fs::read_to_string(&path).expect("a page");
        let name = path.display();
        found.extend(
            uneven(&page)
                .iter()
                .map(|row| format!("{name}: uneven: {row}")),
        );
        found.extend(faults(&page).iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Only published entries stay as they were written.
#[test]
fn the_changes_since_0_3_0_are_plain_english() {
    let changes = fs::read_to_string(project().join("CHANGELOG.md")).expect("the changes");
    let (new, old) = changes.split_once("\n## 0.3.0 ").expect("0.3.0");
    assert!(!old.is_empty());
    assert_eq!(faults(new), [""; 0]);
}

/// The readers of the pages also read the server's messages and the alerts.
#[test]
fn the_help_and_the_alerts_are_plain_english() {
    let quoted = |text: &'static str, names: &[&str]| -> Vec<&'static str> {
        let lines = text.lines().map(str::trim);
        let value = |line: &'static str| {
            let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
            rest.split('"').nth(1)
        };
        lines.filter_map(value).collect()
    };
    let said = [
        quoted(TABLE, &["summary:"]),
        quoted(ALERTS, &["summary:", "todo:"]),
    ];
    assert!(said.iter().all(|texts| texts.len() > 15));
    for text in said.concat() {
        assert_eq!(faults(text), [""; 0]);
    }
}

#[test]
fn each_phrase_is_found_in_its_sentence() {
    let rules = rules();
    assert!(rules.len() > 40, "{} rules", rules.len());
    for rule in &rules {
        let (phrase, planted) = (&rule.phrase, rule.planted);
        assert!(rule.is_in(planted), "{phrase}: not found in: {planted}");
        let page = format!("# Title\n\nA line.\nAnother one. {planted}\n");
        let found = faults(&page);
        let is_named = |fault: &String| fault.contains(&format!("not \"{phrase}\""));
        assert!(found.iter().any(is_named), "{phrase}: {found:?}");
        // Code may contain it.
        assert_eq!(faults(&format!("```\n{planted}\n```\n")), [""; 0]);
    }
}

#[test]
fn long_sentences_and_cells_are_found() {
    let words = |count: usize| "word ".repeat(count);
    for (page, expected) in [
        (words(LONGEST_SENTENCE + 1), "a sentence of 39 words"),
        (
            format!("| a | {}|", words(LONGEST_CELL + 1)),
            "a cell of 31 words",
        ),
    ] {
        let found = faults(&page);
        assert!(
            found.iter().any(|fault| fault.contains(expected)),
            "{found:?}"
        );
    }
    let short = format!("{}. Then `a b c` {}", words(30), words(30));
    assert_eq!(faults(&short), [""; 0]);
}

#[test]
fn a_page_is_taken_apart() {
    let page = "# A title\n\nOne [link](to/it.md). Two\nlines.\n- An item (\n  …). It continues.\n1. Another\n\n```\ncode\n```\n| `a b` | c |\n";
    let words: Vec<String> = texts(page).into_iter().map(|text| text.words).collect();
    let expected = [
        "# A title",
        "One link. Two lines.",
        "- An item ( …). It continues.",
        "1. Another",
        "CODE",
        " c ",
    ];
    let trimmed: Vec<&str> = words.iter().map(|words| words.trim()).collect();
    assert_eq!(trimmed, expected.map(str::trim));
    assert_eq!(sentences(&words[1]), ["One link.", "Two lines."]);
}
