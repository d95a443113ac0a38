//! `dlock check`: reads a running group of servers, and reports what it lacks of the recommended setting.

use crate::config_file;
use crate::json;
use crate::out::{say, tell};
use crate::patches::{self, Level, FAULT};
use crate::server::{address, field, items, number, text, texts, Address, Failure, Link, Place};
use redis::{cmd, Value};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The exit codes, the worst one first.
const BAD: u8 = 1;
const UNCHECKED: u8 = 2;
const NOTES: u8 = 3;

/// A clock that is further ahead than this ends leases too early if its server takes over.
const MOST_LEAD_MS: u64 = 50;

/// A shorter `timeout`, in seconds, can end connections between two heartbeats of the clients, which come each second and may be late.
const LEAST_TIMEOUT: u64 = 3;

/// For how long the replication is looked at, and how many seconds of it the backlog should hold: a server restarts in that time.
const SAMPLE: Duration = Duration::from_millis(500);
const LEAST_BACKLOG: u64 = 60;

/// The result of one check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// The operator should know it, and may want it so.
    Note,
    Bad,
    /// It could not be checked.
    Unchecked,
}

/// Prints results, or keeps them for a document, and counts them.
#[derive(Default)]
struct Report {
    /// The nodes and what was found there, if they are not printed one by one.
    nodes: Option<Vec<serde_json::Value>>,
    bad: usize,
    unchecked: usize,
    notes: usize,
}

impl Report {
    fn node(&mut self, title: &str) {
        match &mut self.nodes {
            Some(nodes) => nodes.push(json!({ "node": title, "results": [] })),
            None => say!("{title}"),
        }
    }

    fn say(&mut self, verdict: Verdict, words: &str) {
        let (mark, name) = match verdict {
            Verdict::Good => ("ok  ", "ok"),
            Verdict::Note => ("note", "note"),
            Verdict::Bad => ("BAD ", "bad"),
            Verdict::Unchecked => ("?   ", "unchecked"),
        };
        match verdict {
            Verdict::Good => {}
            Verdict::Note => self.notes += 1,
            Verdict::Bad => self.bad += 1,
            Verdict::Unchecked => self.unchecked += 1,
        }
        let Some(nodes) = &mut self.nodes else {
            say!("  {mark}  {words}");
            return;
        };
        let results = nodes.last_mut().map(|node| &mut node["results"]);
        if let Some(results) = results.and_then(serde_json::Value::as_array_mut) {
            results.push(json!({ "verdict": name, "text": words }));
        }
    }

    fn good(&mut self, words: &str) {
        self.say(Verdict::Good, words);
    }

    fn note(&mut self, words: &str) {
        self.say(Verdict::Note, words);
    }

    fn bad(&mut self, words: &str) {
        self.say(Verdict::Bad, words);
    }

    fn unchecked(&mut self, words: &str) {
        self.say(Verdict::Unchecked, &format!("not checked: {words}"));
    }

    fn want(&mut self, is_good: bool, good: &str, bad: &str) {
        match is_good {
            true => self.good(good),
            false => self.bad(bad),
        }
    }

    /// Prints the sums, and returns the exit code.
    fn finish(&self) -> u8 {
        let counts = [
            (self.bad, "BAD"),
            (self.unchecked, "not checked"),
            (self.notes, if self.notes == 1 { "note" } else { "notes" }),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} {name}"))
            .collect();
        let code = match (self.bad, self.unchecked, self.notes) {
            (0, 0, 0) => 0,
            (0, 0, _) => NOTES,
            (0, _, _) => UNCHECKED,
            _ => BAD,
        };
        match (&self.nodes, counts.is_empty()) {
            (Some(nodes), _) => json::print(&json!({
                "nodes": nodes,
                "bad": self.bad,
                "unchecked": self.unchecked,
                "notes": self.notes,
                "code": code,
            })),
            (None, true) => say!("Nothing is missing."),
            (None, false) => say!("{}.", counts.join(", ")),
        }
        code
    }
}

