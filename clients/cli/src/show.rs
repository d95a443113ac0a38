//! Who holds, who waits, which locks there are; and the end of a hold by an operator.

use crate::out::say;
use crate::server::{field, items, number, text, Failure, Place, BOUND};
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

fn of(value: &Value, name: &str) -> String {
    field(value, name).map(text).unwrap_or_default()
}

fn time_of(value: &Value, name: &str) -> Option<String> {
    field(value, name).and_then(number).map(time)
}

/// Prints who holds a lock, and who waits for it. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn who(place: &Place, lock: &str) -> Result<u8, Failure> {
    let info = place
        .connect()?
        .ask_routed(place, cmd("DLOCK.INFO").arg(lock), BOUND)?;
    let all = |name| field(&info, name).map(items).unwrap_or_default();
    let (holders, queue) = (all("holders"), all("queue"));
    if holders.is_empty() && queue.is_empty() {
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
            permits(holder),
            session(holder),
            of(holder, "token")
        );
        if let Some(connection) = connection(holder) {
            say!("    connection {connection}");
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

/// A place in a queue.
fn queued(place: &Value) -> String {
    let owner = of(place, "owner");
    let waited = time_of(place, "waited-ms").unwrap_or_default();
    let left = time_of(place, "left-ms");
    if of(place, "kind") == "absent" {
        let kept = left.map_or(String::new(), |left| format!(", kept for {left} more"));
        let permits = permits(place);
        let session = session(place);
        if !session.is_empty() {
            return format!("{owner} has had a place for {waited}{permits}{session}");
        }
        return format!("{owner} has had a place for {waited}{permits}, and nobody is there{kept}");
    }
    let left = left.map_or(String::new(), |left| format!(", {left} left"));
    let at = connection(place).map_or(String::new(), |at| format!(", connection {at}"));
    let session = session(place);
    format!(
        "{owner} waits for {waited}{left}{}{session}{at}",
        permits(place)
    )
}

/// The permits of a holder or of a request, if they are several.
fn permits(of_it: &Value) -> String {
    match of(of_it, "permits").as_str() {
        "" | "1" => String::new(),
        several => format!(", {several} permits"),
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
fn connection(of_it: &Value) -> Option<String> {
    let at = Some(of(of_it, "addr")).filter(|at| !at.is_empty())?;
    Some(format!("{at} {}", of(of_it, "name")).trim_end().to_owned())
}

/// A line of `DLOCK.LIST`.
pub(crate) fn listed(lock: &Value) -> Option<String> {
    let [key, owner, holders, queued, left, rest @ ..] = items(lock) else {
        return None;
    };
    let by = match (number(holders).unwrap_or(0), text(owner)) {
        (0, _) => "kept for the first in its queue".to_owned(),
        (1, owner) => format!("held by {owner}"),
        (more, owner) => format!("held by {owner} and {} more", more - 1),
    };
    let left = number(left).map_or(String::new(), |ms| format!(", {} left", time(ms)));
    let queued = match number(queued).unwrap_or(0) {
        0 => String::new(),
        queued => format!(", {queued} queued"),
    };
    // Servers before 0.5.0 have no sessions.
    let session = match rest {
        [name, not_alive, ..] => in_session(&text(name), number(not_alive)),
        _ => String::new(),
    };
    Some(format!("{:<32} {by}{left}{queued}{session}", text(key)))
}

/// Prints the locks of the database; in a cluster those of the node that is asked. Returns the exit code.
///
/// # Errors
/// The same.
pub(crate) fn ls(place: &Place, pattern: &str, contended: bool) -> Result<u8, Failure> {
    let mut link = place.connect()?;
    let mut cursor = "0".to_owned();
    loop {
        let mut list = cmd("DLOCK.LIST");
        list.arg(&cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(1_000);
        if contended {
            list.arg("CONTENDED");
        }
        let page = link.ask(&list)?;
        let [next, locks] = items(&page) else {
            return Err(Failure::new("DLOCK.LIST has an answer that is not known"));
        };
        items(locks)
            .iter()
            .filter_map(listed)
            .for_each(|line| say!("{line}"));
        cursor = text(next);
        if cursor == "0" {
            return Ok(0);
        }
    }
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
            say!("{ended} ended");
            Ok(0)
        }
    }
}
