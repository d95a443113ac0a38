//! What tests can have done to their servers: a line in, a line out, on a port of this process.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::stage::Stage;

/// A stage whose servers can be moved about by the tests.
pub struct Served {
    stage: Arc<Mutex<Stage>>,
    address: SocketAddr,
}

/// Serves the control of a stage until this process ends. The servers end with the [`Served`].
pub fn serve(stage: Stage) -> Served {
    let stage = Arc::new(Mutex::new(stage));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let weak = Arc::downgrade(&stage);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let weak = weak.clone();
            thread::spawn(move || {
                let line = |line: &str| match weak.upgrade() {
                    Some(stage) => answer(
                        &mut stage.lock().unwrap_or_else(PoisonError::into_inner),
                        line,
                    ),
                    None => "error the servers are gone".to_owned(),
                };
                // The test has gone away; there is nobody to tell.
                let _ = converse(stream, line);
            });
        }
    });
    Served { stage, address }
}

impl Served {
    /// What the tests are told of the stage and of this port.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.stage().environment();
        environment.push(("DLOCK_CONTROL", self.address.to_string()));
        environment
    }

    /// Ends of the servers' logs, for whoever looks why a test has failed.
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

fn answer(stage: &mut Stage, line: &str) -> String {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    // The harness panics when a server does not do as it should; the test is to hear of it.
    let done = catch_unwind(AssertUnwindSafe(|| match words[..] {
        ["move", key] => stage.move_slot(key),
        ["failover", key] => stage.fail_over(key),
        ["crash", key] => stage.crash(key),
        ["switch"] => stage.switch(),
        _ => Err(format!("unknown: {line}")),
    }));
    match done {
        Ok(Ok(address)) => format!("ok {address}"),
        Ok(Err(why)) => format!("error {}", why.replace(['\r', '\n'], " ")),
        Err(_) => "error it did not happen in time".to_owned(),
    }
}
