//! Clients that send anything: every command answers, a refused one has changed nothing, and every promise holds.
//!
//! The bytes are a conversation, a line a step, words with one space between (so that an empty word is easy to write):
//!
//! | line | what happens |
//! |---|---|
//! | `1 ACQUIRE shop ann 50` | connection 1 sends this (1 to 5; 5 is in database 1; 6 to 9 are scripts) |
//! | `+70`, `!70` | milliseconds pass; they pass with the server busy until the next line |
//! | `x1`, `c1` | connection 1 ends; it breaks without the server noticing |
//! | `d shop`, `o shop`, `r shop yard`, `f` | a key is deleted, overwritten, renamed; all are |
//! | `e`, `t` | the server removes the keys whose TTL has run out; a second passes |
//! | `q 70`, `g`, `h 70`, `l 2` | quarantine begins; `grants` is toggled; `max-hold-ms`; the caps |
//!
//! In a word `%41` is the byte 0x41, `@` the last token, `$` the id of the last session, `^` 1,024 bytes and `^^` one more.

use super::story::{Story, CONNECTIONS};
use crate::arguments::clear;
use crate::server::command;
use crate::world::Op;
use dlock_commands::table::{Verb, COMMANDS};
use dlock_commands::Reply;
use dlock_engine::{Millis, NameRef, Token, MAX_OWNER};

/// The most steps: more show nothing new and take long.
const STEPS: usize = 60;

/// Checks the property.
pub fn hold(conversation: &[u8]) {
    let mut story = Story::new();
    // Whether the server has not processed what is due, and the id of the last session.
    let (mut late, mut session) = (false, 0);
    for line in conversation.split(|byte| *byte == b'\n').take(STEPS) {
        let Some((first, rest)) = line.split_first() else {
            continue;
        };
        story.world.only_time &= *first == b'+';
        match first {
            b'1'..=b'9' => {
                say(
                    &mut story,
                    u64::from(first - b'0'),
                    rest,
                    late,
                    &mut session,
                );
                story.look(true);
            }
            b'!' => {
                let ms = number(rest);
                story.tell(format!("busy for {ms} ms"));
                story.world.jump(ms);
            }
            _ => {
                let orderly = happen(&mut story, *first, rest);
                story.look(orderly);
            }
        }
        late = *first == b'!';
    }
    story.end();
}

/// Sends a line on a connection. Learns the id of a session from its reply.
fn say(story: &mut Story, id: u64, line: &[u8], late: bool, session: &mut u64) {
    let mut words = self::words(line, story.world.last_token.0, *session);
    let Some(verb) = words.first_mut() else {
        return;
    };
    // Any word stands for some command.
    let named = std::str::from_utf8(verb).ok().and_then(command);
    let spec = named.unwrap_or_else(|| {
        let at = usize::from(verb.first().copied().unwrap_or(0));
        &COMMANDS[at % COMMANDS.len()]
    });
    *verb = spec.name.as_bytes().to_vec();
    let before = story.state();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match story.send(id, &words) {
        Ok(_) if spec.internal() => story.fail("a command for replication only was answered"),
        Ok(reply) => {
            if !sound(&reply) {
                story.fail("the reply is malformed");
            }
            match (spec.verb, &reply) {
                (Verb::Session, Reply::Array(parts)) => *session = id_in(parts.first()),
                (_, Reply::Array(parts)) if words.contains(&&b"IN"[..]) => {
                    *session = id_in(parts.last());
                }
                _ => {}
            }
        }
        Err(error) if !clear(&error) => story.fail("the error does not say what is wrong"),
        // The first command settles everything that was due.
        Err(_) if late => {}
        Err(error) => {
            story.look(true);
            if story.state() != before {
                story.fail(&format!(
                    "the command was refused ({error}) and changed something"
                ));
            }
        }
    }
}

/// Performs an event that is no command. Returns whether only the module created and removed keys.
fn happen(story: &mut Story, what: u8, rest: &[u8]) -> bool {
    let (id, ms) = (number(rest) % (CONNECTIONS + 1), number(rest));
    let keys = words(rest, 0, 0);
    let key = |at: usize| {
        let key = keys.get(at).map_or(&b"shop"[..], Vec::as_slice);
        NameRef { db: 0, key }.to_owned()
    };
    let op = match what {
        b'd' => Op::Del(key(0)),
        b'o' => Op::Overwrite(key(0)),
        b'r' => Op::Rename(key(0), key(1)),
        b'f' => Op::Flush(None),
        _ => {
            story.tell(format!("{} {ms}", char::from(what)));
            match what {
                b'+' => story.world.pass(ms),
                b'x' => story.world.dies(id),
                b't' => story.world.heartbeat(),
                b'c' => drop(story.world.cut.insert(id)),
                b'q' => {
                    let until = story.world.now.steady().after(ms);
                    story
                        .world
                        .configure(|policy| policy.quarantine_until = until);
                }
                b'g' => story
                    .world
                    .configure(|policy| policy.grants = !policy.grants),
                b'h' => story.world.configure(|policy| policy.max_hold_ms = ms),
                b'l' => story.world.configure(|policy| {
                    let most = 1 + ms as usize;
                    (policy.max_queue, policy.max_holders) = (most, most);
                    (policy.max_places, policy.max_waiters) = (2 * most, most);
                }),
                b'e' => {
                    story.world.expire_keys();
                    return false;
                }
                _ => {}
            }
            return true;
        }
    };
    story.tell(format!("{op:?}"));
    match op {
        Op::Rename(from, to) => story.world.rename(from, to),
        op => story.world.alter(op),
    }
    false
}

/// Returns the id of a session in a reply.
fn id_in(part: Option<&Reply>) -> u64 {
    match part {
        Some(Reply::Integer(id)) => *id,
        _ => 0,
    }
}

/// Returns true if a reply is well-formed: tokens and counts as promised, and every integer readable by all clients.
fn sound(reply: &Reply) -> bool {
    match reply {
        Reply::Grant(token, holds, _) => (Token(1)..Token::END).contains(token) && *holds > 0,
        Reply::Integer(value) => i64::try_from(*value).is_ok(),
        Reply::Array(parts) => parts.iter().all(sound),
        Reply::Map(fields) => fields.iter().all(|(_, value)| sound(value)),
        _ => true,
    }
}

/// Returns the number at the beginning of a line; small, so that time does not run away.
fn number(text: &[u8]) -> Millis {
    let digits = text.iter().skip_while(|byte| **byte == b' ');
    digits
        .map_while(|byte| char::from(*byte).to_digit(10))
        .take(7)
        .fold(0, |sum, digit| 10 * sum + Millis::from(digit))
}

/// Returns the words of a line.
fn words(line: &[u8], last_token: u64, session: u64) -> Vec<Vec<u8>> {
    let line = line.strip_prefix(b" ").unwrap_or(line);
    line.split(|byte| *byte == b' ')
        .map(|word| match word {
            b"@" => last_token.to_string().into_bytes(),
            b"$" => session.to_string().into_bytes(),
            b"^" => vec![b'x'; MAX_OWNER],
            b"^^" => vec![b'x'; MAX_OWNER + 1],
            word => unescaped(word),
        })
        .collect()
}

fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let digit = |at: usize| char::from(*tail.get(at)?).to_digit(16);
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((16 * high + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}
