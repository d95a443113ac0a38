//! The way to the server that decides: a primary, found by its address, by a replica's, by Sentinel, or by a cluster's word.

use clap::Args;
use redis::{
    Client, ClientTlsConfig, Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, TlsCertificates, Value,
};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a connect, or a reply that waits for nothing, may take.
pub(crate) const BOUND: Duration = Duration::from_secs(3);

/// How long a Sentinel may take: there are others.
const SENTINEL_BOUND: Duration = Duration::from_secs(1);

/// How often one request is sent on to where a server says.
const MOST_MOVES: usize = 5;

/// Returns the milliseconds that this machine has been up, by a clock that continues while it is suspended, where there is one.
pub(crate) fn now_ms() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;
    let now = nix::time::clock_gettime(CLOCK).map(Duration::from);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// What the server says of requests that may pass when they are sent again.
const PASSING: [&str; 13] = [
    "LOADING",
    "READONLY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "ASK",
    "MOVED",
    "MASTERDOWN",
    "NOREPLICAS",
    "MISCONF",
    "BUSY",
    "UNBLOCKED",
    "NOACK",
    "QUARANTINE",
];

/// Those of them that another connection would hear as well: the server keeps what is tied to this one.
const OF_THE_MOMENT: [&str; 7] = [
    "LOADING",
    "TRYAGAIN",
    "NOREPLICAS",
    "MISCONF",
    "BUSY",
    "NOACK",
    "QUARANTINE",
];

/// Why there is no answer, or what the answer refuses.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The first word of the server's answer; empty if there was none.
    pub code: String,
    text: String,
    /// Nothing changes by asking again.
    pub is_final: bool,
    /// A server has answered so: it is there, and does not want to.
    pub is_refusal: bool,
    moved_to: Option<Address>,
    /// It is to be asked there with ASKING: the slot is on its way.
    is_on_its_way: bool,
}

impl Failure {
    /// Returns a final failure that is reported in these words.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure {
            code: String::new(),
            text: text.into(),
            is_final: true,
            is_refusal: false,
            moved_to: None,
            is_on_its_way: false,
        }
    }

    /// The server there has no module.
    pub(crate) fn without_module(at: &str) -> Failure {
        Failure::new(format!(
            "{at}: the module dlock is not loaded there (MODULE LIST shows what is)"
        ))
    }

    /// What went wrong with a connection to there, for which there was so much time.
    fn at(at: &str, error: RedisError, time: Duration) -> Failure {
        let text =
            is_silence(&error).then(|| format!("no answer within {:.1}s", time.as_secs_f64()));
        let failure = Failure::from(error);
        Failure {
            text: format!("{at}: {}", text.unwrap_or_else(|| failure.to_string())),
            ..failure
        }
    }

    /// Returns true if the server has answered, and may answer otherwise on this connection.
    pub(crate) fn is_of_the_moment(&self) -> bool {
        OF_THE_MOMENT.contains(&self.code.as_str())
    }

    /// One that may pass.
    pub(crate) fn passing(text: impl Into<String>) -> Failure {
        Failure {
            is_final: false,
            ..Failure::new(text)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        let code = error.code().unwrap_or_default().to_owned();
        let text = match error.detail() {
            Some(detail) if !code.is_empty() => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let is_final = match error.kind() {
            ErrorKind::Io => is_unknown_host(&text) || is_distrust(&error),
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => true,
            _ if text.contains("max number of clients") => false,
            _ => !PASSING.contains(&code.as_str()),
        };
        let is_answer = !code.is_empty() || error.kind() == ErrorKind::AuthenticationFailed;
        let moved_to = match code.as_str() {
            "MOVED" | "ASK" => error.redirect_node().and_then(|(at, _)| address(at)),
            _ => None,
        };
        Failure {
            is_on_its_way: code == "ASK",
            code,
            text,
            is_final,
            is_refusal: is_final && is_answer,
            moved_to,
        }
    }
}

fn is_unknown_host(text: &str) -> bool {
    // A resolver that cannot be reached knows more later.
    text.contains("lookup address") && !text.contains("Temporary failure")
}

/// TLS was not agreed upon: a certificate that is not trusted, or one that is asked for.
fn is_distrust(error: &RedisError) -> bool {
    kind_of(error) == Some(io::ErrorKind::InvalidData)
}

/// No reply has come in time.
fn is_silence(error: &RedisError) -> bool {
    matches!(
        kind_of(error),
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    )
}

/// Reports whether a signal ended the read. When a stopped process continues, a read with a bound ends, whatever the process does
/// about signals.
fn is_interrupted(error: &RedisError) -> bool {
    kind_of(error) == Some(io::ErrorKind::Interrupted)
}

fn kind_of(error: &RedisError) -> Option<io::ErrorKind> {
    let cause = error.source()?;
    // The library shares its causes.
    let shared = cause.downcast_ref::<Arc<dyn Error + Send + Sync>>();
    let cause = shared.map_or_else(
        || cause.downcast_ref::<io::Error>(),
        |shared| shared.downcast_ref::<io::Error>(),
    );
    Some(cause?.kind())
}

/// A host and a port.
pub(crate) type Address = (String, u16);

/// Reads `host:port`.
pub(crate) fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

/// What TLS needs. Options as those of redis-cli.
#[derive(Args, Debug)]
pub(crate) struct Tls {
    /// Trust the servers whose certificates this authority has signed (PEM). Without it: those that the machine trusts
    #[arg(long, global = true, value_name = "FILE", help_heading = crate::help::PLACE)]
    cacert: Option<PathBuf>,
    /// The certificate that a server may ask for (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "key", help_heading = crate::help::PLACE)]
    cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "cert", help_heading = crate::help::PLACE)]
    key: Option<PathBuf>,
}

