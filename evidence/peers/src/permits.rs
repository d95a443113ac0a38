//! A thousand clients that take several permits of one semaphore: how long a large request waits, and whether any is overtaken.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use dlock_harness::{Ask, Server};

use crate::cell::{self, Figures, Load, Turn, CPU, RATE};
use crate::failure::Failure;
use crate::outcome::Outcome;
use crate::redisson::{Driver, Run};

/// The name in the outcome.
pub const GROUP: &str = "permits";
/// The number of clients.
pub const CLIENTS: usize = 1_000;
/// The number of permits of the semaphore.
pub const LIMIT: usize = 16;
/// The permits that the clients take, by their numbers in turn.
pub const SIZES: [usize; 10] = [8, 1, 2, 1, 4, 1, 2, 1, 1, 1];
/// The largest of these.
pub const LARGE: usize = 8;
/// How long a client keeps them.
pub const WORK: Duration = Duration::from_millis(5);
/// How long they ask.
pub const DURATION: Duration = Duration::from_secs(8);

/// The kinds: their names in the Java program and in the tables. The first is dlock.
pub const KINDS: [(&str, &str); 3] = [
    ("acquire", "dlock, `LIMIT 16 PERMITS k`"),
    ("rsemaphore", "Redisson `RSemaphore.acquire(k)`"),
    ("polling", "a script, tried every 100 ms"),
];

/// The situation's name.
pub const SITUATION: &str = "1,000 clients";
/// The situation's name in the run in which the order is checked.
pub const CHECKED: &str = "the order, checked";

/// Waits of large requests, and of the others, from the request to the grant.
pub const LARGE_P50: &str = "large p50 ms";
/// The wait that one large request in a hundred exceeds.
pub const LARGE_P99: &str = "large p99 ms";
/// The wait that one of the others in a hundred exceeds.
pub const SMALL_P99: &str = "small p99 ms";
/// Large requests that were granted while all still asked.
pub const LARGE_IN_TIME: &str = "large in time";
/// Requests that still waited 10 s after the last was sent.
pub const IN_VAIN: &str = "in vain";
/// Requests whose order is known.
pub const ORDERED: &str = "requests in order";
/// Requests that were granted after a later one.
pub const OVERTAKEN: &str = "overtaken";

/// Measures all kinds in turn, round after round, and then checks the order of dlock's grants.
pub fn measure(driver: &Driver, rounds: usize, outcome: &mut Outcome) -> Result<(), Failure> {
    let load = Load {
        clients: CLIENTS,
        hot: true,
        work: WORK,
        duration: if outcome.quick {
            DURATION / 4
        } else {
            DURATION
        },
    };
    let mut samples: Vec<Vec<Figures>> = KINDS.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for ((kind, name), samples) in KINDS.iter().zip(&mut samples) {
            eprintln!("permits, round {}: {name} …", round + 1);
            let server = Server::start();
            match driver.run(&server, kind, load, &words()) {
                Ok(run) => {
                    let figures = figures(&run, load);
                    samples.push(figures.map_err(|error| format!("{name}: {error}"))?);
                }
                Err(error) => {
                    let what = format!("permits, round {}: {name}: {error}", round + 1);
                    eprintln!("left out: {what}");
                    outcome.left_out.push(what);
                }
            }
        }
    }
    let measured = KINDS.iter().zip(&samples);
    for ((_, name), samples) in measured.filter(|(_, samples)| !samples.is_empty()) {
        outcome.add(GROUP, name, SITUATION, samples);
    }
    let (kind, name) = KINDS[0];
    eprintln!("permits, the order of {name} …");
    outcome.add(GROUP, name, CHECKED, &[order(driver, kind, load)?]);
    Ok(())
}

fn words() -> [String; 2] {
    [
        LIMIT.to_string(),
        SIZES.map(|size| size.to_string()).join(","),
    ]
}

fn size(turn: &Turn) -> usize {
    SIZES[turn.client % SIZES.len()]
}

fn figures(run: &Run, load: Load) -> Result<Figures, Failure> {
    let turns = &run.turns;
    let most = most_at_once(turns);
    if most > LIMIT {
        return Err(format!("{most} permits were held at once").into());
    }
    let waits = |is_meant: fn(usize) -> bool| {
        // A request in vain has waited at least this long.
        let mut waits: Vec<f64> = turns
            .iter()
            .chain(&run.waiting)
            .filter(|turn| is_meant(size(turn)))
            .map(|turn| (turn.granted - turn.asked).as_secs_f64() * 1e3)
            .collect();
        waits.sort_unstable_by(f64::total_cmp);
        waits
    };
    let at = |waits: &[f64], quantile: f64| {
        let place = (waits.len() as f64 * quantile) as usize;
        waits.get(place.min(waits.len().saturating_sub(1))).copied()
    };
    let (large, small) = (waits(|size| size == LARGE), waits(|size| size < LARGE));
    let in_time = turns
        .iter()
        .filter(|turn| size(turn) == LARGE && turn.granted < load.duration);
    let in_time = in_time.count() as f64;
    let common = cell::figures(turns, load, run.cpu_us);
    let mut figures: Figures = common
        .into_iter()
        .filter(|(name, _)| [RATE, CPU].contains(name))
        .collect();
    figures.extend([
        (LARGE_P50, at(&large, 0.5).ok_or("no large request")?),
        (LARGE_P99, at(&large, 0.99).ok_or("no large request")?),
        (SMALL_P99, at(&small, 0.99).ok_or("no small request")?),
        (LARGE_IN_TIME, in_time),
        (IN_VAIN, run.waiting.len() as f64),
    ]);
    Ok(figures)
}

