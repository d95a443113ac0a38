//! A path from a client to a server that can become slow, silent or closed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// How often a pump checks whether held-back data may pass.
const INTERVAL: Duration = Duration::from_millis(5);

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The entrance of a path. All its connections end when it is closed, or when this process ends.
pub struct Path {
    state: Arc<State>,
    /// Keeps the port after the path is closed: otherwise another path might get it.
    _port: Socket,
}

struct State {
    server: SocketAddr,
    address: SocketAddr,
    silent: AtomicBool,
    closed: AtomicBool,
    /// The number of connections so far.
    opened: AtomicUsize,
    /// The number of the oldest ones that are silent.
    stranded: AtomicUsize,
    /// Milliseconds for each direction.
    delay: AtomicU64,
    commands: AtomicU64,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Path {
    /// Opens a path to this server.
    pub fn to(server: SocketAddr) -> std::io::Result<Path> {
        let listener = bound((Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(BACKLOG)?;
        let listener = TcpListener::from(listener);
        let port = bound(listener.local_addr()?)?;
        let state = Arc::new(State {
            server,
            address: listener.local_addr()?,
            silent: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            stranded: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            sockets: Mutex::default(),
        });
        let path = Path {
            state: state.clone(),
            _port: port,
        };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if state.closed.load(Ordering::Acquire) {
                    return;
                }
                // If the server is gone it refuses: so does the path.
                let _ = state.clone().lead(client);
            }
        });
        Ok(path)
    }

    /// Returns the address at which the path begins.
    pub fn address(&self) -> SocketAddr {
        self.state.address
    }

    /// Delays every reply from now on by this time.
    pub fn delay(&self, round_trip_ms: u64) {
        self.state.delay.store(round_trip_ms / 2, Ordering::Release);
    }

    /// Stops all data in both directions; nothing is lost, and no connection ends. Or lets all data pass.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Release);
        if !silent {
            self.state.stranded.store(0, Ordering::Release);
        }
    }

    /// Silences the connections that are open now, or leaves them silent. Later ones pass.
    pub fn strand(&self) {
        let opened = self.state.opened.load(Ordering::Acquire);
        self.state.stranded.store(opened, Ordering::Release);
        self.state.silent.store(false, Ordering::Release);
    }

    /// Ends all connections; later ones pass as before.
    pub fn cut(&self) {
        let mut sockets = self.state.sockets();
        for socket in sockets.drain(..) {
            // It may have ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections, and refuses later ones.
    pub fn close(&self) {
        self.state.closed.store(true, Ordering::Release);
        // Wakes the listener, which then ends.
        let _ = TcpStream::connect(self.state.address);
        self.cut();
    }

    /// Returns the number of DLOCK commands that have passed.
    pub fn commands(&self) -> u64 {
        self.state.commands.load(Ordering::Acquire)
    }
}

/// Returns a socket that shares its port with the sockets of this process that ask for this port.
fn bound(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

impl State {
    fn sockets(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lead(self: Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let number = self.opened.fetch_add(1, Ordering::AcqRel);
        let server = TcpStream::connect(self.server)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            self.sockets().push(socket.try_clone()?);
        }
        self.pump(number, client.try_clone()?, server.try_clone()?, true);
        self.pump(number, server, client, false);
        Ok(())
    }

    /// Carries data with a reader and a writer, so that many packets can be under way at a time.
    fn pump(self: &Arc<Self>, number: usize, mut from: TcpStream, to: TcpStream, count: bool) {
        let (sender, receiver) = mpsc::channel();
        let state = self.clone();
        thread::spawn(move || state.write(number, &receiver, to));
        let state = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if count {
                    let seen = buffer[..n].windows(8).filter(|w| w == b"\r\nDLOCK.");
                    let seen = u64::try_from(seen.count()).unwrap_or(0);
                    state.commands.fetch_add(seen, Ordering::AcqRel);
                }
                let due =
                    Instant::now() + Duration::from_millis(state.delay.load(Ordering::Acquire));
                if sender.send((due, buffer[..n].to_vec())).is_err() {
                    return;
                }
            }
        });
    }

    fn write(&self, number: usize, receiver: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
        for (due, data) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.await_sound(number);
            if to.write_all(&data).is_err() {
                return;
            }
        }
        // The end of a stream must not overtake held-back data.
        self.await_sound(number);
        let _ = to.shutdown(Shutdown::Write);
    }

    fn await_sound(&self, number: usize) {
        let is_silent = || {
            self.silent.load(Ordering::Acquire) || number < self.stranded.load(Ordering::Acquire)
        };
        while is_silent() && !self.closed.load(Ordering::Acquire) {
            thread::sleep(INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    /// Starts a server that sends everything back.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut other = stream.try_clone().expect("a socket can be shared");
                thread::spawn(move || std::io::copy(&mut &stream, &mut other));
            }
        });
        address
    }

    #[test]
    fn a_path_is_slow_silent_cut_and_closed() {
        let path = Path::to(echo()).expect("there is a free port");
        let mut client = TcpStream::connect(path.address()).expect("it listens");
        let word = b"*1\r\n$12\r\nDLOCK.HELP..\r\n";
        let mut reply = [0; 23];
        let mut say = |client: &mut TcpStream| {
            client.write_all(&word[..23]).expect("it is open");
            client.read_exact(&mut reply)
        };
        say(&mut client).expect("the path leads to the server and back");
        assert_eq!(path.commands(), 1);
        path.delay(200);
        let began = Instant::now();
        say(&mut client).expect("a slow path works");
        assert!(began.elapsed() >= Duration::from_millis(200));
        path.delay(0);
        path.silence(true);
        let timeout = Some(Duration::from_millis(100));
        client.set_read_timeout(timeout).expect("a socket option");
        let error = say(&mut client).expect_err("nothing comes").kind();
        assert!(matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        path.silence(false);
        client.set_read_timeout(None).expect("a socket option");
        client
            .read_exact(&mut [0; 23])
            .expect("the held-back data arrives");
        path.silence(true);
        client.set_read_timeout(timeout).expect("a socket option");
        let error = say(&mut client).expect_err("nothing comes").kind();
        assert!(matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        path.strand();
        let error = client
            .read(&mut [0; 1])
            .expect_err("it stays silent")
            .kind();
        assert!(matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut));
        let mut later = TcpStream::connect(path.address()).expect("it listens");
        say(&mut later).expect("a connection that is opened later passes");
        path.silence(false);
        client.set_read_timeout(None).expect("a socket option");
        client
            .read_exact(&mut [0; 23])
            .expect("the held-back data arrives");
        path.cut();
        assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
        let mut client = TcpStream::connect(path.address()).expect("it listens");
        say(&mut client).expect("another connection goes through");
        path.close();
        assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
        while TcpStream::connect(path.address()).is_ok() {
            thread::sleep(INTERVAL);
        }
    }

    #[test]
    fn a_closed_path_keeps_its_port() {
        let path = Path::to(echo()).expect("there is a free port");
        path.close();
        while TcpStream::connect(path.address()).is_ok() {
            thread::sleep(INTERVAL);
        }
        thread::sleep(Duration::from_millis(100)); // a client that has just connected is gone by now
        let taken = TcpListener::bind(path.address()).expect_err("the port stays ours");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