impl Tls {
    /// The same place, with these certificates.
    fn applied(&self, base: ConnectionInfo) -> Result<ConnectionInfo, Failure> {
        let read = |name: &str, file: &Option<PathBuf>| {
            let read = |file: &Path| {
                std::fs::read(file)
                    .map_err(|error| Failure::new(format!("--{name} {}: {error}", file.display())))
            };
            file.as_deref().map(read).transpose()
        };
        let own = read("cert", &self.cert)?.zip(read("key", &self.key)?);
        let certificates = TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: read("cacert", &self.cacert)?,
        };
        if !matches!(base.addr(), ConnectionAddr::TcpTls { .. }) {
            let is_given = certificates.root_cert.is_some() || certificates.client_tls.is_some();
            return match is_given {
                true => Err(Failure::new(
                    "--cacert, --cert: the URL should begin with rediss://",
                )),
                false => Ok(base),
            };
        }
        // The first one that is asked decides; this is the only one there is.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::build_with_tls(base, certificates)
            .map_err(|error| Failure::new(format!("--cacert, --cert, --key: {error}")))?;
        Ok(client.get_connection_info().clone())
    }
}

/// What a URL should look like.
const URL: &str = "It should be redis://[user[:password]@]host[:port][/database], and in a user or password @ is %40, / is %2F, # is %23, ? is %3F, % is %25";

/// A password that ends where the host or the rest of the URL would: then the rest of it would be taken for a host, and shown.
fn is_cut_short(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let behind = rest.split_once(['/', '?', '#']);
    has_host(url) && behind.is_some_and(|(_, behind)| behind.contains('@'))
}

fn has_host(url: &str) -> bool {
    let (scheme, _) = url.split_once("://").unwrap_or_default();
    ["redis", "rediss", "valkey", "valkeys"].contains(&scheme)
}

/// A URL that cannot be read, as far as it surely shows no password: what is before the last `@`, or may be, is left out.
fn without_secret(url: &str) -> String {
    if !has_host(url) {
        return "***".to_owned();
    }
    let (scheme, _) = url.split_once("://").unwrap_or_default();
    match url.rsplit_once('@') {
        Some((_, host)) if !host.contains(['?', '#']) => format!("{scheme}://***@{host}"),
        _ => format!("{scheme}://***"),
    }
}

