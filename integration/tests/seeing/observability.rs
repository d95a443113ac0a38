//! The exporter's script and the dashboard in `observability/`: each series that the dashboard queries exists.
//!
//! The test with the real exporter and Prometheus needs both (`make observe` fetches them, and so does `make check`); without
//! them the tests run the script as the exporter does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use dlock_harness::redis::{self, cmd};
use dlock_harness::{
    await_until, command, AclRules, Ask, Blocked, Daemon, Grant, Server, PATIENCE,
};
use serde_json::Value;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../observability/dlock.lua");
const DASHBOARD: &str = include_str!("../../../observability/dashboard.json");
const ALERTS: &str = include_str!("../../../observability/alerts.yml");
const ALERTS_TEST: &str = include_str!("../../../observability/alerts_test.yml");

/// The metric under which the exporter shows a script's result.
const METRIC: &str = "redis_script_values";

/// A series in a query or a scrape: its metric and its `key`. In a query a key may end with `.+`: then it stands for all keys
/// with that beginning.
type Series = (String, String);

/// Returns the dashboard's queries.
fn queries(dashboard: &str) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "expr" || name == "definition" => {
                            found.push(text.clone());
                        }
                        value => collect(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(
        &serde_json::from_str(dashboard).expect("the dashboard is JSON"),
        &mut found,
    );
    found
}

/// Returns every series that a text names: a query, or a line of a scrape.
fn series(text: &str) -> Vec<Series> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, labels)) = rest.split_once('{') {
        let start = before
            .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
            .map_or(0, |at| at + 1);
        let (key, after) = key_and_rest(labels);
        found.push((before[start..].to_owned(), key));
        rest = after;
    }
    found
}

/// Returns the value of the label `key` among the labels at the beginning of a text, and the text after their closing brace.
fn key_and_rest(labels: &str) -> (String, &str) {
    let (mut name, mut key, mut rest) = (String::new(), String::new(), labels);
    loop {
        let mut chars = rest.chars();
        match chars.next().expect("a brace is closed") {
            '}' => return (key, chars.as_str()),
            ',' | ' ' => name.clear(),
            '"' => {
                let (value, after) = quoted(chars.as_str());
                if name.trim_end_matches(['=', '~']) == "key" {
                    key = value;
                }
                rest = after;
                continue;
            }
            c => name.push(c),
        }
        rest = chars.as_str();
    }
}

/// Returns the text up to the closing quote, and the text after it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next().expect("a quote is closed") {
            '"' => return (value, chars.as_str()),
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
}

/// Returns the series that the dashboard queries and the exporter does not offer.
fn missing(dashboard: &str, offered: &BTreeSet<Series>) -> BTreeSet<Series> {
    let is_offered = |(metric, key): &Series| match key.strip_suffix(".+") {
        Some(prefix) => offered
            .iter()
            .any(|(m, k)| m == metric && k.starts_with(prefix) && k != prefix),
        None => offered.contains(&(metric.clone(), key.clone())),
    };
    queries(dashboard)
        .iter()
        .flat_map(|query| {
            let named = series(query);
            assert!(!named.is_empty(), "{query} asks for nothing");
            named
        })
        .filter(|series| !is_offered(series))
        .collect()
}

/// Returns the dashboard with a query for a field that does not exist.
fn misspelt() -> String {
    let dashboard = DASHBOARD.replace("dlock_expired_total", "dlock_expiries_total");
    assert_ne!(dashboard, DASHBOARD);
    dashboard
}

fn the_misspelt_one() -> BTreeSet<Series> {
    BTreeSet::from([(METRIC.to_owned(), "dlock_expiries_total".to_owned())])
}

/// The name of a lock that is hard to write as a label.
const AWKWARD: &str = "{or\"der\\s},key=\"%é";

