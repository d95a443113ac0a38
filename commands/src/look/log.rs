//! `DLOCK.LOG`: what was not ordinary, afterwards.

use crate::call::{Call, Reply};
use crate::error::Error;
use crate::table::{Args, Spec};
use crate::words::args;
use dlock_engine::log::{Entry, Subject};
use dlock_engine::{ClientId, Keyspace, Name, Refusal, Token};
use std::rc::Rc;

/// The entries that are shown without `COUNT`.
const SHOWN: u64 = 10;

/// Shows the newest entries, of the locks that the user may read: `[COUNT n] [KEY key] [RESET]`. RESET empties the log after reading.
pub(crate) fn run<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if given.reset && !call.caller.may_reset() {
        return Err(Error::NoPermission("dlock.log reset".into()));
    }
    let most = given.count(SHOWN);
    let wanted = |entry: &&Entry| {
        let name = &entry.subject.name;
        let is_named = |key: &[u8]| (name.db, &*name.key) == (call.db, key);
        given.of_key.is_none_or(is_named)
    };
    let entries: Vec<&Entry> = call.engine.log().newest_first().filter(wanted).collect();
    let keys = entries.iter().map(|entry| &*entry.subject.name.key);
    let readable = call.caller.may_read(&keys.collect::<Vec<_>>());
    let shown = entries.iter().zip(readable).filter(|(_, may)| *may);
    let names_clients = call.caller.may_list_clients();
    let rows = shown.take(most).map(|(entry, _)| row(entry, names_clients));
    let reply = Reply::array(rows);
    if given.reset {
        call.engine.reset_log();
    }
    Ok(reply)
}

fn row(entry: &Entry, names_clients: bool) -> Reply {
    let Entry { subject, .. } = entry;
    let number = |number: Option<u64>| number.map_or(Reply::Null, Reply::Integer);
    let text = |text: &[u8]| Reply::Bulk(text.to_vec());
    let texts = |text: &Option<Rc<[u8]>>| {
        text.as_ref()
            .map_or(Reply::Null, |text| Reply::Bulk(text.to_vec()))
    };
    let mut fields = vec![
        ("number", Reply::Integer(entry.number)),
        ("time", Reply::Integer(entry.at.0)),
        ("key", text(&subject.name.key)),
        ("db", Reply::number(subject.name.db)),
        ("how", Reply::Text(entry.how.word())),
        ("owner", text(&subject.owner)),
        ("token", number(subject.token.map(|token| token.0))),
        ("held-ms", number(subject.held_ms)),
        ("waited-ms", number(subject.waited_ms)),
        ("queued", Reply::Integer(entry.waiting.count as u64)),
        ("next", texts(&entry.waiting.next)),
        ("in", text(subject.session.as_deref().unwrap_or_default())),
        ("client", Reply::Integer(subject.client.0)),
    ];
    if let Some(origin) = entry.origin.as_ref().filter(|_| names_clients) {
        fields.extend([("addr", text(&origin.addr)), ("name", text(&origin.name))]);
    }
    Reply::Map(fields)
}

/// Logs a command that was refused, if its refusal is not ordinary.
#[cold]
pub(crate) fn refused<K: Keyspace>(
    call: &mut Call<K>,
    spec: &'static Spec,
    words: &[&[u8]],
    refusal: &Refusal,
) {
    let (db, now, client) = (call.db, call.now, ClientId(call.caller.client()));
    let policy = call.engine.policy().clone();
    let subject = || {
        let given = args::read(spec, words, &policy).unwrap_or_default();
        Subject {
            name: Name {
                db,
                key: Rc::from(given.key()),
            },
            owner: Rc::from(given.owner.unwrap_or_default()),
            token: given.token.map(Token),
            held_ms: None,
            waited_ms: None,
            client,
            session: given.session.map(Rc::from),
        }
    };
    call.engine.log_refusal(refusal, subject, now);
}