/// What is known of a node.
struct Node {
    link: Link,
    is_primary: bool,
    /// Its replicas, as it shows them.
    replicas: Vec<Address>,
    server: BTreeMap<String, String>,
    replication: BTreeMap<String, String>,
    /// Empty where the module is not loaded.
    dlock: BTreeMap<String, String>,
    /// The module's version; none if this user may not read it.
    version: Option<u64>,
}

impl Node {
    fn read(mut link: Link) -> Result<Node, Failure> {
        let mut section = |name| {
            link.info(name)
                .map(|fields| fields.into_iter().collect::<BTreeMap<_, _>>())
        };
        let (server, replication, dlock) = (
            section("server")?,
            section("replication")?,
            section("dlock")?,
        );
        let replicas = (0..).map_while(|at| replication.get(&format!("slave{at}")));
        let replicas = replicas.filter_map(|line| {
            let of = |name: &str| {
                line.split(',')
                    .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            };
            Some((of("ip")?.to_owned(), of("port")?.parse().ok()?))
        });
        let replicas = replicas.collect();
        let modules = link.ask(cmd("MODULE").arg("LIST"));
        let version = modules.ok().and_then(|modules| {
            let ours = items(&modules)
                .iter()
                .find(|module| field(module, "name").map(text).as_deref() == Some("dlock"))?;
            field(ours, "ver").and_then(number)
        });
        Ok(Node {
            is_primary: replication.get("role").map(String::as_str) == Some("master"),
            link,
            replicas,
            server,
            replication,
            dlock,
            version,
        })
    }

    fn has_module(&self) -> bool {
        !self.dlock.is_empty()
    }

    fn title(&self) -> String {
        let role = match self.is_primary {
            true => "primary",
            false => "replica",
        };
        let module = match (self.has_module(), self.version) {
            (false, _) => "without dlock".to_owned(),
            (true, Some(version)) => format!("dlock {}", shown(version)),
            (true, None) => "dlock of an unknown version".to_owned(),
        };
        format!("{} ({role}, {module})", self.link.at)
    }

    /// The name that the process has given itself.
    fn run_id(&self) -> String {
        self.server.get("run_id").cloned().unwrap_or_default()
    }

    fn gauge(&self, name: &str) -> u64 {
        self.dlock
            .get(&format!("dlock_{name}"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// A setting; none if this user may not read it.
    fn setting(&mut self, name: &str) -> Option<String> {
        let answer = self.link.ask(cmd("CONFIG").arg("GET").arg(name)).ok()?;
        match &answer {
            Value::Map(pairs) => pairs.first().map(|(_, value)| text(value)),
            list => texts(list).get(1).cloned(),
        }
    }

    fn amount(&mut self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }
}

/// Returns the version that a number in `MODULE LIST` stands for (src/version.rs of the module): 400 is 0.4.0, and a development
/// build has five digits of its commit.
fn shown(version: u64) -> String {
    if version >> 30 == 1 {
        let (major, minor) = (version >> 26 & 0xf, version >> 20 & 0x3f);
        return format!("{major}.{minor}.0-dev+{:05x}", version & 0xf_ffff);
    }
    format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    )
}

/// What all nodes of a group should have alike. None: this user may not read it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Alike {
    replicas: Option<u64>,
    quarantine_ms: Option<u64>,
    max_lease_ms: Option<u64>,
    version: Option<u64>,
}

impl Alike {
    /// Returns what differs from the primary: a setting, or the version, down to its commit.
    fn differs_from(self, primary: Alike) -> Option<String> {
        let setting = |name, here: Option<u64>, there: Option<u64>| {
            let [here, there] = [here, there].map(Option::unwrap_or_default);
            (here != there).then(|| format!("{name} is {here} here and {there} there"))
        };
        let [here, there] = [self.version, primary.version].map(Option::unwrap_or_default);
        let differences = [
            setting("dlock.replicas", self.replicas, primary.replicas),
            setting(
                "dlock.quarantine-ms",
                self.quarantine_ms,
                primary.quarantine_ms,
            ),
            setting(
                "dlock.max-lease-ms",
                self.max_lease_ms,
                primary.max_lease_ms,
            ),
            (here != there)
                .then(|| format!("dlock is {} here and {} there", shown(here), shown(there))),
        ];
        let differences: Vec<String> = differences.into_iter().flatten().collect();
        (!differences.is_empty()).then(|| differences.join(", "))
    }

