//! The blocks of the pages for users: commands are typed and must answer as shown; settings are set.
//!
//! Each section (`##`, `###`) of a page has a server of its own. `one> ` is a prompt of the terminal `one`. Commands that a
//! reader need not see are comments of their own line: `<!-- one> DLOCK.ACQUIRE stock alice -->`.

use std::collections::HashMap;
use std::fs;

use dlock_documents::{is_transcript, parts, prompt, read, Part, PAGES};
use dlock_harness::redis::{cmd, Cmd, Value};
use dlock_harness::{module_path, Ask, Server, Wire};

/// A typed line and the output of the terminal.
struct Step<'a> {
    terminal: &'a str,
    typed: &'a str,
    /// None if the page does not show it.
    shown: Option<Vec<&'a str>>,
}

/// Returns the steps of each section.
fn transcripts(page: &str) -> Vec<Vec<Step<'_>>> {
    let mut sections = vec![Vec::new()];
    for part in parts(page) {
        let steps: &mut Vec<Step> = sections.last_mut().expect("a section");
        match part {
            Part::Section => sections.push(Vec::new()),
            Part::Hidden(line) => {
                let (terminal, typed) = prompt(line).expect("a prompt");
                steps.push(Step {
                    terminal,
                    typed,
                    shown: None,
                });
            }
            Part::Block(block) if is_transcript(&block) => {
                for line in &block.lines {
                    match prompt(line) {
                        Some((terminal, typed)) => steps.push(Step {
                            terminal,
                            typed,
                            shown: Some(Vec::new()),
                        }),
                        None if line.is_empty() => {}
                        None => {
                            let shown = steps.last_mut().and_then(|step| step.shown.as_mut());
                            shown.expect("a prompt").push(line);
                        }
                    }
                }
            }
            Part::Block(_) => {}
        }
    }
    sections.retain(|steps| !steps.is_empty());
    sections
}