/// Where servers are to be found.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The server to begin with; its password, user and database are those of all.
    base: ConnectionInfo,
    /// Sentinels, and the name of the primary that they watch.
    sentinels: Option<(Vec<Address>, String)>,
    /// When everything has to be answered, by [`now_ms`].
    until_ms: Option<u64>,
}

impl Place {
    /// Of a URL (`redis://user:password@host:port/database`, or `rediss://`), the certificates for it, and Sentinels if they are to
    /// name the primary.
    ///
    /// # Errors
    /// One of the words cannot be read: it names the argument.
    pub(crate) fn new(
        url: &str,
        tls: &Tls,
        sentinels: &[String],
        primary: &str,
    ) -> Result<Place, Failure> {
        let unread = |why: &dyn fmt::Display| {
            Failure::new(format!("--url {}: {why}. {URL}", without_secret(url)))
        };
        if is_cut_short(url) {
            return Err(unread(&"there is an @ behind the host"));
        }
        let base = url.into_connection_info().map_err(|error| unread(&error))?;
        let mut settings = base.redis_settings().clone().set_skip_set_lib_name();
        let given = std::env::var("REDISCLI_AUTH").unwrap_or_default();
        if settings.password().is_none() && !given.is_empty() {
            settings = settings.set_password(given);
        }
        let base = tls.applied(base.set_redis_settings(settings))?;
        let at = |text: &String| {
            address(text)
                .ok_or_else(|| Failure::new(format!("--sentinel {text}: should be HOST:PORT")))
        };
        let sentinels: Vec<_> = sentinels.iter().map(at).collect::<Result<_, _>>()?;
        Ok(Place {
            base,
            sentinels: (!sentinels.is_empty()).then(|| (sentinels, primary.to_owned())),
            until_ms: None,
        })
    }

    /// The same place, where everything is answered by then, or not at all.
    pub(crate) fn until(&self, ms: u64) -> Place {
        Place {
            until_ms: Some(ms),
            ..self.clone()
        }
    }

    /// The Sentinels that are named, and the primary's name.
    pub(crate) fn sentinels(&self) -> Option<(&[Address], &str)> {
        let (sentinels, primary) = self.sentinels.as_ref()?;
        Some((sentinels, primary))
    }

    /// Connects to a server there, with the password, user and database of all.
    ///
    /// # Errors
    /// It is not there, or refuses.
    pub(crate) fn connect_to(&self, (host, port): &Address) -> Result<Link, Failure> {
        let addr = match self.base.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        };
        Link::open(self.base.clone().set_addr(addr), BOUND, self.until_ms)
    }

    /// Connects to a Sentinel: without the database of the servers, and with their password only where it asks for one. (One that
    /// asks for none refuses any.)
    ///
    /// # Errors
    /// The same.
    pub(crate) fn connect_to_sentinel(&self, (host, port): &Address) -> Result<Link, Failure> {
        let info = (host.as_str(), *port).into_connection_info()?;
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let open = |settings| {
            let info = info.clone().set_redis_settings(settings);
            Link::open(info, SENTINEL_BOUND, self.until_ms)
        };
        let mut link = open(settings.clone())?;
        match link.ask(&redis::cmd("PING")) {
            Err(failure) if failure.code == "NOAUTH" => {
                let password = self.base.redis_settings().password().unwrap_or_default();
                open(settings.set_password(password))
            }
            Err(failure) => Err(failure),
            Ok(_) => Ok(link),
        }
    }

    /// Connects to the server that is named, or that Sentinels name.
    fn connect_first(&self) -> Result<Link, Failure> {
        if let Some((sentinels, name)) = &self.sentinels {
            let mut why = Failure::new("no Sentinel is named");
            for sentinel in sentinels {
                match self.ask_sentinel(sentinel, name) {
                    Ok(primary) => return self.connect_to(&primary),
                    // One that passes decides: another Sentinel may know it then.
                    Err(failure) if why.is_final => why = failure,
                    Err(_) => {}
                }
            }
            return Err(why);
        }
        Link::open(self.base.clone(), BOUND, self.until_ms)
    }

    /// Connects to the primary.
    ///
    /// # Errors
    /// It is not found, is not there, or refuses.
    pub(crate) fn connect(&self) -> Result<Link, Failure> {
        self.connect_by_way().map(|(link, _)| link)
    }

    /// Connects to the primary, and returns the replicas that led to it as well: more than one if one stands behind another.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn connect_by_way(&self) -> Result<(Link, Vec<String>), Failure> {
        let mut link = self.connect_first()?;
        let mut passed = Vec::new();
        while passed.len() < MOST_MOVES {
            let role = match link.ask(&redis::cmd("ROLE")) {
                Ok(role) => texts(&role),
                Err(failure) if failure.code.is_empty() => return Err(failure),
                // A user who may not ask for the role is sent on by nobody.
                Err(_) => break,
            };
            let [role, host, port, ..] = role.as_slice() else {
                break;
            };
            let (true, Ok(port)) = (role == "slave", port.parse()) else {
                break;
            };
            let next = self.connect_to(&(host.clone(), port))?;
            passed.push(std::mem::replace(&mut link, next).at);
        }
        Ok((link, passed))
    }

    fn ask_sentinel(&self, sentinel: &Address, name: &str) -> Result<Address, Failure> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer = texts(&self.connect_to_sentinel(sentinel)?.ask(&ask)?);
        let at = answer
            .first()
            .cloned()
            .zip(answer.get(1).and_then(|port| port.parse().ok()));
        at.ok_or_else(|| {
            Failure::new(format!(
                "the Sentinel at {}:{} knows no {name}",
                sentinel.0, sentinel.1
            ))
        })
    }
}

