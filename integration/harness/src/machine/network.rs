//! A network that can be cut: servers are reached through doors, and a connection's address tells its party.
//!
//! Every party has an address of its own in 127.0.0.0/8 from which it connects (servers: `bind-source-addr`). A door leads to one
//! server and belongs to that server's party. The network holds back the data between two parties that are cut off from each
//! other, in both directions, and delivers it when it is healed, as TCP would by sending again; it neither refuses nor closes
//! connections meanwhile.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

/// How often a thread that holds data back, or has nothing to do, checks for a change.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long a door waits for a byte before it checks whether the network has ended.
const IDLE: Duration = Duration::from_millis(500);

/// The number of ports that a door tries.
const PORT_TRIES: usize = 10;

/// A party: the address from which it connects.
pub type Party = Ipv4Addr;

/// Doors, and the pairs of parties that are cut off from each other. Dropping it closes all doors.
#[derive(Default)]
pub struct Network {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    cuts: RwLock<HashSet<(Party, Party)>>,
    /// The number of times that held-back data was lost.
    losses: AtomicU64,
    ended: AtomicBool,
}

/// The address of a server in a network.
pub struct Door {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Network {
    /// Makes a network in which every party reaches every other.
    pub fn new() -> Network {
        Network::default()
    }

    /// Opens a door to a server of that party; [`Door::lead_to`] sets the server's port.
    ///
    /// # Panics
    /// If no port is free.
    pub fn door(&self, party: Party) -> Door {
        self.door_for(party, None)
    }

    /// Opens a door to a server of that party whose guests all belong to one party, whatever their address: for programs that
    /// cannot choose the address from which they connect.
    ///
    /// # Panics
    /// If no port is free.
    pub fn entrance(&self, party: Party, guests: Party) -> Door {
        self.door_for(party, Some(guests))
    }

    fn door_for(&self, party: Party, guests: Option<Party>) -> Door {
        // Another process may take a port that was free a moment ago.
        let mut ports = (0..PORT_TRIES).map(|_| crate::machine::port::free());
        let bound = ports.find_map(|port| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            Some((port, listener.ok()?))
        });
        let (port, listener) = bound.expect("a free port");
        listener.set_nonblocking(true).expect("a socket option");
        let target = Arc::new(AtomicU16::new(0));
        let (state, to) = (self.state.clone(), target.clone());
        thread::spawn(move || open(&listener, &state, &to, party, guests));
        Door { port, target }
    }

    /// Cuts each of some parties off from each of others.
    pub fn cut(&self, some: &[Party], others: &[Party]) {
        let mut cuts = self
            .state
            .cuts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for one in some {
            for other in others {
                cuts.insert((*one, *other));
                cuts.insert((*other, *one));
            }
        }
    }

    /// Connects one party with another again: the data held back between them passes.
    pub fn mend(&self, one: Party, other: Party) {
        let mut cuts = self
            .state
            .cuts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        cuts.remove(&(one, other));
        cuts.remove(&(other, one));
    }

    /// Connects all parties again, but loses the held-back data and closes its connections: as when the machine that would have
    /// to send it again dies.
    pub fn lose(&self) {
        self.state.losses.fetch_add(1, Ordering::Relaxed);
        self.heal();
    }

    /// Connects all parties again.
    pub fn heal(&self) {
        let mut cuts = self
            .state
            .cuts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        cuts.clear();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
    }
}

impl Door {
    /// Returns the door's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the port of the server behind the door.
    pub fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::Relaxed);
    }
}

impl State {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until the two parties reach each other. Returns whether the held-back data was kept meanwhile.
    fn await_passage(&self, from: Party, to: Party) -> bool {
        let before = self.losses.load(Ordering::Relaxed);
        let mut has_waited = false;
        let is_cut = || {
            let cuts = self.cuts.read().unwrap_or_else(PoisonError::into_inner);
            cuts.contains(&(from, to))
        };
        while is_cut() && !self.has_ended() {
            has_waited = true;
            thread::sleep(INTERVAL);
        }
        !has_waited || self.losses.load(Ordering::Relaxed) == before
    }
}

fn open(
    listener: &TcpListener,
    state: &Arc<State>,
    target: &AtomicU16,
    party: Party,
    guests: Option<Party>,
) {
    while !state.has_ended() {
        let Ok((guest, address)) = listener.accept() else {
            thread::sleep(INTERVAL);
            continue;
        };
        let IpAddr::V4(from) = address.ip() else {
            continue;
        };
        let from = guests.unwrap_or(from);
        let (state, port) = (state.clone(), target.load(Ordering::Relaxed));
        thread::spawn(move || lead(guest, from, &state, party, port));
    }
}

/// Leads a guest to the server and carries the data of both until one of them leaves.
fn lead(guest: TcpStream, from: Party, state: &Arc<State>, party: Party, port: u16) {
    if !state.await_passage(from, party) {
        return;
    }
    let Ok(host) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return;
    };
    let (Ok(guest_too), Ok(host_too)) = (guest.try_clone(), host.try_clone()) else {
        return;
    };
    let back = {
        let state = state.clone();
        thread::spawn(move || {
            carry(
                host_too,
                guest_too,
                &|| state.await_passage(party, from),
                &state,
            )
        })
    };
    carry(guest, host, &|| state.await_passage(from, party), state);
    // The thread returns nothing.
    let _ = back.join();
}

fn carry(mut from: TcpStream, mut to: TcpStream, await_passage: &dyn Fn() -> bool, state: &State) {
    let mut bytes = vec![0; 64 * 1024];
    // Without these a door would only be slower.
    let _ = from.set_nonblocking(false);
    let _ = from.set_read_timeout(Some(IDLE));
    let _ = to.set_nodelay(true);
    while !state.has_ended() {
        let read = match from.read(&mut bytes) {
            Ok(read) => read,
            Err(error) if is_idle(error.kind()) => continue,
            Err(_) => 0,
        };
        if !await_passage() || read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Either may have closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn is_idle(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