    fn is_complete(self) -> bool {
        let settings = [self.replicas, self.quarantine_ms, self.max_lease_ms];
        settings.iter().all(Option::is_some) && self.version.is_some()
    }
}

/// Prints what it finds. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn check(place: &Place, as_json: bool) -> Result<u8, Failure> {
    let mut report = Report {
        nodes: as_json.then(Vec::new),
        ..Report::default()
    };
    let (link, passed) = place.connect_by_way()?;
    if let [first, middle, ..] = passed.as_slice() {
        report.node(&format!("{first} (replica)"));
        report.bad(&format!(
            "chained: it replicates from {middle}, which is a replica itself"
        ));
    }
    let Found {
        primaries,
        failed,
        replicas: mut known,
    } = find(place, link)?;
    let mut seen = BTreeSet::new();
    for primary in primaries {
        group(place, primary, &mut seen, &mut report)?;
    }
    for (at, why) in failed {
        report.node(&format!("{}:{} (primary)", at.0, at.1));
        report.bad(&why);
    }
    known.extend(sentinels(place, &mut report));
    chained(place, &known, &mut seen, &mut report);
    Ok(report.finish())
}

/// How long `dlock check --wait` waits between two questions.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until the replicas of the primary, or of all primaries of a cluster, count: then the next server may be restarted, or a
/// replica promoted, and no lock is lost. Prints each change. Returns the exit code, which is [`BAD`] after that time.
///
/// # Errors
/// The servers refuse, or `dlock.replicas` is 0: then no server knows how many replicas it should have.
pub(crate) fn wait(place: &Place, longest: Duration) -> Result<u8, Failure> {
    let end = Instant::now().checked_add(longest);
    let mut said = String::new();
    loop {
        // A server that is restarted, or a promotion that is under way, is not there for a while.
        let state = match missing(place) {
            Ok(None) => {
                say!("all replicas count");
                return Ok(0);
            }
            Ok(Some(missing)) => missing,
            Err(failure) if failure.is_final => return Err(failure),
            Err(failure) => failure.to_string(),
        };
        if state != said {
            say!("{state}");
            said = state;
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            tell!("gave up after {} s", longest.as_secs());
            return Ok(BAD);
        }
        sleep(PAUSE);
    }
}

/// What one of the primaries lacks.
fn missing(place: &Place) -> Result<Option<String>, Failure> {
    let found = find(place, place.connect()?)?;
    if let Some((at, why)) = found.failed.first() {
        return Ok(Some(format!("{}:{}: {why}", at.0, at.1)));
    }
    for primary in found.primaries {
        let mut primary = Node::read(primary)?;
        let at = primary.link.at.clone();
        if !primary.has_module() {
            return Err(Failure::new(format!(
                "{at}: the module dlock is not loaded"
            )));
        }
        let (wanted, or_more) = wanted(&mut primary)
            .ok_or_else(|| Failure::new(format!("{at}: CONFIG GET dlock.replicas is refused")))?;
        if wanted == 0 {
            return Err(Failure::new(format!(
                "{at}: dlock.replicas is 0, so no replica counts"
            )));
        }
        let counting = primary.gauge("replicas_counting");
        let seconds = |name| primary.gauge(name).div_ceil(1_000);
        // A replica that is promoted now lets others count as late as this server does.
        let left = seconds("closed_left_ms").max(seconds("joins_count_late_ms"));
        if !primary.is_primary || counting < wanted || left > 0 {
            let of = format!("{at}: {counting} of {wanted}{or_more} replicas count");
            return Ok(Some(match left {
                0 => of,
                // The number of seconds is not part of it, so that each change is printed once.
                _ => format!("{of}; a start or a full copy is less than dlock.quarantine-ms ago"),
            }));
        }
    }
    Ok(None)
}