/// Returns a server with a bit of everything: grants, waits, an expiry, a lock with an awkward name.
fn busy_server() -> Server {
    let server = Server::start();
    let mut c = server.connection();
    for key in ["stock", AWKWARD] {
        c.run(&format!("DLOCK.ACQUIRE {key} ann 600000"));
        let bob = Blocked::start(&server, &format!("DLOCK.ACQUIRE {key} bob 600000 BLOCK 0"));
        c.run(&format!("DLOCK.RELEASE {key} ann"));
        let _: Grant = bob.reply();
    }
    half_a_semaphore(&server);
    c.refusal("DLOCK.RENEW other ann");
    c.run("DLOCK.ACQUIRE short ann 1");
    await_until("the lease has run out", PATIENCE, || {
        c.run("DLOCK.HELD short ann");
        server.info("dlock").number::<u64>("dlock_expired_total") == 1
    });
    server
}

/// Leaves a semaphore in another database, with two of its four permits in use.
fn half_a_semaphore(server: &Server) {
    let (mut ann, mut bob) = (server.connection(), server.connection());
    for c in [&mut ann, &mut bob] {
        c.run("SELECT 1");
    }
    ann.run("DLOCK.ACQUIRE jobs ann 600000 LIMIT 4 PERMITS 3");
    let line = "DLOCK.ACQUIRE jobs bob 600000 BLOCK 0 LIMIT 4 PERMITS 2";
    let mut bob = Blocked::send_on(bob, &command(line), line);
    bob.await_blocked(server);
    ann.run("DLOCK.RELEASE jobs ann");
    let _: Grant = bob.reply();
}

/// Returns the script's result: the exporter wants names and numbers alternately, all as text.
fn run_script(server: &Server, command: &str) -> BTreeMap<String, f64> {
    let script = fs::read_to_string(SCRIPT).expect("the script can be read");
    let reply = server
        .connection()
        .answer(cmd(command).arg(script).arg(0).arg(0))
        .expect("the script runs");
    let words: Vec<String> = match reply {
        redis::Value::Array(words) => words
            .into_iter()
            .map(|word| match word {
                redis::Value::BulkString(bytes) => {
                    String::from_utf8(bytes).expect("a label is text")
                }
                word => panic!("{word:?} is no bulk string"),
            })
            .collect(),
        reply => panic!("{reply:?} is no array"),
    };
    assert_eq!(words.len() % 2, 0);
    words
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].parse().expect("a number")))
        .collect()
}

#[test]
fn the_script_offers_what_the_dashboard_asks_for() {
    let server = busy_server();
    for command in ["EVAL", "EVAL_RO"] {
        let offered = run_script(&server, command)
            .into_keys()
            .map(|key| (METRIC.to_owned(), key))
            .collect();
        assert_eq!(missing(DASHBOARD, &offered), BTreeSet::new());
        assert_eq!(missing(&misspelt(), &offered), the_misspelt_one());
    }
}

/// Each alert queries an existing series, and is tested both ways.
#[test]
fn the_alerts_ask_for_what_the_script_offers() {
    let server = busy_server();
    let told = run_script(&server, "EVAL");
    let asked = |alerts: &str| -> BTreeSet<String> {
        let queries = alerts
            .lines()
            .filter_map(|line| line.trim().strip_prefix("expr: "));
        let all = queries.flat_map(series);
        let ours = all.filter(|(metric, _)| metric == METRIC);
        ours.map(|(_, key)| key)
            .filter(|key| !told.contains_key(key))
            .collect()
    };
    assert_eq!(asked(ALERTS), BTreeSet::new());
    let misspelt = ALERTS.replace("dlock_fenced_total", "dlock_fences_total");
    assert_eq!(asked(&misspelt).len(), 1);
    let names = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut seen = 0;
    for name in names {
        let tests = ALERTS_TEST.matches(&format!("alertname: {name}\n")).count();
        assert!(tests >= 2, "{name}");
        seen += 1;
    }
    assert!(seen > 15, "{seen} alerts");
}