/// A connection. Each reply has a bound.
pub(crate) struct Link {
    connection: Connection,
    /// Where it leads.
    pub at: String,
    /// Some request was sent twice.
    pub has_repeated: bool,
    /// How many waits for the end of this connection have passed: the library throws as many replies away.
    watches: usize,
    /// How long a reply may take that waits for nothing.
    bound: Duration,
    /// When everything has to be answered, by [`now_ms`].
    pub until_ms: Option<u64>,
    /// Each request has to say that it knows of the slot's way here.
    says_asking: bool,
    /// The last request was not answered within its bound. The server may do it later.
    pub is_silent: bool,
}

/// How long something may take that has to be done by then.
fn within(bound: Duration, until_ms: Option<u64>) -> Duration {
    let left = until_ms.map(|until| Duration::from_millis(until.saturating_sub(now_ms())));
    // Without any time the library would wait for ever.
    left.unwrap_or(bound)
        .min(bound)
        .max(Duration::from_millis(1))
}

impl Link {
    fn open(info: ConnectionInfo, bound: Duration, until_ms: Option<u64>) -> Result<Link, Failure> {
        let at = info.addr().to_string();
        let time = within(bound, until_ms);
        let connection =
            Client::open(info).and_then(|client| client.get_connection_with_timeout(time));
        let connection = connection.map_err(|error| Failure::at(&at, error, time))?;
        connection.set_write_timeout(Some(time))?;
        Ok(Link {
            connection,
            at,
            has_repeated: false,
            watches: 0,
            bound,
            until_ms,
            says_asking: false,
            is_silent: false,
        })
    }

