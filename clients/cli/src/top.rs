//! `dlock top`: what is held, who waits, what is hot, live.

use crate::json;
use crate::out::plain;
use crate::server::{Failure, Link, Place};
use crate::show::{count, listed, number_of, of, page, rows, time};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use redis::{cmd, Value};
use std::cmp::Reverse;
use std::collections::BTreeMap;
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
pub(crate) fn top(
    place: &Place,
    delay: Duration,
    times: Option<u64>,
    as_json: bool,
) -> Result<u8, Failure> {
    let screen = io::stdout().is_terminal() && !as_json;
    let mut out = io::stdout();
    let shown = (|| -> io::Result<Result<(), Failure>> {
        if screen {
            terminal::enable_raw_mode()?;
            execute!(out, EnterAlternateScreen, cursor::Hide)?;
        }
        show(place, delay, times, screen, as_json)
    })();
    if screen {
        let _ = execute!(out, cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
    match shown {
        Ok(shown) => shown.map(|()| 0),
        // The reader of the output has closed it: that is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

fn show(
    place: &Place,
    delay: Duration,
    times: Option<u64>,
    screen: bool,
    as_json: bool,
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
        let lines = open.and_then(|open| {
            let seen = Seen::read(open)?;
            Ok(match as_json {
                true => vec![json::written(&seen.document())],
                false => seen.frame(open, &mut before, last.elapsed()),
            })
        });
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
            if !as_json {
                writeln!(out)?;
            }
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

/// What is asked for each update.
struct Seen {
    /// The fields of INFO, without `dlock_`.
    fields: Vec<(String, u64)>,
    /// Locks with a queue, the longest wait first.
    queued: Vec<Value>,
    /// The most contended locks.
    hot: Vec<Value>,
}

impl Seen {
    fn read(link: &mut Link) -> Result<Seen, Failure> {
        let fields = link.info("dlock")?;
        if fields.is_empty() {
            return Err(Failure::without_module(&link.at));
        }
        let fields = fields.into_iter().filter_map(|(name, value)| {
            let name = name.strip_prefix("dlock_")?.to_owned();
            Some((name, value.parse().ok()?))
        });
        // Of very many, those of the first page.
        let (_, mut queued) = page(link, "0", "*", true)?;
        let waited = |lock: &Value| number_of(lock, "first-waited-ms").unwrap_or(0);
        queued.sort_by_key(|lock| Reverse(waited(lock)));
        queued.truncate(ROWS);
        let hot = link.ask(cmd("DLOCK.TOP").arg("COUNT").arg(ROWS))?;
        Ok(Seen {
            fields: fields.collect(),
            queued,
            hot: rows(&hot, "key")?.to_vec(),
        })
    }

    fn number(&self, name: &str) -> u64 {
        let mut fields = self.fields.iter();
        fields
            .find(|(field, _)| field == name)
            .map_or(0, |(_, value)| *value)
    }

    fn document(&self) -> serde_json::Value {
        let rows = |rows: &[Value]| rows.iter().map(json::object).collect::<Vec<_>>();
        let fields = self.fields.iter().cloned();
        serde_json::json!({
            "numbers": fields.collect::<BTreeMap<String, u64>>(),
            "queued": rows(&self.queued),
            "hot": rows(&self.hot),
        })
    }

    fn frame(&self, link: &Link, before: &mut Option<Counted>, elapsed: Duration) -> Vec<String> {
        let of_it = |name| self.number(name);
        let counted = Counted {
            grants: of_it("grants_immediate_total") + of_it("grants_waited_total"),
            waits: of_it("waits_total"),
            wait_us: of_it("wait_us_total"),
            timeouts: of_it("timeouts_total"),
            expired: of_it("expired_total"),
        };
        let oldest = match of_it("oldest_wait_ms") {
            0 => String::new(),
            oldest => format!("; the oldest wait: {}", time(oldest)),
        };
        let connections = of_it("connections_waiting");
        let wait = if connections == 1 { "waits" } else { "wait" };
        let mut lines = vec![
            format!(
                "{}: {}, {}, {} queued; {} {wait}{oldest}",
                link.at,
                count(of_it("locks"), "lock"),
                count(of_it("holders"), "holder"),
                of_it("places_queued"),
                count(connections, "connection"),
            ),
            rates(before.as_ref(), &counted, elapsed),
        ];
        if of_it("sessions") > 0 {
            lines.push(format!(
                "{}: {} not kept; {} not seen",
                count(of_it("sessions"), "session"),
                of_it("sessions_not_alive"),
                count(of_it("session_rows"), "row")
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
        let set = gauges.iter().filter(|(name, _)| of_it(name) > 0);
        lines.extend(set.map(|(_, words)| format!("! {words}")));
        *before = Some(counted);
        lines.push(String::new());
        lines.push("Locks with a queue, the longest wait first:".to_owned());
        lines.extend(self.queued.iter().map(listed));
        lines.push(String::new());
        lines.push(format!(
            "{:<32} {:>10} {:>12} {:>12} {:>10}",
            "Hot since the start", "waits", "mean wait", "longest", "queued"
        ));
        for lock in &self.hot {
            let [waits, sum, longest, queued] = ["waits", "wait-ms", "longest-ms", "queued"]
                .map(|name| number_of(lock, name).unwrap_or(0));
            // Waits that have not ended have no time in the sum yet.
            let mean = sum.checked_div(waits.saturating_sub(queued)).unwrap_or(0);
            lines.push(format!(
                "{:<32} {waits:>10} {:>12} {:>12} {queued:>10}",
                of(lock, "key"),
                time(mean),
                time(longest)
            ));
        }
        lines
    }
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