#[test]
fn the_script_tells_the_numbers_of_info() {
    let server = busy_server();
    let told = run_script(&server, "EVAL");
    assert_eq!(told["dlock_locks"], 3.0);
    assert_eq!(told["dlock_expired_total"], 1.0);
    assert_eq!(told["dlock_grants_waited_total"], 3.0);
    assert_eq!(told["dlock_top_waits:0:stock"], 1.0);
    assert!(told.contains_key("dlock_top_wait_ms:0:{or\"der\\s},key=\"%25%c3%a9"));
    let share = |lock| {
        [
            told[&format!("dlock_top_permits:{lock}")],
            told[&format!("dlock_top_limit:{lock}")],
        ]
    };
    assert_eq!(share("0:stock"), [1.0, 1.0]);
    assert_eq!(share("1:jobs"), [2.0, 4.0]);
    let info = server.connection().ask::<String>("INFO dlock");
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    for (name, _) in fields {
        assert!(told.contains_key(name), "{name} is not told");
    }
}

#[test]
fn the_script_tells_nothing_where_the_module_is_not() {
    let server = Server::builder().without_module().start();
    assert_eq!(run_script(&server, "EVAL"), BTreeMap::new());
}

/// A user who may not see the most contended locks receives the rest.
#[test]
fn the_script_gets_by_with_less() {
    let server = busy_server();
    let mut admin = server.connection();
    admin.run("ACL SETUSER default -dlock.top");
    let told = run_script(&server, "EVAL");
    assert!(told.contains_key("dlock_locks"));
    assert!(told["maxclients"] > 0.0);
    assert!(told.keys().all(|key| !key.starts_with("dlock_top")));
    admin.run("ACL SETUSER default +dlock.top -dlock.info");
    let told = run_script(&server, "EVAL");
    assert!(told.contains_key("dlock_top_waits:0:stock"));
    assert!(!told.contains_key("dlock_top_permits:0:stock"));
}

/// Returns the program that the environment names.
fn programs(variable: &str) -> Vec<String> {
    let named = std::env::var(variable).unwrap_or_default();
    let programs: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
    assert!(
        !programs.is_empty(),
        "{variable} names no program: run `make observe`"
    );
    programs
}

fn start_exporter(program: &str, server: &Server) -> Daemon {
    Daemon::start(|port, _| {
        let mut command = Command::new(program);
        command
            .arg(format!("-redis.addr=redis://127.0.0.1:{}", server.port()))
            .arg("-redis.user=exporter")
            .arg(format!("-redis.password={}", AclRules::PASSWORD))
            .arg(format!("-web.listen-address=127.0.0.1:{port}"))
            .arg(format!("-script={SCRIPT}"));
        command
    })
}

fn start_prometheus(program: &str, targets: &[String]) -> Daemon {
    Daemon::start(|port, directory| {
        let config = directory.join("prometheus.yml");
        let targets = serde_json::to_string(targets).expect("text");
        let text = format!(
            "scrape_configs:\n- job_name: dlock\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  \
             static_configs: [{{targets: {targets}}}]\n"
        );
        fs::write(&config, text).expect("the directory can be written to");
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    })
}

/// Returns the number of series that a query finds.
fn found(prometheus: &Daemon, query: &str) -> Result<usize, String> {
    let encoded: String = query
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect();
    let path = format!("/api/v1/query?query={encoded}");
    let (status, body) = prometheus.get(&path).map_err(|error| error.to_string())?;
    if status != 200 {
        return Err(body);
    }
    let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    Ok(answer["data"]["result"].as_array().map_or(0, Vec::len))
}

/// Returns the dashboard's queries as Grafana sends them, for one exporter.
fn for_instance(dashboard: &str, instance: &str) -> Vec<String> {
    queries(dashboard)
        .iter()
        .map(|query| match query.strip_prefix("label_values(") {
            // Grafana's own expression for the values of a label.
            Some(rest) => rest
                .rsplit_once(',')
                .expect("the label's name")
                .0
                .to_owned(),
            None => query.clone(),
        })
        .map(|query| {
            query
                .replace("$instance", instance)
                .replace("$__rate_interval", "10s")
        })
        .collect()
}