/// How many replicas should count. Where the user may not read the setting, INFO tells whether fewer are connected: then it is that
/// number, or more. None where neither tells it.
fn wanted(primary: &mut Node) -> Option<(u64, &'static str)> {
    if let Some(replicas) = primary.amount("dlock.replicas") {
        return Some((replicas, ""));
    }
    if !primary.dlock.contains_key("dlock_replicas_too_few") {
        return None;
    }
    let (needed, connected) = (
        primary.gauge("replicas_needed"),
        primary.gauge("replicas_connected"),
    );
    match primary.gauge("replicas_too_few") {
        // Where the setting is 0, none is needed.
        0 if needed == 0 => Some((0, "")),
        0 => Some((connected, "")),
        _ => Some((needed.max(connected + 1), " or more")),
    }
}

/// The servers of a group.
#[derive(Default)]
struct Found {
    /// The primary that was found, or all of its cluster.
    primaries: Vec<Link>,
    /// Those of the cluster that are away, and why.
    failed: Vec<(Address, String)>,
    /// The replicas that the cluster knows.
    replicas: Vec<Address>,
}

/// Finds the servers of the group that this server belongs to.
fn find(place: &Place, mut link: Link) -> Result<Found, Failure> {
    let mut found = Found::default();
    let is_cluster = link
        .info("cluster")?
        .iter()
        .any(|(name, value)| name == "cluster_enabled" && value == "1");
    if !is_cluster {
        found.primaries.push(link);
        return Ok(found);
    }
    let nodes = text(&link.ask(cmd("CLUSTER").arg("NODES"))?);
    let mut asked = Some(link);
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, at, flags, _, _, _, _, _, slots @ ..] = words.as_slice() else {
            continue;
        };
        let flags: Vec<&str> = flags.split(',').collect();
        let at = at.split(['@', ',']).next().and_then(address);
        let Some(at) = at else {
            continue;
        };
        let has_failed = flags.contains(&"fail");
        if flags.contains(&"slave") {
            found.replicas.extend(Some(at).filter(|_| !has_failed));
        } else if slots.is_empty() {
            // It decides nothing.
        } else if has_failed {
            let why = "the cluster says that it has failed, and nobody serves its slots";
            found.failed.push((at, why.to_owned()));
        } else {
            // A node that has never met another does not know its own host. It was asked by a connection, which leads to it.
            let own = asked.take_if(|_| flags.contains(&"myself"));
            match own.map_or_else(|| place.connect_to(&at), Ok) {
                Ok(link) => found.primaries.push(link),
                Err(failure) if failure.is_final => return Err(failure),
                Err(failure) => found.failed.push((at, failure.to_string())),
            }
        }
    }
    Ok(found)
}

/// A primary and its replicas. `seen`: the processes that were looked at.
fn group(
    place: &Place,
    primary: Link,
    seen: &mut BTreeSet<String>,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut primary = Node::read(primary)?;
    seen.insert(primary.run_id());
    let first = node(&mut primary, report);
    let confirms = first.replicas.unwrap_or(0) > 0;
    if primary.has_module() {
        confirmations(&mut primary, first, report);
    }
    if !primary.replicas.is_empty() {
        backlog(&mut primary, report);
    }
    for at in &primary.replicas {
        if let Some(behind) = replica(place, at, Some(first), seen, report) {
            for at in behind {
                report.node(&format!("{}:{} (replica of a replica)", at.0, at.1));
                let words = "chained: it replicates from a replica";
                match confirms {
                    true => report.bad(&format!("{words}, and dlock.replicas allows none")),
                    false => report.note(&format!(
                        "{words}: with dlock.replicas that would be refused"
                    )),
                }
                replica(place, &at, Some(first), seen, report);
            }
        }
    }
    Ok(())
}

/// Checks whether a replica that was away for a while can continue where it left off. Otherwise it needs a full copy, and its
/// confirmations count late.
fn backlog(primary: &mut Node, report: &mut Report) {
    let Some(size) = primary.amount("repl-backlog-size") else {
        report.unchecked("how long the backlog lasts (CONFIG GET is refused)");
        return;
    };
    let mut written = || {
        let fields = primary.link.info("replication").ok()?;
        let mut fields = fields.into_iter();
        let offset = fields.find(|(name, _)| name == "master_repl_offset")?.1;
        offset.parse::<u64>().ok()
    };
    let before = written();
    sleep(SAMPLE);
    let Some(written) = written().zip(before) else {
        report.unchecked("how much is written: the server does not report it");
        return;
    };
    let rate = written.0.saturating_sub(written.1) as f64 / SAMPLE.as_secs_f64();
    let lasts = (size as f64 / rate.max(1.0)) as u64;
    let megabytes = size >> 20;
    match lasts >= LEAST_BACKLOG {
        true => report.good(&format!(
            "repl-backlog-size, {megabytes} MB, lasts for a minute or more of what is written"
        )),
        false => report.note(&format!(
            "repl-backlog-size, {megabytes} MB, lasts for {lasts} s of what is written now: a replica that is away for longer needs a full copy, and counts late"
        )),
    }
}

