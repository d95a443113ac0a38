//! The choice of the server program and the module.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::servers::version::Version;

/// Returns the server's program: `DLOCK_REDIS_SERVER`, or `redis-server` in `PATH`.
pub fn server_program() -> OsString {
    env::var_os("DLOCK_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Returns the module's library: `DLOCK_MODULE`, or the release build in the target directory. It need not exist.
pub fn module_path() -> PathBuf {
    match env::var_os("DLOCK_MODULE") {
        Some(path) => PathBuf::from(path),
        None => target_directory().join("release").join(library_name()),
    }
}

fn library_name() -> &'static str {
    if cfg!(target_os = "macos") {
        "libdlock.dylib"
    } else {
        "libdlock.so"
    }
}

pub(super) fn target_directory() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}

/// Returns the version that `program --version` prints; runs it once for each program.
pub(super) fn version_of(program: &OsString) -> Version {
    static KNOWN: OnceLock<Mutex<HashMap<OsString, Version>>> = OnceLock::new();
    let mut known = KNOWN
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    *known.entry(program.clone()).or_insert_with(|| {
        let output = Command::new(program).arg("--version").output().unwrap_or_else(|error| {
            panic!("cannot run the server {program:?}: {error}; install redis-server or set DLOCK_REDIS_SERVER")
        });
        let banner = String::from_utf8_lossy(&output.stdout);
        Version::parse_banner(&banner).unwrap_or_else(|| panic!("{program:?} --version says {banner:?}"))
    })
}
