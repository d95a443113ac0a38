//! `dlock top`: what is held, who waits, what is hot, live.

use crate::out::plain;
use crate::server::{items, number, text, Failure, Link, Place};
use crate::show::{listed, time};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use redis::cmd;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of a part.
const ROWS: usize = 10;

/// The counters that rates are made of.
#[derive(Default)]
struct Counted {
    grants: u64,
    waits: u64,
    wait_us: u64,
    timeouts: u64,
    expired: u64,
}

/// Shows it again and again. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn top(place: &Place, delay: Duration, times: Option<u64>) -> Result<u8, Failure> {
    let screen = io::stdout().is_terminal();
    let mut out = io::stdout();
    let shown = (|| -> io::Result<Result<(), Failure>> {
        if screen {
            terminal::enable_raw_mode()?;
            execute!(out, EnterAlternateScreen, cursor::Hide)?;
        }
        show(place, delay, times, screen)
    })();
    if screen {
        let _ = execute!(out, cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
    match shown {
        Ok(shown) => shown.map(|()| 0),
        // Whoever read it has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

fn show(
    place: &Place,
    delay: Duration,
    times: Option<u64>,
    screen: bool,
) -> io::Result<Result<(), Failure>> {
    let mut out = io::stdout();
    let (mut link, mut before, mut last) = (None, None, Instant::now());
    for turn in 0.. {
        if times.is_some_and(|times| turn >= times) {
            break;
        }
        let open = match &mut link {
            Some(open) => Ok(open),
            None => place.connect().map(|open| link.insert(open)),
        };
        let lines = open.and_then(|open| frame(open, &mut before, last.elapsed()));
        last = Instant::now();
        let lines = match lines {
            Ok(lines) => lines,
            // What is not there at the beginning is an error; later it is shown, and looked for.
            Err(failure) if turn == 0 || failure.is_final => return Ok(Err(failure)),
            Err(failure) => {
                (link, before) = (None, None);
                vec![failure.to_string()]
            }
        };
        let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
        if screen {
            let (columns, rows) = size();
            queue!(out, cursor::MoveTo(0, 0), Clear(ClearType::All))?;
            for line in lines.iter().take(rows.saturating_sub(1).into()) {
                let line: String = line.chars().take(columns.into()).collect();
                write!(out, "{line}\r\n")?;
            }
        } else {
            for line in &lines {
                writeln!(out, "{line}")?;
            }
            writeln!(out)?;
        }
        out.flush()?;
        if screen && is_quit(delay)? {
            break;
        }
        if !screen && times.is_none_or(|times| turn + 1 < times) {
            thread::sleep(delay);
        }
    }
    Ok(Ok(()))
}

/// Columns and rows; a terminal that does not know is of the usual size.
fn size() -> (u16, u16) {
    let known = terminal::size()
        .ok()
        .filter(|(columns, rows)| *columns > 0 && *rows > 0);
    known.unwrap_or((80, 24))
}

/// Waits for so long; returns true if q, Esc or Ctrl-C was pressed.
fn is_quit(delay: Duration) -> io::Result<bool> {
    let end = Instant::now() + delay;
    loop {
        if !event::poll(end.saturating_duration_since(Instant::now()))? {
            return Ok(false);
        }
        if let Event::Key(KeyEvent {
            code, modifiers, ..
        }) = event::read()?
        {
            let ctrl_c = code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
            if ctrl_c || matches!(code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
}

fn frame(
    link: &mut Link,
    before: &mut Option<Counted>,
    elapsed: Duration,
) -> Result<Vec<String>, Failure> {
    let fields = link.info("dlock")?;
    let of = |name: &str| {
        let field = fields
            .iter()
            .find(|(field, _)| field.strip_prefix("dlock_") == Some(name));
        field
            .and_then(|(_, value)| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let counted = Counted {
        grants: of("grants_immediate_total") + of("grants_waited_total"),
        waits: of("waits_total"),
        wait_us: of("wait_us_total"),
        timeouts: of("timeouts_total"),
        expired: of("expired_total"),
    };
    let mut lines = vec![
        format!(
            "{}: {} locks, {} holders, {} queued; {} connections wait",
            link.at,
            of("locks"),
            of("holders"),
            of("places_queued"),
            of("connections_waiting")
        ),
        rates(before.as_ref(), &counted, elapsed),
    ];
    if of("sessions") > 0 {
        lines.push(format!(
            "{} sessions: {} not kept; {} rows not seen",
            of("sessions"),
            of("sessions_not_alive"),
            of("session_rows")
        ));
    }
    let gauges = [
        ("quarantined", "in quarantine"),
        ("drained", "drained"),
        (
            "closed",
            "too few replicas confirm, or not yet: nothing is granted",
        ),
        (
            "eviction_possible",
            "locks can be evicted (maxmemory-policy)",
        ),
    ];
    lines.extend(
        gauges
            .iter()
            .filter(|(name, _)| of(name) > 0)
            .map(|(_, words)| format!("! {words}")),
    );
    *before = Some(counted);
    lines.push(String::new());
    lines.push("Locks with a queue:".to_owned());
    let list = link.ask(
        cmd("DLOCK.LIST")
            .arg(0)
            .arg("CONTENDED")
            .arg("COUNT")
            .arg(ROWS),
    )?;
    lines.extend(
        items(&list)
            .get(1)
            .map(items)
            .unwrap_or_default()
            .iter()
            .take(ROWS)
            .filter_map(listed),
    );
    lines.push(String::new());
    lines.push(format!(
        "{:<32} {:>10} {:>12} {:>12}",
        "Hot since the start", "waits", "mean wait", "longest"
    ));
    for lock in items(&link.ask(cmd("DLOCK.TOP").arg("COUNT").arg(ROWS))?) {
        let [key, waits, sum, longest, ..] = items(lock) else {
            continue;
        };
        let numbers = [waits, sum, longest].map(|value| number(value).unwrap_or(0));
        let [waits, sum, longest] = numbers;
        let mean = sum.checked_div(waits).unwrap_or(0);
        lines.push(format!(
            "{:<32} {waits:>10} {:>12} {:>12}",
            text(key),
            time(mean),
            time(longest)
        ));
    }
    Ok(lines)
}

fn rates(before: Option<&Counted>, now: &Counted, elapsed: Duration) -> String {
    let Some(before) = before else {
        return "a second: counted from now on".to_owned();
    };
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = |of: fn(&Counted) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
    let waits = now.waits.saturating_sub(before.waits);
    let mean = now
        .wait_us
        .saturating_sub(before.wait_us)
        .checked_div(waits)
        .unwrap_or(0);
    format!(
        "a second: {:.0} grants, {:.0} waits of {:.1} ms on average, {:.0} timed out, {:.0} leases ended",
        rate(|counted| counted.grants),
        rate(|counted| counted.waits),
        mean as f64 / 1e3,
        rate(|counted| counted.timeouts),
        rate(|counted| counted.expired)
    )
}