/// Whether enough replicas are there for what the primary's settings promise.
fn confirmations(primary: &mut Node, first: Alike, report: &mut Report) {
    let count = primary.replicas.len() as u64;
    let (Some(wanted), Some(quarantine_ms)) = (first.replicas, first.quarantine_ms) else {
        report.unchecked("the settings that a failover needs (CONFIG GET is refused)");
        return;
    };
    match (wanted, count, quarantine_ms) {
        (0, 0, _) => report.note("no replica: when this machine is lost, its locks are lost"),
        (0, _, 0) => report.bad(
            "dlock.replicas and dlock.quarantine-ms are 0: a failover can give a lock to a second owner",
        ),
        (0, _, _) => older(primary, count, report),
        (wanted, count, _) => {
            let bad = format!("dlock.replicas is {wanted}, and {count} {} connected", are(count));
            let good = format!("{} {} connected, as dlock.replicas says", replicas(count), are(count));
            report.want(wanted == count, &good, &bad);
        }
    }
    if quarantine_ms > 0 && first.max_lease_ms >= Some(quarantine_ms) {
        report.note(
            "a lease can be as long as dlock.quarantine-ms, and nothing is left for clocks: set dlock.max-lease-ms to the longest lease in use",
        );
    }
    if wanted > 0 {
        let (needed, counting) = (
            primary.gauge("replicas_needed"),
            primary.gauge("replicas_counting"),
        );
        let count_or_counts = if counting == 1 { "counts" } else { "count" };
        let words = format!(
            "{} {count_or_counts}, and {needed} must confirm",
            replicas(counting)
        );
        let seconds = |name| primary.gauge(name).div_ceil(1_000);
        let left = seconds("closed_left_ms").max(seconds("joins_count_late_ms"));
        match (counting >= needed, counting > needed || count == 1) {
            // It is what a start or a full copy is to bring, and passes by itself.
            (false, _) if count >= needed && left > 0 => report.note(&format!(
                "{words}: after a start or a full copy they count late; wait {left} s, or dlock check --wait"
            )),
            (false, _) => report.bad(&format!("{words}: nothing is granted")),
            (true, false) => report.note(&format!("{words}: the loss of one stops grants")),
            (true, true) => report.good(&words),
        }
        if count == 1 {
            report.note("with one replica the loss of either machine stops grants until there are two again");
        }
    }
}

/// A replica, and returns those behind it. What the primary has is what it should have. Nothing if it cannot be read.
fn replica(
    place: &Place,
    at: &Address,
    first: Option<Alike>,
    seen: &mut BTreeSet<String>,
    report: &mut Report,
) -> Option<Vec<Address>> {
    let mut replica = match place.connect_to(at).and_then(Node::read) {
        Ok(replica) => replica,
        Err(failure) => {
            report.node(&format!("{}:{} (replica)", at.0, at.1));
            report.unchecked(&failure.to_string());
            return None;
        }
    };
    seen.insert(replica.run_id());
    let of = node(&mut replica, report);
    match first {
        _ if !replica.has_module() => {}
        Some(first) if first.is_complete() && of.is_complete() => match of.differs_from(first) {
            None => report.good("settings and version are the primary's"),
            Some(how) => report.bad(&format!("it differs from the primary: {how}")),
        },
        _ => report.unchecked(
            "whether settings and version are the primary's (CONFIG GET or MODULE LIST is refused)",
        ),
    }
    Some(replica.replicas)
}

