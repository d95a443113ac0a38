//! Which lines of a server's configuration file load the module.

use crate::server::address;
use std::fs;
use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

/// Files within files.
const DEEPEST: usize = 8;

/// Where the module is loaded.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// Lines of the server's own file.
    pub own: usize,
    /// The files that it includes, one for each line.
    pub included: Vec<PathBuf>,
    /// Includes that were not read, and why.
    pub unread: Vec<String>,
}

/// Returns whether the server at this address, or socket, is on this machine.
pub(crate) fn is_here(at: &str) -> bool {
    let Some((host, _)) = address(at) else {
        return at.starts_with('/');
    };
    // Nothing can be bound to the address of another machine.
    let addresses = (host.as_str(), 0).to_socket_addrs();
    addresses.is_ok_and(|mut all| all.any(|address| UdpSocket::bind(address).is_ok()))
}

/// Reads the file, and those that it includes.
///
/// # Errors
/// The file itself cannot be read.
pub(crate) fn loads(file: &Path) -> io::Result<Loads> {
    let mut found = Loads::default();
    let text = fs::read_to_string(file)?;
    read(&text, DEEPEST, &mut found, &mut |found| found.own += 1);
    Ok(found)
}

fn read(text: &str, depth: usize, found: &mut Loads, count: &mut dyn FnMut(&mut Loads)) {
    for line in text.lines() {
        let Some((directive, rest)) = line.trim().split_once([' ', '\t']) else {
            continue;
        };
        let word = first_word(rest);
        match directive.to_ascii_lowercase().as_str() {
            "loadmodule" if is_module(word) => count(found),
            "include" => include(word, depth, found),
            _ => {}
        }
    }
}

fn include(file: &str, depth: usize, found: &mut Loads) {
    if depth == 0 || file.contains(['*', '?', '[']) {
        found.unread.push(format!("include {file}"));
        return;
    }
    match fs::read_to_string(file) {
        Ok(text) => {
            let path = PathBuf::from(file);
            read(&text, depth - 1, found, &mut |found| {
                found.included.push(path.clone())
            });
        }
        Err(error) => found.unread.push(format!("{file}: {error}")),
    }
}

/// The first word, which may be quoted.
fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    for quote in ['"', '\''] {
        if let Some(quoted) = text.strip_prefix(quote) {
            return quoted.split(quote).next().unwrap_or_default();
        }
    }
    text.split_whitespace().next().unwrap_or_default()
}

fn is_module(path: &str) -> bool {
    let name = Path::new(path).file_name();
    name.is_some_and(|name| name == "libdlock.so" || name == "libdlock.dylib")
}