    /// Sends it, and returns the reply.
    ///
    /// # Errors
    /// The server's, or there is no reply within [`BOUND`]. A later request may be answered all the same.
    pub(crate) fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        self.ask_for(command, self.bound)
    }

    /// Returns false if the connection has ended. Waits for an answer for that time at most.
    pub(crate) fn is_there(&mut self, time: Duration) -> bool {
        match self.ask_for(&redis::cmd("PING"), time) {
            Err(failure) if failure.code.is_empty() => self.is_silent,
            _ => true,
        }
    }

    /// Waits for that time while nothing is asked, or until this process was stopped and continues. Returns at once when the
    /// connection ends.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn watch(&mut self, time: Duration) -> Result<(), Failure> {
        self.connection.set_read_timeout(Some(time))?;
        match self.connection.recv_response() {
            Err(error) if is_silence(&error) || is_interrupted(&error) => {
                // The library takes this for a reply that is late, and will throw the next one away: that of a PING.
                self.watches += 1;
                Ok(())
            }
            answer => Ok(answer.map(drop)?),
        }
    }

    /// The same for a request that may wait for so long.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn ask_for(&mut self, command: &Cmd, bound: Duration) -> Result<Value, Failure> {
        let time = within(bound, self.until_ms);
        self.is_silent = false;
        self.connection.set_read_timeout(Some(time))?;
        for _ in 0..std::mem::take(&mut self.watches) {
            let ping = redis::cmd("PING").get_packed_command();
            self.connection.send_packed_command(&ping)?;
        }
        loop {
            if self.says_asking {
                let asking = redis::cmd("ASKING");
                if let Err(error) =
                    redis::ConnectionLike::req_command(&mut self.connection, &asking)
                {
                    self.is_silent = is_silence(&error);
                    return Err(Failure::at(&self.at, error, time));
                }
            }
            match redis::ConnectionLike::req_command(&mut self.connection, command) {
                // This process was stopped and continues: nothing is wrong with the connection, but the library will throw
                // the reply away. So this sends the request again; each request here may be sent twice.
                Err(error) if is_interrupted(&error) => self.has_repeated = true,
                Err(error) if is_silence(&error) => {
                    self.is_silent = true;
                    return Err(Failure::at(&self.at, error, time));
                }
                Err(error) => return Err(self.refused(error)),
                Ok(Value::ServerError(error)) => return Err(self.refused(RedisError::from(error))),
                Ok(value) => return Ok(value),
            }
        }
    }

    /// Why the server refuses. Without the module it knows none of its commands.
    fn refused(&self, error: RedisError) -> Failure {
        let failure = Failure::from(error);
        let is_unknown = failure.text.to_ascii_lowercase();
        match is_unknown.contains("unknown command") && is_unknown.contains("dlock.") {
            true => Failure {
                is_refusal: failure.is_refusal,
                ..Failure::without_module(&self.at)
            },
            false => failure,
        }
    }

    /// The same at the node of a cluster that serves the command's key: the connection goes over to it.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn ask_routed(
        &mut self,
        place: &Place,
        command: &Cmd,
        bound: Duration,
    ) -> Result<Value, Failure> {
        for _ in 0..MOST_MOVES {
            match self.ask_for(command, bound) {
                Err(failure) => match &failure.moved_to {
                    Some(node) => {
                        *self = place.connect_to(node)?;
                        self.says_asking = failure.is_on_its_way;
                    }
                    None => return Err(failure),
                },
                answer => return answer,
            }
        }
        Err(Failure::new(
            "the cluster sends the request from node to node",
        ))
    }

    /// The fields of a section of INFO.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn info(&mut self, section: &str) -> Result<Vec<(String, String)>, Failure> {
        let text = text(&self.ask(redis::cmd("INFO").arg(section))?);
        let fields = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'));
        Ok(fields
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

/// A value as text, with bytes that are no text as `\xff`; a list is nothing.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => bytes.utf8_chunks().fold(String::new(), |text, chunk| {
            let invalid = chunk.invalid().iter();
            let invalid: String = invalid.map(|byte| format!("\\x{byte:02x}")).collect();
            text + chunk.valid() + &invalid
        }),
        Value::SimpleString(text) => text.clone(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Double(number) => number.to_string(),
        Value::Okay => "OK".to_owned(),
        _ => String::new(),
    }
}

/// The elements of a list.
pub(crate) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        _ => &[],
    }
}

/// The elements of a list as texts.
pub(crate) fn texts(value: &Value) -> Vec<String> {
    items(value).iter().map(text).collect()
}

/// A number; none where there is none.
pub(crate) fn number(value: &Value) -> Option<u64> {
    text(value).parse().ok()
}

/// A field of a map, which is a list of names and values in RESP2.
pub(crate) fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    if let Value::Map(pairs) = value {
        return pairs
            .iter()
            .find(|(key, _)| text(key) == name)
            .map(|(_, value)| value);
    }
    let mut pairs = items(value).chunks_exact(2);
    pairs.find_map(|pair| match pair {
        [key, value] if text(key) == name => Some(value),
        _ => None,
    })
}
