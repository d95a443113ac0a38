//! How long the server stalled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dlock_harness::{Ask, Server};

/// The time between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// A client that asks the server all the time.
pub struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Watch {
    /// Begins to observe.
    pub fn start(server: &Server) -> Watch {
        let ends = Arc::new(AtomicBool::new(false));
        let (mut connection, has_ended) = (server.connection(), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !has_ended.load(Ordering::Relaxed) {
                connection.run("PING");
                longest = longest.max(last.elapsed());
                last = Instant::now();
                thread::sleep(INTERVAL);
            }
            longest
        });
        Watch { ends, thread }
    }

    /// Ends. Returns the longest time between two answers.
    pub fn stop(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("the server has answered")
    }
}