/// Replicas that Sentinels or the cluster know, and that no primary shows: whether they stand behind a replica, whose module ends
/// their links.
fn chained(place: &Place, known: &[Address], seen: &mut BTreeSet<String>, report: &mut Report) {
    for at in known {
        // One that is gone is not chained; the number of those that are connected was looked at.
        let Ok(node) = place.connect_to(at).and_then(Node::read) else {
            continue;
        };
        if !seen.insert(node.run_id()) {
            continue;
        }
        let of = |name: &str| node.replication.get(name).cloned();
        let source = of("master_host").zip(of("master_port").and_then(|port| port.parse().ok()));
        let Some(source) = source else {
            continue;
        };
        let role = place
            .connect_to(&source)
            .and_then(|mut link| link.ask(&cmd("ROLE")));
        if role.is_ok_and(|role| texts(&role).first().is_some_and(|role| role == "slave")) {
            report.node(&node.title());
            report.bad(&format!(
                "chained: it replicates from {}:{}, which is a replica itself",
                source.0, source.1
            ));
        }
    }
}

/// The setting without a round trip.
fn older(primary: &mut Node, replicas: u64, report: &mut Report) {
    let (least, lag) = (
        primary.amount("min-replicas-to-write"),
        primary.amount("min-replicas-max-lag"),
    );
    let half = replicas.div_ceil(2);
    report.want(
        least.is_some_and(|least| least >= half) && lag.is_some_and(|lag| (1..=10).contains(&lag)),
        "min-replicas-to-write, with the quarantine: the setting without a round trip",
        &format!("a cut-off primary goes on granting: set dlock.replicas {replicas}, or min-replicas-to-write {half} and min-replicas-max-lag 1"),
    );
}

/// What one server says of itself.
fn node(node: &mut Node, report: &mut Report) -> Alike {
    report.node(&node.title());
    patch_level(node, report);
    let alike = Alike {
        replicas: node.amount("dlock.replicas"),
        quarantine_ms: node.amount("dlock.quarantine-ms"),
        max_lease_ms: node.amount("dlock.max-lease-ms"),
        version: node.version,
    };
    if !node.has_module() {
        report.bad(match node.is_primary {
            true => "the module dlock is not loaded",
            false => "the module dlock is not loaded: this replica confirms what it does not keep, and cannot take over",
        });
        return alike;
    }
    if node.version.is_none() {
        report.unchecked("the module's version (MODULE LIST is refused)");
    }
    loadmodule(node, report);
    gauges(node, report);
    persistence(node, alike.replicas.unwrap_or(0) > 0, report);
    idle(node, report);
    if !node.is_primary {
        follows(node, report);
    }
    users(node, report);
    alike
}

fn patch_level(node: &Node, report: &mut Report) {
    let product = patches::product(|name| node.server.get(name).map(String::as_str));
    let Some((product, version)) = product else {
        report.unchecked("the server's version: it does not report one");
        return;
    };
    let name = format!("{product:?} {version}");
    match patches::level(product, version) {
        Level::Fixed => report.good(&format!("{name} has the fix of {FAULT}")),
        Level::FixedIn(fixed) => report.bad(&format!(
            "{name} can crash when a blocked client is woken ({FAULT}): {fixed} has the fix. (A distribution's package may carry it.)"
        )),
        Level::Unsupported => report.note(&format!(
            "{name} is out of support, and gets fixes only where a distribution carries its own"
        )),
        Level::Unknown => report.unchecked(&format!("the patch level of {name}")),
    }
}

