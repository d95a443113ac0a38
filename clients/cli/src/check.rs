//! `dlock check`: reads a running group of servers, and says what it lacks of the recommended setting.

use crate::server::{address, field, items, number, text, texts, Failure, Link, Place};
use redis::{cmd, Value};
use std::collections::BTreeMap;

/// Something is wrong.
const WRONG: u8 = 1;

/// A clock that is further ahead than this ends leases too early if its server takes over.
const MOST_LEAD_MS: u64 = 50;

/// What is said of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Note,
    Bad,
}

/// All that is said.
#[derive(Default)]
struct Report {
    bad: usize,
}

impl Report {
    fn node(&self, title: &str) {
        println!("{title}");
    }

    fn say(&mut self, verdict: Verdict, words: &str) {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        self.bad += usize::from(verdict == Verdict::Bad);
        println!("  {mark}  {words}");
    }

    fn want(&mut self, is_good: bool, good: &str, bad: &str) {
        match is_good {
            true => self.say(Verdict::Good, good),
            false => self.say(Verdict::Bad, bad),
        }
    }
}

/// What is known of a node.
struct Node {
    link: Link,
    is_primary: bool,
    /// Its replicas, as the primary shows them.
    replicas: Vec<(String, u16)>,
    replication: BTreeMap<String, String>,
    dlock: BTreeMap<String, String>,
    version: Option<u64>,
}

impl Node {
    fn read(mut link: Link) -> Result<Node, Failure> {
        let mut section = |name| {
            link.info(name)
                .map(|fields| fields.into_iter().collect::<BTreeMap<_, _>>())
        };
        let (replication, dlock) = (section("replication")?, section("dlock")?);
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
            replication,
            dlock,
            version,
        })
    }

    fn gauge(&self, name: &str) -> u64 {
        self.dlock
            .get(&format!("dlock_{name}"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// A setting; none if the user may not read it.
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

/// 300 is 0.3.0: two digits a part.
fn shown(version: u64) -> String {
    format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    )
}

/// What all nodes of a group have alike.
#[derive(PartialEq, Eq)]
struct Alike {
    replicas: Option<u64>,
    quarantine_ms: Option<u64>,
    version: Option<u64>,
}

/// Prints it. Returns the exit code.
///
/// # Errors
/// No server can be reached, or it refuses.
pub(crate) fn check(place: &Place) -> Result<u8, Failure> {
    let mut report = Report::default();
    let link = place.connect()?;
    let primaries = primaries(place, link)?;
    for primary in primaries {
        group(place, primary, &mut report)?;
    }
    sentinels(place, &mut report);
    match report.bad {
        0 => println!("Nothing is missing."),
        1 => println!("1 point is BAD."),
        bad => println!("{bad} points are BAD."),
    }
    Ok(if report.bad > 0 { WRONG } else { 0 })
}

/// The primary that was found, or all of its cluster.
fn primaries(place: &Place, mut link: Link) -> Result<Vec<Link>, Failure> {
    let is_cluster = link
        .info("cluster")?
        .iter()
        .any(|(name, value)| name == "cluster_enabled" && value == "1");
    if !is_cluster {
        return Ok(vec![link]);
    }
    let nodes = text(&link.ask(cmd("CLUSTER").arg("NODES"))?);
    let mut primaries = Vec::new();
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, at, flags, _, _, _, _, _, _slots, ..] = words.as_slice() else {
            // Without slots it decides nothing.
            continue;
        };
        let flags: Vec<&str> = flags.split(',').collect();
        let at = at.split(['@', ',']).next().and_then(address);
        if let (true, false, Some(at)) = (flags.contains(&"master"), flags.contains(&"fail"), at) {
            primaries.push(place.connect_to(&at)?);
        }
    }
    Ok(primaries)
}

