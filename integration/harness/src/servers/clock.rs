//! A server with clocks of its own: the wall clock can be stepped, and all clocks can be stopped.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{symlink, FileExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::machine::patience::{await_until, PATIENCE};
use crate::servers::builder::ServerBuilder;
use crate::servers::program::target_directory;
use crate::servers::server::Server;
use crate::talk::ask::Ask;
use crate::talk::wire::Wire;

/// The clocks of one server. `clock.c` reads three numbers from their file.
pub struct Clock {
    file: File,
    /// Removed when this value is dropped.
    _directory: TempDir,
}

/// Offsets in the file: the time added to the wall clock, and the instant at which the clocks are stopped.
const AHEAD: u64 = 0;
const STILL: u64 = 8;

impl Clock {
    /// Starts a server with clocks of its own, unchanged at first.
    ///
    /// # Panics
    /// If the clocks cannot be compiled, or the server does not start.
    #[track_caller]
    pub fn server() -> (Server, Clock) {
        Clock::start(Server::builder(), [0; 3])
    }

    /// Starts a server from this builder with clocks of its own, unchanged at first.
    ///
    /// # Panics
    /// If the clocks cannot be compiled, or the server does not start.
    #[track_caller]
    pub fn of(builder: ServerBuilder) -> (Server, Clock) {
        Clock::start(builder, [0; 3])
    }

    /// Starts a server for which time passes by [`pass`](Clock::pass) only. It reads whole numbers of milliseconds.
    #[track_caller]
    pub fn still(builder: ServerBuilder) -> (Server, Clock) {
        const DAY: i64 = 86_400_000_000;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = wall.map_or(DAY, |wall| wall.as_secs() as i64 * 1_000_000);
        Clock::start(builder, [0, DAY, wall - DAY])
    }

    #[track_caller]
    fn start(builder: ServerBuilder, numbers: [i64; 3]) -> (Server, Clock) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("clock");
        fs::write(&path, numbers.map(i64::to_ne_bytes).concat()).expect("a file");
        // The program is a link: a file written here could still be open in a child that another thread starts, and could not be
        // run.
        let program = directory.path().join("server");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/servers/clock.sh");
        symlink(script, &program).expect("a link");
        symlink(library(), directory.path().join("clock.so")).expect("a link");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("an own file");
        let server = builder.program(program).start();
        let clock = Clock {
            file,
            _directory: directory,
        };
        (server, clock)
    }

    /// Steps the wall clock, and waits until the server's has stepped.
    #[track_caller]
    pub fn step(&self, c: &mut Wire, ms: i64) {
        let (begin, before) = (Instant::now(), time_us(c));
        self.set(AHEAD, self.get(AHEAD) + ms * 1000);
        // Valkey 9 reads its wall clock a few times in a second.
        await_until("the server's clock has stepped", PATIENCE, || {
            let passed = time_us(c) - before - ms * 1000;
            let most = begin.elapsed() + Duration::from_secs(1);
            passed.unsigned_abs() <= most.as_micros() as u64
        });
    }

    /// Sets how far the wall clock is ahead of the machine's. Does not wait until the server has read it.
    pub fn put_ahead(&self, ms: i64) {
        self.set(AHEAD, ms * 1000);
    }

    /// Lets time pass for stopped clocks.
    pub fn pass(&self, ms: i64) {
        self.set(STILL, self.get(STILL) + ms * 1000);
    }

    fn get(&self, place: u64) -> i64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, place)
            .expect("it has as much");
        i64::from_ne_bytes(bytes)
    }

    fn set(&self, place: u64, us: i64) {
        self.file
            .write_all_at(&us.to_ne_bytes(), place)
            .expect("an own file");
    }
}

/// Returns the clocks as a library to be loaded before a server's own. It is compiled once a run.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let made = target_directory().join("clock.so");
        let fresh = made.with_extension(process::id().to_string());
        let compiler = env::var_os("CC").unwrap_or(OsString::from("cc"));
        let status = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&fresh)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/servers/clock.c"))
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "the clock cannot be compiled"
        );
        fs::rename(fresh, &made).expect("both are in one directory");
        made.canonicalize().expect("it is there")
    })
}

/// Returns the server's wall clock.
fn time_us(c: &mut Wire) -> i64 {
    let (seconds, us): (i64, i64) = c.ask("TIME");
    seconds * 1_000_000 + us
}