/// Two lines that load the module, or one in an included file, of which CONFIG REWRITE makes two: the server does not start again.
fn loadmodule(node: &Node, report: &mut Report) {
    let file = match node.server.get("config_file").map(String::as_str) {
        // It has no file, and so cannot write one.
        Some("") => return,
        Some(file) => file,
        None => {
            report.unchecked("the lines that load the module: the server does not report its file");
            return;
        }
    };
    if !config_file::is_here(&node.link.at) {
        report.unchecked(&format!(
            "whether {file} loads the module once: that file is on another machine, and `dlock check` there reads it"
        ));
        return;
    }
    let loads = match config_file::loads(Path::new(file)) {
        Ok(loads) => loads,
        Err(error) => {
            report.unchecked(&format!(
                "whether the module is loaded once: {file}: {error}"
            ));
            return;
        }
    };
    for unread in &loads.unread {
        report.unchecked(&format!(
            "whether {file} loads the module by what it includes: {unread}"
        ));
    }
    match (loads.own, loads.included.as_slice()) {
        (own, included) if own + included.len() > 1 => report.bad(&format!(
            "{file} loads the module {} times: the server will not start again. Leave one line, in that file itself",
            own + included.len()
        )),
        (0, [included]) => report.bad(&format!(
            "{file} loads the module by including {}: after a CONFIG REWRITE, or a failover, the server will not start again. \
             Move that line into {file} itself",
            included.display()
        )),
        (0, _) => report.note(&format!(
            "{file} does not load the module. By MODULE LOAD it is gone after a restart; with --loadmodule the server does not \
             start again after a CONFIG REWRITE"
        )),
        _ => report.good(&format!("{file} loads the module once")),
    }
}

fn gauges(node: &mut Node, report: &mut Report) {
    report.want(
        node.gauge("eviction_possible") == 0,
        "locks are not evicted",
        "locks can be evicted: set maxmemory-policy noeviction",
    );
    for (name, words) in [
        (
            "invariants_broken",
            "the module has found a fault in itself: see the log",
        ),
        ("evicted_total", "locks were evicted"),
        (
            "replicas_too_many",
            "more replicas are connected than dlock.replicas says",
        ),
    ] {
        if node.gauge(name) > 0 {
            report.bad(words);
        }
    }
    if !node.is_primary {
        return;
    }
    // With dlock.replicas a start closes the server, which is also its quarantine.
    let left = |name| node.gauge(name).div_ceil(1_000);
    if node.gauge("closed_left_ms") > 0 {
        let left = left("closed_left_ms");
        report.note(&format!(
            "closed after its start or a full resynchronisation, and grants nothing: wait {left} s"
        ));
    } else if node.gauge("quarantined") > 0 {
        let left = left("quarantine_left_ms");
        report.note(&format!(
            "in quarantine after its start or promotion, and grants nothing: wait {left} s"
        ));
    }
    if node.gauge("drained") > 0 {
        report.note("drained (dlock.grants is no): nothing is granted");
    }
}

/// Whether the server ends connections that say nothing, and the ties of their holds with them.
fn idle(node: &mut Node, report: &mut Report) {
    match node.amount("timeout") {
        Some(0) => report.good("connections that say nothing are kept (timeout is 0)"),
        Some(seconds) if seconds < LEAST_TIMEOUT => report.bad(&format!(
            "timeout is {seconds}: between two heartbeats of a client the server can end its connection, and so its holds. Set timeout 0"
        )),
        Some(seconds) => report.note(&format!(
            "timeout is {seconds}: a connection that says nothing for {seconds} s is ended, with its EPHEMERAL and AUTO holds. The clients say something each second; programs without one must send a command in time"
        )),
        None => report.unchecked("whether connections that say nothing are ended (CONFIG GET is refused)"),
    }
}

/// Returns the number with its noun.
fn replicas(count: u64) -> String {
    format!(
        "{count} {}",
        if count == 1 { "replica" } else { "replicas" }
    )
}

fn are(count: u64) -> &'static str {
    if count == 1 {
        "is"
    } else {
        "are"
    }
}

/// Whether this server still has after a restart what it has confirmed, or has nothing at all: then it needs a full copy, and counts
/// late. A file from which it begins with less is worse than none.
fn persistence(node: &mut Node, confirms: bool, report: &mut Report) {
    let (aof, saves) = (node.setting("appendonly"), node.setting("save"));
    let (Some(aof), Some(saves)) = (aof, saves) else {
        report.unchecked("what is kept on disk (CONFIG GET is refused)");
        return;
    };
    if aof == "yes" {
        report.good("appendonly is on");
        return;
    }
    if !confirms {
        report.note(
            "appendonly is off: after a crash of this server its newest locks are unknown to it",
        );
        return;
    }
    let older =
        "after a restart from an older file this server has forgotten what it confirmed, and a second owner can get a lock";
    if !saves.is_empty() {
        report.bad(&format!(
            "save without appendonly: {older}. Set appendonly yes"
        ));
    } else if node.setting("rdb-del-sync-files").as_deref() != Some("yes") {
        report.bad(&format!(
            "without appendonly the file of the last full copy stays: {older}. Set appendonly yes, or rdb-del-sync-files yes"
        ));
    } else if let Some(file) = dump(node) {
        report.bad(&format!(
            "without appendonly {} is there: {older}. Set appendonly yes, or remove the file",
            file.display()
        ));
    } else {
        report.note("appendonly is off: after a crash this server needs a full copy, and confirms nothing until dlock.quarantine-ms have passed");
    }
}