/// Returns the command of a line as redis-cli reads it: quotes keep words together.
fn typed_command(line: &str) -> Cmd {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for char in line.chars() {
        match char {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            char => word.push(char),
        }
    }
    words.push(word);
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut command = cmd(&words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

/// Returns the words of a line that redis-cli shows. Of its numbering only a map's stays: `2#limit`. The duration of a command
/// belongs to no reply.
fn words(line: &str) -> Vec<String> {
    if line == "…" || line.starts_with('(') && line.ends_with("s)") {
        return Vec::new();
    }
    let (mut rest, mut field) = (line, String::new());
    while let Some(end) = rest.find([')', '#']) {
        let (number, inner) = rest.split_at(end);
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        if inner.starts_with('#') {
            field = format!("{number}#");
        }
        rest = inner[1..].trim_start();
    }
    if rest == "(empty array)" {
        return Vec::new();
    }
    let word = |part: &str| {
        let part = part.trim();
        let part = part.strip_prefix("(integer) ").unwrap_or(part);
        let part = part.strip_prefix("(error) ").unwrap_or(part);
        let text = part.trim_matches('"');
        // `""` is an empty word, and nothing behind `=>` is none.
        (!part.is_empty()).then(|| text.to_owned())
    };
    let mut parts: Vec<String> = rest.split("=>").filter_map(word).collect();
    if let Some(first) = parts.first_mut() {
        first.insert_str(0, &field);
    }
    parts
}

/// Returns the words of a reply.
fn flat(reply: &Value) -> Vec<String> {
    match reply {
        Value::Nil => vec!["(nil)".into()],
        Value::Okay => vec!["OK".into()],
        Value::Int(number) => vec![number.to_string()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::BulkString(text) => vec![String::from_utf8_lossy(text).into_owned()],
        // The server's INFO.
        Value::VerbatimString { text, .. } => {
            text.lines().map(|line| line.trim().to_owned()).collect()
        }
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        Value::Push { kind, data } => {
            let kind = std::iter::once(kind.to_string());
            kind.chain(data.iter().flat_map(flat)).collect()
        }
        Value::Map(pairs) => {
            let both = |(at, (name, value)): (usize, &(Value, Value))| {
                let name = format!("{}#{}", at + 1, flat(name).concat());
                std::iter::once(name).chain(flat(value))
            };
            pairs.iter().enumerate().flat_map(both).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.split('-').count() == 5
}

/// Returns true if a shown word agrees with an answered one. Tokens, times, ids and ports differ from run to run.
fn is_like(shown: &str, word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let split = |text: &str| {
        let pieces = text.split_inclusive([' ', ':', '/', '@']);
        pieces.map(str::to_owned).collect::<Vec<_>>()
    };
    let (shown, word) = (split(shown), split(word));
    shown.len() == word.len()
        && shown.iter().zip(&word).all(|(shown, word)| {
            let trim = |text: &str| text.trim_end_matches([' ', ':', '/', '@']).to_owned();
            let (shown, word) = (trim(shown), trim(word));
            let is_number = shown.len() > 1 && is_number(&shown) && is_number(&word);
            shown == word || is_number || is_uuid(&shown) && is_uuid(&word)
        })
}

#[track_caller]
fn assert_shown(page: &str, typed: &str, shown: &[&str], reply: &Result<Value, String>) {
    let answered = match reply {
        Ok(value) => flat(value),
        Err(error) => vec![error.clone()],
    };
    assert!(is_shown(shown, &answered), "{page}: {typed}: {answered:?}");
}

/// Returns true if the lines show the answer word by word, and leave something out only where `…` stands.
fn is_shown(shown: &[&str], answered: &[String]) -> bool {
    let pieces = shown.split(|line| *line == "…");
    let pieces: Vec<Vec<String>> = pieces
        .map(|lines| lines.iter().flat_map(|line| words(line)).collect())
        .collect();
    let mut rest = answered;
    for (at, piece) in pieces.iter().enumerate() {
        let Some(latest) = rest.len().checked_sub(piece.len()) else {
            return false;
        };
        // The first piece begins the answer, and the last one ends it.
        let earliest = if at + 1 == pieces.len() { latest } else { 0 };
        let latest = if at == 0 { 0 } else { latest };
        let stands_at = |start: &usize| {
            let there = piece.iter().zip(&rest[*start..]);
            there.into_iter().all(|(word, there)| is_like(word, there))
        };
        match (earliest..=latest).find(stands_at) {
            Some(start) => rest = &rest[start + piece.len()..],
            None => return false,
        }
    }
    true
}

/// Types a section. A token from the page stands for the server's token in its place.
fn follow(page: &str, server: &Server, steps: &[Step]) {
    let mut terminals: HashMap<&str, Wire> = HashMap::new();
    let mut tokens: HashMap<String, String> = HashMap::new();
    let mut waiting = 0;
    for step in steps {
        let terminal = terminals
            .entry(step.terminal)
            .or_insert_with(|| server.connection_resp3());
        // `(bob's command returns)` stands for an output of the terminal that comes later.
        let is_later = step.typed.starts_with('(');
        if !is_later {
            let mut typed = step.typed.to_owned();
            for (shown, token) in &tokens {
                typed = typed.replace(shown, token);
            }
            terminal.send_command(&typed_command(&typed));
        }
        let waits = step.typed.contains(" BLOCK 0");
        let shows_nothing = step.shown.as_ref().is_none_or(Vec::is_empty);
        if waits && shows_nothing {
            waiting += 1;
            server.await_blocked_clients(waiting);
            continue;
        }
        waiting -= usize::from(is_later && waiting > 0);
        let reply = terminal.read();
        let Some(shown) = &step.shown else { continue };
        if step.typed == "QUIT" {
            assert!(shown.is_empty(), "redis-cli ends and shows no reply");
            continue;
        }
        assert_shown(page, step.typed, shown, &reply);
        // 16 digits are a token.
        let is_token = |word: &String| word.len() == 16 && word.parse::<u64>().is_ok();
        let of_page = shown.iter().flat_map(|line| words(line)).filter(is_token);
        let answered = reply.as_ref().map(flat).unwrap_or_default();
        tokens.extend(of_page.zip(answered.into_iter().filter(is_token)));
    }
}

fn try_transcripts(pages: impl Iterator<Item = &'static str>) -> usize {
    let mut typed = 0;
    for name in pages {
        let page = read(name);
        for steps in transcripts(&page) {
            let server = Server::start();
            typed += steps.len();
            follow(name, &server, &steps);
        }
    }
    typed
}

/// After the whole transcript a reader can type it again.
#[test]
fn the_readmes_transcript_is_as_it_is_shown_and_leaves_nothing_held() {
    let page = read("README.md");
    let sections = transcripts(&page);
    let [steps] = &sections[..] else {
        panic!(
            "{} sections of the README have a transcript",
            sections.len()
        );
    };
    assert!(steps.len() > 10);
    let server = Server::start();
    follow("README.md", &server, steps);
    let locks: (String, Vec<Value>) = server.connection().ask("DLOCK.LIST 0 COUNT 1000");
    assert_eq!(locks, ("0".to_owned(), Vec::new()));
}

#[test]
fn the_other_pages_transcripts_are_as_they_are_shown() {
    assert!(try_transcripts(PAGES[1..].iter().copied()) > 90);
}

/// Asserts that a server accepts the settings. A single one would grant nothing with them, but the test does not ask it to.
fn try_settings(lines: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("page.conf");
    let is_loading = |line: &&&str| line.starts_with("loadmodule ");
    let others: Vec<&str> = lines
        .iter()
        .filter(|line| !is_loading(line))
        .copied()
        .collect();
    let module = module_path().canonicalize().expect("the module is built");
    let text = format!(
        "loadmodule \"{}\"\n{}\n",
        module.display(),
        others.join("\n")
    );
    fs::write(&file, text).expect("the directory can be written to");
    let server = Server::builder()
        .without_module()
        .config("include", format!("\"{}\"", file.display()))
        .start();
    let help: Vec<String> = server.connection().ask("DLOCK.HELP");
    assert!(!help.is_empty());
}

#[test]
fn the_settings_of_all_pages_are_settings() {
    let pages: Vec<String> = PAGES.iter().map(|name| read(name)).collect();
    let mut tried = 0;
    for part in pages.iter().flat_map(|page| parts(page)) {
        if let Part::Block(block) = part {
            if block.word == "conf" {
                try_settings(&block.lines);
                tried += 1;
            }
        }
    }
    assert!(tried > 2, "{tried} blocks of settings");
}

#[test]
fn what_is_shown_wrongly_is_found() {
    let server = Server::start();
    let page =
        "```\none> DLOCK.ACQUIRE stock alice\n1) (integer) 1795257735768587\n2) (integer) 2\n```\n";
    let steps = &transcripts(page)[0];
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        follow("a page", &server, steps)
    }));
    assert!(wrong.is_err());
    assert!(is_like(
        "granted 1795257735768587 5:stock",
        "granted 2 5:stock"
    ));
    assert!(!is_like("3", "4") && !is_like("held", "free"));
    let answered = ["1#state", "held", "2#limit", "1", "3#permits", "1"].map(str::to_owned);
    assert!(is_shown(
        &["…", "2# \"limit\" => (integer) 1", "…"],
        &answered
    ));
    assert!(is_shown(&["1# \"state\" => \"held\"", "…"], &answered));
    // A part is left out without a mark; a mark stands where nothing is left out.
    assert!(!is_shown(
        &["1# \"state\" => \"held\"", "3# \"permits\" => (integer) 1"],
        &answered
    ));
    assert!(!is_shown(&["…", "2# \"limit\" => (integer) 1"], &answered));
    assert!(!is_shown(&["2# \"limit\" => (integer) 1", "…"], &answered));
    // Another number.
    assert!(!is_shown(
        &["…", "4# \"permits\" => (integer) 1"],
        &answered
    ));
}
