//! A connection of which a test sees every byte.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use redis::{Cmd, ConnectionLike, Parser, RedisResult, Value};
use socket2::{Domain, Socket, Type};

use crate::talk::ask::{command, reply_of, Ask};
use crate::talk::socket;

/// Lines of a pipeline that are sent before their replies are read: few enough that neither side's buffers fill up.
const AT_ONCE: usize = 500;

/// Follows commands whose answers are read as bytes: no other answer ends in this text.
const END: &str = "no-such-reply-ends-like-this";

/// A plain TCP connection: sending and reading are two steps, so a test can pipeline, leave in the middle or send bytes that no
/// client would. It speaks RESP2 until it has sent `HELLO 3`.
pub struct Wire {
    stream: TcpStream,
    parser: Parser,
}

/// Connects from this address, with a bound on everything. Tests, the benchmark and the chaos run connect in this way only.
///
/// # Errors
/// If the server refuses, or takes longer than the bound.
pub fn connect(from: Ipv4Addr, port: u16, bound: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if from != Ipv4Addr::LOCALHOST {
        socket.bind(&SocketAddr::from((from, 0)).into())?;
    }
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect_timeout(&to.into(), bound)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(bound))?;
    stream.set_write_timeout(Some(bound))?;
    Ok(stream)
}

impl Wire {
    /// Connects to a port of this machine; the bound also limits each read and write.
    ///
    /// # Errors
    /// If the server refuses, or takes longer than the bound.
    pub fn open(port: u16, bound: Duration) -> io::Result<Wire> {
        connect(Ipv4Addr::LOCALHOST, port, bound).map(Wire::new)
    }

    /// Takes over an open connection.
    pub fn new(stream: TcpStream) -> Wire {
        Wire {
            stream,
            parser: Parser::new(),
        }
    }

    /// Sends a command given as a line of words and does not wait for its reply.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        self.send_command(&command(line));
    }

    /// Sends a command and does not wait for its reply.
    #[track_caller]
    pub fn send_command(&mut self, command: &Cmd) {
        self.send_bytes(&command.get_packed_command())
            .expect("the server reads");
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next reply or push.
    ///
    /// # Errors
    /// If the connection is closed or broken, or nothing came within its bound.
    pub fn read_value(&mut self) -> RedisResult<Value> {
        self.parser.parse_value(Untroubled(&self.stream))
    }

    /// Reads the next reply, or the text of an error.
    ///
    /// # Panics
    /// If no reply comes.
    #[track_caller]
    pub fn read(&mut self) -> Result<Value, String> {
        match self.read_value() {
            Ok(value) => reply_of(value),
            Err(error) => panic!("no reply: {error}"),
        }
    }

    /// Sends lines at once, so that only the server's own work can happen between them. Returns their replies.
    #[track_caller]
    pub fn batch<const N: usize>(
        &mut self,
        lines: [impl AsRef<str>; N],
    ) -> [Result<Value, String>; N] {
        self.send_at_once(&lines);
        lines.map(|_| self.read())
    }

    /// Sends lines, many at once. Returns their replies.
    ///
    /// # Panics
    /// If one is refused.
    #[track_caller]
    pub fn pipeline(&mut self, lines: impl IntoIterator<Item = String>) -> Vec<Value> {
        let lines: Vec<String> = lines.into_iter().collect();
        let mut replies = Vec::with_capacity(lines.len());
        for lines in lines.chunks(AT_ONCE) {
            self.send_at_once(lines);
            replies.extend(lines.iter().map(|_| self.read().expect("no refusal")));
        }
        replies
    }

    fn send_at_once(&mut self, lines: &[impl AsRef<str>]) {
        let bytes: Vec<u8> = lines
            .iter()
            .flat_map(|line| command(line.as_ref()).get_packed_command())
            .collect();
        self.send_bytes(&bytes).expect("the server reads");
    }

    /// Sends a line to a stopped server, and waits until it has arrived there.
    #[track_caller]
    pub fn send_to_still(&mut self, line: &str) {
        self.send(line);
        socket::await_arrival(self.server_port(), self.local_port());
    }

    /// Closes the connection to a stopped server, and waits until the end has arrived there. With unread data the end is a reset.
    #[track_caller]
    pub fn close_to_still(self) {
        let (server, local) = (self.server_port(), self.local_port());
        drop(self);
        socket::await_end(server, local);
    }

    fn server_port(&self) -> u16 {
        self.stream.peer_addr().expect("a connection").port()
    }

    fn local_port(&self) -> u16 {
        self.stream.local_addr().expect("a connection").port()
    }

    /// Returns true if unread data has arrived.
    pub fn has_something(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a TCP option");
        let arrived = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).expect("a TCP option");
        arrived
    }

    /// Reads one line as it comes, without its CR LF: `*-1` distinguishes a null array from a null bulk, `$-1`, which clients
    /// show alike. Every earlier reply must have been read completely: data that the parser has read ahead is not seen here.
    #[track_caller]
    pub fn read_line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream
                .read_exact(&mut byte)
                .expect("a line that ends with CR LF");
            line.extend(byte);
        }
        line.truncate(line.len() - 2);
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Sends commands at once. Returns the bytes of all answers, as they come. Every earlier reply must have been read
    /// completely.
    ///
    /// # Panics
    /// If the server does not answer, or closes the connection.
    #[track_caller]
    pub fn bytes(&mut self, commands: &[Cmd]) -> Vec<u8> {
        let mut sent: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        command("ECHO").arg(END).write_packed_command(&mut sent);
        self.send_bytes(&sent).expect("the server reads");
        let end = format!("${}\r\n{END}\r\n", END.len());
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 65_536]);
        while !bytes.ends_with(end.as_bytes()) {
            let length = Untroubled(&self.stream)
                .read(&mut piece)
                .expect("an answer");
            assert!(length > 0, "the connection was closed");
            bytes.extend(&piece[..length]);
        }
        bytes.truncate(bytes.len() - end.len());
        bytes
    }

    /// Sets how long a read waits; `None` waits forever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.stream
            .set_read_timeout(timeout)
            .expect("a timeout that is not zero");
    }

    /// Returns this client's id at the server.
    #[track_caller]
    pub fn client_id(&mut self) -> u64 {
        self.ask("CLIENT ID")
    }

    /// Closes the connection in both directions.
    pub fn close(&self) {
        // The server may have closed it already; then there is nothing to do.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Closes the sending direction only: the server sees the end of the stream.
    pub fn close_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Returns a second handle to the socket, to close it while the first one reads.
    pub(crate) fn stream(&self) -> TcpStream {
        self.stream.try_clone().expect("a spare file descriptor")
    }
}

/// Acts as a client library's connection: a request, and the next reply. A push (RESP3) is not distinguished from a reply: the
/// answer to SUBSCRIBE is a push.
impl ConnectionLike for Wire {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.send_bytes(command)?;
        self.read_value()
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send_bytes(commands)?;
        for _ in 0..offset {
            self.read_value()?;
        }
        (0..count).map(|_| self.read_value()).collect()
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.stream.peer_addr().is_ok()
    }
}

/// Reads on after an interruption. A read with a timeout is interrupted when the process, or the machine under it, is stopped and
/// resumed: no handler runs, and nothing is wrong.
struct Untroubled<'s>(&'s TcpStream);

impl Read for Untroubled<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}