fn group(place: &Place, primary: Link, report: &mut Report) -> Result<(), Failure> {
    let mut primary = Node::read(primary)?;
    let replicas = primary.replicas.clone();
    let first = node(&mut primary, report);
    let wanted = first.replicas.unwrap_or(0);
    let count = replicas.len() as u64;
    match (wanted, count, first.quarantine_ms.unwrap_or(0)) {
        (0, 0, _) => report.say(Verdict::Note, "no replica: when this machine is lost, its locks are lost"),
        (0, _, 0) => report.say(
            Verdict::Bad,
            "dlock.replicas and dlock.quarantine-ms are 0: a failover can give a lock to a second owner",
        ),
        (0, _, _) => older(&mut primary, count, report),
        (wanted, count, _) => {
            let bad = format!("dlock.replicas is {wanted}, and {count} are connected");
            report.want(wanted == count, &format!("{count} replicas are connected, as dlock.replicas says"), &bad);
        }
    }
    if wanted > 0 {
        let (needed, counting) = (
            primary.gauge("replicas_needed"),
            primary.gauge("replicas_counting"),
        );
        let words = format!("{counting} replicas count, and {needed} must confirm");
        match (counting >= needed, counting > needed || count == 1) {
            (false, _) => report.say(Verdict::Bad, &format!("{words}: nothing is granted")),
            (true, false) => report.say(
                Verdict::Note,
                &format!("{words}: the loss of one stops grants"),
            ),
            (true, true) => report.say(Verdict::Good, &words),
        }
        if count == 1 {
            report.say(Verdict::Note, "with one replica the loss of either machine stops grants until there are two again");
        }
    }
    for at in &replicas {
        let mut replica = match place.connect_to(at).and_then(Node::read) {
            Ok(replica) => replica,
            Err(failure) => {
                report.node(&format!("{}:{} (replica)", at.0, at.1));
                report.say(Verdict::Bad, &failure.to_string());
                continue;
            }
        };
        let of = node(&mut replica, report);
        report.want(
            of == first,
            "settings and version are the primary's",
            "settings or version differ from the primary's",
        );
    }
    Ok(())
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
    let role = if node.is_primary {
        "primary"
    } else {
        "replica"
    };
    let version = node
        .version
        .map_or("without a dlock that may be seen".to_owned(), |version| {
            format!("dlock {}", shown(version))
        });
    report.node(&format!("{} ({role}, {version})", node.link.at));
    if node.dlock.is_empty() {
        report.say(Verdict::Bad, "the module dlock is not loaded");
    }
    let alike = Alike {
        replicas: node.amount("dlock.replicas"),
        quarantine_ms: node.amount("dlock.quarantine-ms"),
        version: node.version,
    };
    if node.setting("maxmemory-policy").is_none() {
        report.say(Verdict::Note, "this user may not read the settings (CONFIG GET): what follows from them is not checked");
    }
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
            report.say(Verdict::Bad, words);
        }
    }
    for (name, words) in [
        ("quarantined", "in quarantine: nothing is granted for now"),
        ("drained", "drained: nothing is granted"),
        ("closed", "closed: nothing is granted for now"),
    ] {
        if node.is_primary && node.gauge(name) > 0 {
            report.say(Verdict::Note, words);
        }
    }
    persistence(node, alike.replicas.unwrap_or(0) > 0, report);
    if !node.is_primary {
        let up = node
            .replication
            .get("master_link_status")
            .map(String::as_str)
            == Some("up");
        report.want(up, "follows its primary", "its link to the primary is down");
        let lead = node.gauge("clock_lead_ms");
        report.want(
            lead <= MOST_LEAD_MS,
            "its clock is not ahead of the primary's",
            &format!(
                "its clock is {lead} ms ahead of the primary's: leases end early if it takes over"
            ),
        );
        if !node.replicas.is_empty() {
            report.say(Verdict::Bad, "it has replicas of its own: with dlock.replicas no replica may stand behind another");
        }
    }
    users(node, report);
    alike
}

fn persistence(node: &mut Node, confirms: bool, report: &mut Report) {
    let (aof, saves) = (node.setting("appendonly"), node.setting("save"));
    let (Some(aof), Some(saves)) = (aof, saves) else {
        return;
    };
    match (aof == "yes", saves.is_empty(), confirms) {
        (true, _, _) => report.say(Verdict::Good, "appendonly is on"),
        (false, false, true) => report.say(
            Verdict::Bad,
            "save without appendonly: after a restart from an older file this server has forgotten what it confirmed. Set appendonly yes",
        ),
        (false, _, _) => report.say(Verdict::Note, "appendonly is off: after a crash of this server its newest locks are unknown to it"),
    }
}

fn users(node: &mut Node, report: &mut Report) {
    let Ok(list) = node.link.ask(cmd("ACL").arg("LIST")) else {
        return;
    };
    let open = texts(&list).iter().any(|user| {
        let words: Vec<&str> = user.split(' ').collect();
        words.contains(&"on") && words.contains(&"nopass") && words.contains(&"+@all")
    });
    match open {
        true => report.say(Verdict::Note, "anybody who can connect may do everything, DLOCK.FORCERELEASE too: see the page on operations for users"),
        false => report.say(Verdict::Good, "users need a password"),
    }
}

/// What Sentinels say of the group.
fn sentinels(place: &Place, report: &mut Report) {
    let Some((sentinels, primary)) = place.sentinels() else {
        return;
    };
    for at in sentinels {
        report.node(&format!("{}:{} (Sentinel)", at.0, at.1));
        let asked = place
            .connect_to_sentinel(at)
            .and_then(|mut link| link.ask(cmd("SENTINEL").arg("MASTER").arg(primary)));
        let watched = match asked {
            Ok(watched) => watched,
            Err(failure) => {
                report.say(Verdict::Bad, &failure.to_string());
                continue;
            }
        };
        let of = |name| field(&watched, name).and_then(number).unwrap_or(0);
        let (all, quorum, down_after) = (
            of("num-other-sentinels") + 1,
            of("quorum"),
            of("down-after-milliseconds"),
        );
        report.want(
            all >= 3,
            &format!("{all} Sentinels"),
            &format!("{all} Sentinels: three or more outlive the loss of one"),
        );
        report.want(
            quorum > all / 2,
            &format!("{quorum} of them must agree"),
            &format!("{quorum} of {all} must agree that the primary is gone: it should be more than half"),
        );
        report.say(Verdict::Note, &format!("a primary counts as gone after {down_after} ms; nobody is granted a lock for that long, and a second or two"));
        let down = field(&watched, "flags").map(text).unwrap_or_default();
        report.want(
            !down.contains("down"),
            "the primary is up",
            &format!("the primary is {down}"),
        );
    }
}
