//! `dlock log`: what was not ordinary, afterwards.

use crate::json;
use crate::out::say;
use crate::server::{items, Failure, Place, BOUND};
use crate::show::{connection, number_of, of, rows, time};
use redis::{cmd, Value};
use std::time::{Duration, UNIX_EPOCH};

/// Prints the newest entries, the newest first: of one lock, or of all. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn log(
    place: &Place,
    lock: Option<&str>,
    most: u64,
    as_json: bool,
) -> Result<u8, Failure> {
    let mut link = place.connect()?;
    let mut ask = cmd("DLOCK.LOG");
    ask.arg("COUNT").arg(most.max(1));
    if let Some(lock) = lock {
        // The log names no key, so that a cluster sends it nowhere. This question leads to the node of the lock.
        link.ask_routed(place, cmd("DLOCK.HELD").arg(lock), BOUND)?;
        ask.arg("KEY").arg(lock);
    }
    let reply = link.ask(&ask)?;
    let entries = rows(&reply, "number")?;
    if as_json {
        json::print(&entries.iter().map(json::object).collect());
        return Ok(0);
    }
    for entry in entries {
        say!("{}", told(entry));
        for line in details(entry) {
            say!("    {line}");
        }
    }
    if items(&reply).is_empty() {
        let whose = lock.map_or(String::new(), |lock| format!(" with {lock}"));
        say!("nothing out of the ordinary has happened{whose}, as far as this server remembers");
    }
    Ok(0)
}

/// When, which lock, and what.
fn told(entry: &Value) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(number_of(entry, "time").unwrap_or(0));
    let (key, owner) = (of(entry, "key"), of(entry, "owner"));
    let held = number_of(entry, "held-ms").map(time);
    let waited = number_of(entry, "waited-ms").map(time).unwrap_or_default();
    let how = of(entry, "how");
    let what = match (how.as_str(), held) {
        ("expired", Some(held)) => format!("the lease of {owner} ran out after {held}"),
        ("released", Some(held)) => format!("{owner} released it after {held}"),
        ("forced", Some(held)) => format!("an operator ended the hold of {owner} after {held}"),
        ("closed", Some(held)) => {
            format!("the hold of {owner} ended with its connection after {held}")
        }
        ("session", Some(held)) => {
            format!("the hold of {owner} ended with its session after {held}")
        }
        ("removed", Some(held)) => {
            format!("the key was removed under {owner}, who had held it for {held}")
        }
        ("renamed", Some(held)) => {
            format!("the key got another name under {owner}, who had held it for {held}")
        }
        ("undelivered", Some(_)) => {
            format!("{owner} was granted it, and had gone or was not confirmed: given back")
        }
        ("granted", _) => format!("{owner} got it after {waited}"),
        ("timeout", _) => format!("{owner} waited for {waited}, and its time was up"),
        ("cancelled", _) => format!("the place of {owner} was cancelled after {waited}"),
        ("replaced", _) => format!("{owner} asked again after {waited}: the older wait ended"),
        ("gone", _) => format!("{owner} went after it had waited for {waited}"),
        ("lapsed", _) => format!("nobody came for the ticket of {owner}, made {waited} before"),
        (code, _) if owner.is_empty() => format!("refused with {code}"),
        (code, _) => format!("{owner} was refused with {code}"),
    };
    format!("{}  {key}  {what}", humantime::format_rfc3339_millis(at))
}

/// Who waited, and who it was.
fn details(entry: &Value) -> Vec<String> {
    let waiting = match (number_of(entry, "queued").unwrap_or(0), of(entry, "next")) {
        (0, _) => None,
        (1, next) => Some(format!("{next} waited")),
        (queued, next) => Some(format!("{queued} waited, {next} first")),
    };
    let session = Some(of(entry, "in")).filter(|name| !name.is_empty());
    let session = session.map(|name| format!("session {name}"));
    let at = connection(entry).map(|at| format!("connection {at}"));
    let token = number_of(entry, "token").map(|token| format!("token {token}"));
    let parts: Vec<String> = [waiting, session, at, token]
        .into_iter()
        .flatten()
        .collect();
    match parts.is_empty() {
        true => Vec::new(),
        false => vec![parts.join("; ")],
    }
}
