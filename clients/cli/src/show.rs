//! Who holds, who waits, which locks there are; and the end of a hold by an operator.

use crate::json;
use crate::out::say;
use crate::server::{field, items, number, text, Failure, Link, Place, BOUND};
use redis::{cmd, Value};
use std::time::Duration;

/// Nobody holds it.
const NOBODY: u8 = 1;

/// Milliseconds as a length of time: `29.5s`.
pub(crate) fn time(ms: u64) -> String {
    if ms < 60_000 {
        return format!("{:.1}s", ms as f64 / 1e3);
    }
    humantime::format_duration(Duration::from_secs(ms / 1_000)).to_string()
}

/// A field as text; nothing if it is not there.
pub(crate) fn of(value: &Value, name: &str) -> String {
    field(value, name).map(text).unwrap_or_default()
}

/// A field as a number.
pub(crate) fn number_of(value: &Value, name: &str) -> Option<u64> {
    field(value, name).and_then(number)
}

fn time_of(value: &Value, name: &str) -> Option<String> {
    number_of(value, name).map(time)
}

/// A number with its noun: `1 lock`, `2 locks`.
pub(crate) fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    }
}

/// The rows of a reply, each of names and values.
///
/// # Errors
/// They have no field of this name: the module is older than this program.
pub(crate) fn rows<'v>(reply: &'v Value, name: &str) -> Result<&'v [Value], Failure> {
    let rows = items(reply);
    match rows.iter().all(|row| field(row, name).is_some()) {
        true => Ok(rows),
        false => Err(Failure::new(
            "the answer is not known: the module of this server is older than 0.5.0",
        )),
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Prints who holds a lock, and who waits for it. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn who(place: &Place, lock: &str, as_json: bool) -> Result<u8, Failure> {
    let info = place
        .connect()?
        .ask_routed(place, cmd("DLOCK.INFO").arg(lock), BOUND)?;
    let all = |name| field(&info, name).map(items).unwrap_or_default();
    let (holders, queue) = (all("holders"), all("queue"));
    let is_free = holders.is_empty() && queue.is_empty();
    if as_json {
        let mut document = json::fields(&info);
        document.insert("lock".to_owned(), lock.into());
        if is_free {
            document.insert("state".to_owned(), "free".into());
        }
        json::print(&document.into());
        return Ok(if is_free { NOBODY } else { 0 });
    }
    if is_free {
        say!("{lock} is free");
        return Ok(NOBODY);
    }
    say!("{lock} is {}", of(&info, "state"));
    for holder in holders {
        let owner = of(holder, "owner");
        let held = time_of(holder, "held-ms").map_or(String::new(), |time| format!(" for {time}"));
        let left = time_of(holder, "lease-ms").unwrap_or_default();
        let ties: Vec<&str> = [
            ("ephemeral", "ends with its connection"),
            ("auto", "renewed by the server"),
        ]
        .into_iter()
        .filter(|(name, _)| of(holder, name) == "1")
        .map(|(_, meaning)| meaning)
        .collect();
        let ties = if ties.is_empty() {
            String::new()
        } else {
            format!(", {}", ties.join(", "))
        };
        say!(
            "  held by {owner}{held}, {left} left of its lease{ties}{}{}, token {}",
            share(holder),
            session(holder),
            of(holder, "token")
        );
        if let Some(connection) = connection(holder) {
            say!("    connection {connection}");
        }
        if let Some(why) = lifeless(holder) {
            say!("    {why}");
            say!(
                "    to end it: dlock release {} {}",
                quoted(lock),
                quoted(&owner)
            );
        }
    }
    for (at, place) in queue.iter().enumerate() {
        say!("  {}. {}", at + 1, queued(place));
    }
    let shown = queue.len() as u64;
    match field(&info, "queued").and_then(number) {
        Some(queued) if queued > shown => say!("  and {} more", queued - shown),
        _ => {}
    }
    Ok(0)
}

/// Why a hold will not be released, as far as the server can tell.
fn lifeless(holder: &Value) -> Option<String> {
    let session = of(holder, "in");
    if !session.is_empty() {
        let is_alive = of(holder, "alive") == "1";
        return (!is_alive).then(|| {
            format!("its program does not keep session {session}: it has ended or hangs, and will not release it")
        });
    }
    (of(holder, "gone") == "1").then(|| {
        "its connection is closed: it will not release it, unless its program uses another, or a script"
            .to_owned()
    })
}

/// A place in a queue.
fn queued(place: &Value) -> String {
    let owner = of(place, "owner");
    let waited = time_of(place, "waited-ms").unwrap_or_default();
    let left = time_of(place, "left-ms");
    if of(place, "kind") == "absent" {
        let kept = left.map_or(String::new(), |left| format!(", kept for {left} more"));
        let share = share(place);
        let session = session(place);
        if !session.is_empty() {
            return format!("{owner} has had a place for {waited}{share}{session}");
        }
        return format!("{owner} has had a place for {waited}{share}, and nobody is there{kept}");
    }
    let left = left.map_or(String::new(), |left| format!(", {left} left"));
    let at = connection(place).map_or(String::new(), |at| format!(", connection {at}"));
    let session = session(place);
    format!(
        "{owner} waits for {waited}{left}{}{session}{at}",
        share(place)
    )
}

/// How a holder or a request shares the lock: its limit and its permits. Nothing if it is exclusive.
fn share(of_it: &Value) -> String {
    match (of(of_it, "limit").as_str(), of(of_it, "permits").as_str()) {
        ("" | "1", _) => String::new(),
        ("0", _) => ", shared".to_owned(),
        (limit, "" | "1") => format!(", limit {limit}"),
        (limit, several) => format!(", {several} permits of {limit}"),
    }
}

/// The session of a holder or of a request, and since when nobody keeps it.
fn session(of_it: &Value) -> String {
    let since = field(of_it, "since-ms").and_then(number);
    let alive = of(of_it, "alive") == "1";
    in_session(&of(of_it, "in"), since.filter(|_| !alive))
}

/// A session, and for how many milliseconds nobody has kept it; nothing without a name.
fn in_session(name: &str, not_alive: Option<u64>) -> String {
    match (name, not_alive.map(time)) {
        ("", _) => String::new(),
        (name, None) => format!(", in session {name}"),
        (name, Some(since)) => format!(", in session {name}, which nobody has kept for {since}"),
    }
}

/// The address and name of a connection, if this user may see them and it is there.
pub(crate) fn connection(of_it: &Value) -> Option<String> {
    let at = Some(of(of_it, "addr")).filter(|at| !at.is_empty())?;
    Some(format!("{at} {}", of(of_it, "name")).trim_end().to_owned())
}

/// A line of `DLOCK.LIST`.
pub(crate) fn listed(lock: &Value) -> String {
    let by = match (number_of(lock, "held").unwrap_or(0), of(lock, "owner")) {
        (0, _) => "kept for the first in its queue".to_owned(),
        (1, owner) => format!("held by {owner}"),
        (more, owner) => format!("held by {owner} and {} more", more - 1),
    };
    let left = time_of(lock, "lease-ms").map_or(String::new(), |left| format!(", {left} left"));
    let session = in_session(&of(lock, "in"), number_of(lock, "not-alive-ms"));
    let queued = match number_of(lock, "queued").unwrap_or(0) {
        0 => String::new(),
        queued => {
            let first = time_of(lock, "first-waited-ms").unwrap_or_default();
            format!("; {queued} queued, the first for {first}")
        }
    };
    format!("{:<32} {by}{left}{session}{queued}", of(lock, "key"))
}

/// Returns the cursor of the page after this one, and this page of the list of locks: about a thousand, from `cursor` on.
///
/// # Errors
/// The same.
pub(crate) fn page(
    link: &mut Link,
    cursor: &str,
    pattern: &str,
    contended: bool,
) -> Result<(String, Vec<Value>), Failure> {
    let mut list = cmd("DLOCK.LIST");
    list.arg(cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(1_000);
    if contended {
        list.arg("CONTENDED");
    }
    let page = link.ask(&list)?;
    match items(&page) {
        [next, locks] => Ok((text(next), rows(locks, "key")?.to_vec())),
        _ => Err(Failure::new("DLOCK.LIST has an answer that is not known")),
    }
}

/// Prints the locks of the database; in a cluster those of the node that is asked. Returns the exit code.
///
/// # Errors
/// The same.
pub(crate) fn ls(
    place: &Place,
    pattern: &str,
    contended: bool,
    as_json: bool,
) -> Result<u8, Failure> {
    let mut link = place.connect()?;
    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
    loop {
        let (next, locks) = page(&mut link, &cursor, pattern, contended)?;
        match as_json {
            true => all.extend(locks.iter().map(json::object)),
            false => locks.iter().for_each(|lock| say!("{}", listed(lock))),
        }
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    if as_json {
        json::print(&all.into());
    }
    Ok(0)
}

/// Ends the holds of a lock. Returns the exit code.
///
/// # Errors
/// The same.
pub(crate) fn release(place: &Place, lock: &str, owner: Option<&str>) -> Result<u8, Failure> {
    let mut force = cmd("DLOCK.FORCERELEASE");
    force.arg(lock);
    if let Some(owner) = owner {
        force.arg(owner);
    }
    let ended = place.connect()?.ask_routed(place, &force, BOUND)?;
    match number(&ended).unwrap_or(0) {
        0 => {
            say!("{lock} is held by nobody");
            Ok(NOBODY)
        }
        ended => {
            say!("{} ended", count(ended, "hold"));
            Ok(0)
        }
    }
}
