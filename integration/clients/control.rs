//! Control of a stage's servers by the tests: a line in, a line out, on a port of this process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{self, catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use dlock_harness::stage::Stage;

use crate::path::Path;

/// Paths to servers, by the address at which they begin.
type Paths = Mutex<HashMap<String, Path>>;

/// The name of the threads that answer tests.
const ANSWERING: &str = "answering";

/// A stage whose servers the tests can control.
pub struct Served {
    stage: Arc<Mutex<Stage>>,
    address: SocketAddr,
}

/// Serves the control of a stage until this process ends. The servers end with the [`Served`].
pub fn serve(stage: Stage) -> Served {
    tell_only_the_test();
    let stage = Arc::new(Mutex::new(stage));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let weak = Arc::downgrade(&stage);
    let paths = Arc::new(Paths::default());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (weak, paths) = (weak.clone(), paths.clone());
            let answering = thread::Builder::new().name(ANSWERING.to_owned());
            let started = answering.spawn(move || {
                let line = |line: &str| match weak.upgrade() {
                    // Without the stage's lock: neither may wait for a failover.
                    Some(_) if line == "port" => reply(Ok(dlock_harness::free_port().to_string())),
                    Some(_) if is_of_paths(line) => reply(on_path(&paths, line)),
                    Some(stage) => answer(
                        &mut stage.lock().unwrap_or_else(PoisonError::into_inner),
                        line,
                    ),
                    None => "error the servers are gone".to_owned(),
                };
                // The test has gone away; no one is left to answer.
                let _ = converse(stream, line);
            });
            started.expect("there is room for a thread");
        }
    });
    Served { stage, address }
}

impl Served {
    /// Returns the environment of the tests: the stage's addresses and this port.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.stage().environment();
        environment.push(("DLOCK_CONTROL", self.address.to_string()));
        environment
    }

    /// Returns the ends of the servers' logs, for the search after a failed test.
    pub fn logs(&self) -> String {
        self.stage().logs()
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn converse(stream: TcpStream, answer: impl Fn(&str) -> String) -> std::io::Result<()> {
    let mut replies = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        writeln!(replies, "{}", answer(&line?))?;
    }
    Ok(())
}

fn is_of_paths(line: &str) -> bool {
    let words = [
        "path", "delay", "silence", "strand", "sound", "cut", "close", "commands",
    ];
    words.contains(&line.split_ascii_whitespace().next().unwrap_or_default())
}

fn on_path(paths: &Paths, line: &str) -> Result<String, String> {
    let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    if let ["path", server] = words[..] {
        let server = server
            .parse()
            .map_err(|_| format!("no address: {server}"))?;
        let path = Path::to(server).map_err(|why| why.to_string())?;
        let address = path.address().to_string();
        paths.insert(address.clone(), path);
        return Ok(address);
    }
    let address = *words.get(1).ok_or("which path?")?;
    let path = paths
        .get(address)
        .ok_or_else(|| format!("no path: {address}"))?;
    match words[..] {
        ["delay", _, ms] => path.delay(ms.parse().map_err(|_| format!("no number: {ms}"))?),
        ["silence", _] => path.silence(true),
        ["strand", _] => path.strand(),
        ["sound", _] => path.silence(false),
        ["cut", _] => path.cut(),
        ["close", _] => path.close(),
        ["commands", _] => return Ok(path.commands().to_string()),
        _ => return Err(format!("unknown: {line}")),
    }
    Ok(address.to_owned())
}

fn answer(stage: &mut Stage, line: &str) -> String {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    // The harness panics when a server misbehaves; the test receives the message.
    let done = catch_unwind(AssertUnwindSafe(|| match words[..] {
        ["move", key] => stage.move_slot(key),
        ["failover", key] => stage.fail_over(key),
        ["crash", key] => stage.crash(key),
        ["switch"] => stage.switch(),
        // The runners name a key with each fault.
        ["busy", _] => stage.busy(),
        ["loading", _] => stage.loading(),
        ["idle", _] => stage.idle(),
        ["freeze", address] => stage.freeze(address),
        ["thaw", address] => stage.thaw(address),
        _ => Err(format!("unknown: {line}")),
    }));
    reply(done.unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>();
        Err(why.map_or_else(
            || "the server did not do this in time".to_owned(),
            String::clone,
        ))
    }))
}

/// Keeps panics of the answering threads from being printed: the test receives them, and may ask again.
fn tell_only_the_test() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(ANSWERING) {
                usual(panic);
            }
        }));
    });
}

fn reply(done: Result<String, String>) -> String {
    match done {
        Ok(done) => format!("ok {done}"),
        Err(why) => format!("error {}", why.replace(['\r', '\n'], " ")),
    }
}