#[test]
#[ignore = "needs Prometheus and its exporter: make observe"]
fn prometheus_has_what_the_dashboard_asks_for() {
    let server = busy_server();
    server.connection().run(AclRules::of_the_page().exporter);
    let exporters: Vec<Daemon> = programs("DLOCK_EXPORTERS")
        .iter()
        .map(|program| start_exporter(program, &server))
        .collect();
    for exporter in &exporters {
        let (status, scrape) = exporter.get("/metrics").expect("a scrape");
        assert_eq!(status, 200, "{scrape}");
        // An alert queries the server's errors by their first word.
        assert!(scrape.contains("redis_errors_total{err=\""), "{scrape}");
        let lines = scrape.lines().filter(|line| line.starts_with(METRIC));
        let offered: BTreeSet<Series> = lines.flat_map(series).collect();
        assert_eq!(missing(DASHBOARD, &offered), BTreeSet::new(), "{scrape}");
        assert_eq!(missing(&misspelt(), &offered), the_misspelt_one());
    }
    let instances: Vec<String> = exporters
        .iter()
        .map(|exporter| format!("127.0.0.1:{}", exporter.port()))
        .collect();
    let program = programs("DLOCK_PROMETHEUS").remove(0);
    assert!(Path::new(&program).exists(), "{program}");
    let prometheus = start_prometheus(&program, &instances);
    for instance in &instances {
        for query in for_instance(DASHBOARD, instance) {
            await_until(&format!("{query} finds something"), PATIENCE, || {
                found(&prometheus, &query).is_ok_and(|series| series > 0)
            });
        }
        // The correct queries have found series by now, so this one never will.
        let wrong: Vec<String> = for_instance(&misspelt(), instance)
            .into_iter()
            .filter(|query| found(&prometheus, query) == Ok(0))
            .collect();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
    }
}

/// Returns the expression of an alert, with a shorter time in it.
fn expression(alert: &str, (usual, shorter): (&str, &str)) -> String {
    let rest = ALERTS.split(&format!("- alert: {alert}\n")).nth(1);
    let line = rest.and_then(|rest| rest.lines().next());
    let expression = line.and_then(|line| line.trim().strip_prefix("expr: "));
    let expression = expression.expect("an expression");
    assert!(expression.contains(usual), "{expression}");
    expression.replace(usual, shorter)
}

/// A wait that continues, and waits that run out of time, each by real clients: the alert on it fires then, and is silent before and
/// after.
#[test]
#[ignore = "needs Prometheus and its exporter: make observe"]
fn alerts_on_waits_fire_for_their_causes() {
    let server = Server::start();
    let mut c = server.connection();
    c.run(AclRules::of_the_page().exporter);
    let exporter = start_exporter(&programs("DLOCK_EXPORTERS")[0], &server);
    let program = programs("DLOCK_PROMETHEUS").remove(0);
    let prometheus = start_prometheus(&program, &[format!("127.0.0.1:{}", exporter.port())]);
    let oldest = expression("DlockOldestWait", ("60000", "1000"));
    let timeouts = expression("DlockTimeouts", ("[5m]", "[10s]"));
    let fires = |query: &str| found(&prometheus, query) == Ok(1);
    await_until("there is a rate", PATIENCE, || {
        fires("rate(redis_script_values{key=\"dlock_timeouts_total\"}[10s])")
    });
    let is_silent =
        || found(&prometheus, &oldest) == Ok(0) && found(&prometheus, &timeouts) == Ok(0);
    assert!(is_silent());
    c.run("DLOCK.ACQUIRE stock alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE stock bob 600000 BLOCK 0");
    await_until("the oldest wait is old", PATIENCE, || fires(&oldest));
    c.run("DLOCK.RELEASE stock alice");
    let _: Grant = bob.reply();
    await_until("nobody waits", PATIENCE, is_silent);
    await_until("waits run out of time", PATIENCE, || {
        for _ in 0..10 {
            c.run("DLOCK.ACQUIRE stock carol BLOCK 10");
        }
        fires(&timeouts)
    });
}
