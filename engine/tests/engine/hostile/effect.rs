//! Effects of any bytes: refused whole, or applied as they say. A server that applied one keeps working with it.

use super::story::Story;
use crate::client::Client;
use crate::server::Server;
use crate::world::{name, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::change::{self, Change};
use dlock_engine::lock::token::plausible;
use dlock_engine::Refusal;
use dlock_engine::{codec, Entry, Lock, Policy};

/// Applies an effect: the cost of reading it. Returns whether it was accepted.
pub fn read(effect: &[u8]) -> bool {
    let (mut entry, mut clock) = (Entry::<Box<Lock>>::default(), Default::default());
    entry.follow(effect, &mut clock, |_, _, _| {}).is_ok()
}

/// Checks the property.
pub fn hold(effect: &[u8]) {
    let now = World::new(Policy::default()).now;
    let shop = name(0, "shop");
    let mut server = Server::new(false, Policy::default());
    let answer = server.run(now, 0, Client::primary(), &[b"apply", b"shop", effect]);
    server.work_off();
    let Some(changes) = change::read(effect) else {
        let later = change::later(effect).map(|format| Refusal::NewerFormat {
            format,
            known: change::FORMAT,
        });
        let refusal = later.unwrap_or(Refusal::Malformed);
        assert_eq!(answer, Err(Error::Refused(refusal)));
        assert!(
            server.data().is_empty(),
            "the effect was refused and changed something"
        );
        return;
    };
    assert_eq!(answer, Ok(Reply::Ok));
    let lock = applied(&changes);
    let expected = (!lock.is_empty()).then(|| Some((codec::encode(&lock), lock.key_expiry())));
    assert_eq!(server.data().remove(&shop), expected);
    written_again(effect, &changes);
    if !lock.is_empty() {
        kept(&lock);
    }
    // No server makes a number further ahead; it would leave no room for later numbers.
    let believed = changes.iter().all(|change| match change {
        Change::Hold(hold) => plausible(hold.token.0, now),
        Change::Ticket { number, .. } => plausible(number.0, now),
        _ => true,
    });
    // A primary sends the bare word instead of a usual release, which means nothing where there is no hold.
    if believed && !change::is_usual_release(effect) {
        taken_over(effect);
    }
}

fn applied(changes: &[Change]) -> Lock {
    let mut lock = Lock::default();
    changes.iter().for_each(|change| lock.apply(change));
    lock
}

/// Checks that the changes of an effect keep their meaning when they are written again, in no more bytes.
fn written_again(effect: &[u8], changes: &[Change]) {
    let mut written = Vec::new();
    change::begin(&mut written);
    changes.iter().for_each(|change| change.write(&mut written));
    assert_eq!(change::read(&written).as_deref(), Some(changes));
    assert!(written.len() <= effect.len());
}

/// Checks that the lock can be saved and read, and written to an AOF and replayed.
pub fn kept(lock: &Lock) {
    let saved = codec::encode(lock);
    let Some(loaded) = codec::decode(&saved) else {
        panic!("{lock:?} is saved as {saved:?}, which cannot be read");
    };
    assert_eq!(codec::encode(&loaded), saved);
    assert_eq!(loaded.key_expiry(), lock.key_expiry());
    let rebuilt = change::rebuild(lock);
    let Some(changes) = change::read(&rebuilt) else {
        panic!("{lock:?} is rewritten as {rebuilt:?}, which cannot be read");
    };
    assert_eq!(codec::encode(&applied(&changes)), saved);
}

/// Promotes the replica, and lets it work.
fn taken_over(effect: &[u8]) {
    let mut story = Story::new();
    let (shop, now) = (name(0, "shop"), story.world.now);
    story.world.replica.follow(&shop, effect, now);
    story.world.crash(0, 0);
    drop(story.send(1, &[b"ACQUIRE", b"shop", b"a", b"BLOCK", b"0"]));
    drop(story.send(2, &[b"FAIRACQUIRE", b"shop", b"b", b"BLOCK", b"0"]));
    drop(story.send(3, &[b"INFO", b"shop"]));
    story.world.pass(10_000);
    drop(story.send(3, &[b"RELEASE", b"shop", b"a"]));
    drop(story.send(3, &[b"FORCERELEASE", b"shop"]));
    // Beyond the window of any ticket that came with it.
    story.world.pass(3_600_000);
    if !story.world.waits.is_empty() {
        story.fail("a request waits for a lock that has no holder");
    }
}
