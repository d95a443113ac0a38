//! A client's process, as a step of the ladder sees it.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlock_harness::{await_until, spawn, stop, Ask, Wire, PATIENCE};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::lock::Terms;
use crate::part::{goes_on, says, Order, Part};
use crate::stage::Stage;

/// A client. It is killed when this value is dropped.
pub struct Client {
    child: Child,
    owner: String,
    connection: Wire,
}

impl Client {
    /// Starts the client.
    pub fn start(stage: &Stage, part: Part, terms: Terms) -> Client {
        let owner = terms.owner.clone();
        let order = Order {
            port: stage.server().port(),
            part,
            terms,
        };
        let order = serde_json::to_string(&order).expect("an order can be written");
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.arg("--order").arg(order).stdin(Stdio::null());
        Client {
            child: spawn(command).expect("this program can be started"),
            owner,
            connection: stage.server().connection(),
        }
    }

    /// Waits for its next report, which must be `what`.
    pub fn await_saying(&mut self, what: &str) {
        let said = self.hear();
        assert_eq!(said, what, "{} says something else", self.owner);
    }

    /// Returns its next report.
    pub fn hear(&mut self) -> String {
        // The connection's own time-out is PATIENCE.
        let line = format!("BLPOP {} 0", says(&self.owner));
        let (_, said): (String, String) = self.connection.ask(&line);
        said
    }

    /// Returns how long it took from `since` until it reported this; `None` if it has not within `limit`.
    pub fn said_within(&mut self, what: &str, since: Instant, limit: Duration) -> Option<Duration> {
        let line = format!("BLPOP {} {}", says(&self.owner), limit.as_secs_f64());
        let said: Option<(String, String)> = self.connection.ask(&line);
        let (_, said) = said?;
        assert_eq!(said, what, "{} says something else", self.owner);
        Some(since.elapsed())
    }

    /// Lets the client continue.
    pub fn go_on(&mut self) {
        let line = format!("RPUSH {} go", goes_on(&self.owner));
        self.connection.run(&line);
    }

    /// Kills the client with `kill -9`, and waits until the server has noticed the end of its connection.
    pub fn kill9(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
        let name = format!("name={} ", self.owner);
        await_until("the server has seen the client's end", PATIENCE, || {
            !self.connection.ask::<String>("CLIENT LIST").contains(&name)
        });
    }

    /// Stops the client, like a long pause of its machine or of its runtime.
    pub fn stop(&self) {
        stop(self.pid());
    }

    /// Resumes the client.
    pub fn run_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits until the client has ended by itself.
    pub fn await_end(&mut self) {
        await_until("the client has done its part", PATIENCE, || {
            let status = self.child.try_wait().expect("a child can be waited for");
            status.is_some_and(|status| {
                assert!(status.success(), "{} has failed", self.owner);
                true
            })
        });
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a child can be signalled");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id is an i32"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