/// The file from which this server would begin, if it is on this machine and there.
fn dump(node: &mut Node) -> Option<PathBuf> {
    let (directory, name) = (node.setting("dir")?, node.setting("dbfilename")?);
    let file = Path::new(&directory).join(name);
    (config_file::is_here(&node.link.at) && file.exists()).then_some(file)
}

fn follows(replica: &mut Node, report: &mut Report) {
    let up = replica
        .replication
        .get("master_link_status")
        .map(String::as_str)
        == Some("up");
    report.want(up, "follows its primary", "its link to the primary is down");
    let lead = replica.gauge("clock_lead_ms");
    report.want(
        lead <= MOST_LEAD_MS,
        "its clock is not ahead of the primary's",
        &format!(
            "its clock is {lead} ms ahead of the primary's: leases end early if it takes over"
        ),
    );
}

fn users(node: &mut Node, report: &mut Report) {
    let list = match node.link.ask(cmd("ACL").arg("LIST")) {
        Ok(list) => list,
        Err(failure) => {
            report.unchecked(&format!("the users (ACL LIST: {failure})"));
            return;
        }
    };
    let open = texts(&list).iter().any(|user| {
        let words: Vec<&str> = user.split(' ').collect();
        words.contains(&"on") && words.contains(&"nopass") && words.contains(&"+@all")
    });
    match open {
        true => report.note("anybody who can connect may do everything, DLOCK.FORCERELEASE as well: see the page on operations for users"),
        false => report.good("users need a password"),
    }
}

/// What Sentinels say of the group. Returns the replicas that they know.
fn sentinels(place: &Place, report: &mut Report) -> Vec<Address> {
    let mut known = Vec::new();
    let Some((sentinels, primary)) = place.sentinels() else {
        return known;
    };
    for at in sentinels {
        report.node(&format!("{}:{} (Sentinel)", at.0, at.1));
        let asked = place.connect_to_sentinel(at).and_then(|mut link| {
            let watched = link.ask(cmd("SENTINEL").arg("MASTER").arg(primary))?;
            Ok((
                watched,
                link.ask(cmd("SENTINEL").arg("REPLICAS").arg(primary))?,
            ))
        });
        let (watched, replicas) = match asked {
            Ok(asked) => asked,
            Err(failure) => {
                report.bad(&failure.to_string());
                continue;
            }
        };
        for replica in items(&replicas) {
            let host = field(replica, "ip").map(text);
            let port = field(replica, "port")
                .map(text)
                .and_then(|port| port.parse().ok());
            known.extend(host.zip(port));
        }
        let of = |name| field(&watched, name).and_then(number).unwrap_or(0);
        let (all, quorum, down_after) = (
            of("num-other-sentinels") + 1,
            of("quorum"),
            of("down-after-milliseconds"),
        );
        report.want(
            all >= 3,
            &format!("{all} Sentinels"),
            &match all {
                1 => "1 Sentinel: three or more outlive the loss of one".to_owned(),
                _ => format!("{all} Sentinels: three or more outlive the loss of one"),
            },
        );
        report.want(
            quorum > all / 2,
            &format!("{quorum} of them must agree"),
            &format!("{quorum} of {all} must agree that the primary is gone: it should be more than half"),
        );
        let down = field(&watched, "flags").map(text).unwrap_or_default();
        report.want(
            !down.contains("down"),
            &format!(
                "the primary is up; it counts as gone after {down_after} ms without an answer"
            ),
            &format!("the primary is {down}"),
        );
    }
    known
}