/// Returns the most permits that were certainly held at one time: from the reply of the grant until the release is sent.
fn most_at_once(turns: &[Turn]) -> usize {
    let mut changes: Vec<(Duration, isize)> = turns
        .iter()
        .flat_map(|turn| {
            let size = size(turn) as isize;
            [(turn.granted, size), (turn.released, -size)]
        })
        .collect();
    // Releases come first within a nanosecond.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most as usize
}

/// Compares the tokens with the order in which `MONITOR` shows the requests. An earlier request must have the lower token.
fn order(driver: &Driver, kind: &str, load: Load) -> Result<Figures, Failure> {
    const END: &str = "nothing-follows";
    let server = Server::start();
    let mut monitor = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
    monitor.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::new(monitor);
    let mut answer = String::new();
    lines.read_line(&mut answer)?;
    let reader = thread::spawn(move || -> Result<Vec<usize>, Failure> {
        let mut arrivals = Vec::new();
        for line in lines.lines() {
            let line = line?;
            if line.contains(END) {
                return Ok(arrivals);
            }
            arrivals.extend(arrival(&line));
        }
        Err("the server showed no end".into())
    });
    let run = driver.run(&server, kind, load, &words())?;
    server.connection().run(&format!("ECHO {END}"));
    let arrivals = reader.join().map_err(|_| "the reader panicked")??;
    let mut by_client: HashMap<usize, Vec<u64>> = HashMap::new();
    for (turn, token) in run.turns.iter().zip(run.tokens) {
        by_client.entry(turn.client).or_default().push(token);
    }
    let tokens = in_order(&arrivals, &by_client)?;
    Ok(vec![
        (ORDERED, tokens.len() as f64),
        (OVERTAKEN, overtaken(&tokens) as f64),
    ])
}

/// Returns the client of a request for the measured semaphore.
fn arrival(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("\"DLOCK.ACQUIRE\" \"permits\" \"")?;
    let (owner, _) = rest.split_once('"')?;
    owner.rsplit_once(':')?.1.parse().ok()
}

/// Returns the tokens of requests in order of arrival. Each client's turns are in its own order.
fn in_order(arrivals: &[usize], by_client: &HashMap<usize, Vec<u64>>) -> Result<Vec<u64>, Failure> {
    let mut next: HashMap<usize, std::slice::Iter<u64>> = by_client
        .iter()
        .map(|(&client, tokens)| (client, tokens.iter()))
        .collect();
    let tokens: Option<Vec<u64>> = arrivals
        .iter()
        .map(|client| next.get_mut(client)?.next().copied())
        .collect();
    let tokens = tokens.ok_or("a request was not granted")?;
    if tokens.contains(&0) || next.into_values().any(|left| left.len() > 0) {
        return Err("a grant has no token, or nobody asked for it".into());
    }
    Ok(tokens)
}

/// Returns how many have a higher token than a later one.
fn overtaken(tokens: &[u64]) -> usize {
    let mut least = u64::MAX;
    let is_overtaken = |token: &&u64| {
        let is_above = **token > least;
        least = least.min(**token);
        is_above
    };
    tokens.iter().rev().filter(is_overtaken).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(client: usize, granted: u64, released: u64) -> Turn {
        let at = Duration::from_millis;
        Turn {
            client,
            asked: at(0),
            granted: at(granted),
            released: at(released),
        }
    }

    #[test]
    fn permits_above_the_limit_are_found() {
        // Two with eight permits, one after the other, and then one with one at the second's time.
        let mut turns = vec![turn(0, 1, 5), turn(10, 2, 4), turn(20, 5, 9)];
        assert_eq!(most_at_once(&turns), 16);
        turns.push(turn(1, 3, 4));
        assert_eq!(most_at_once(&turns), 17);
    }

    #[test]
    fn a_request_that_is_overtaken_is_found() {
        let lines = ["7", "8", "7", "9"].map(|owner| {
            format!("+1.5 [0 127.0.0.1:1] \"DLOCK.ACQUIRE\" \"permits\" \"a:{owner}\" \"BLOCK\"")
        });
        let arrivals: Vec<usize> = lines.iter().filter_map(|line| arrival(line)).collect();
        assert_eq!(arrivals, [7, 8, 7, 9]);
        assert_eq!(arrival(&lines[0].replace("permits", "warm")), None);
        let tokens = |eighth: u64, ninth: u64| {
            HashMap::from([(7, vec![10, 30]), (8, vec![eighth]), (9, vec![ninth])])
        };
        let overtaken_with = |eighth, ninth| {
            overtaken(&in_order(&arrivals, &tokens(eighth, ninth)).expect("all are known"))
        };
        assert_eq!(overtaken_with(20, 40), 0);
        // The last of them passed two.
        assert_eq!(overtaken_with(20, 15), 2);
        assert_eq!(overtaken_with(35, 40), 1);
        // Without a token there is no order.
        assert!(in_order(&arrivals, &tokens(20, 0)).is_err());
        assert!(in_order(&arrivals[1..], &tokens(20, 40)).is_err());
        assert!(in_order(&[7, 8, 7, 9, 9], &tokens(20, 40)).is_err());
    }
}
