//! Runs the cases that all languages have (../cases).

mod stage;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_redis::{Error, Hold, Locks, Request, Settings};
use serde_json::Value as Json;
use stage::{control, int, until, Cluster, Pair, Server, Single, PATIENCE};
use tokio::task::JoinHandle;

type Took = Result<Option<Vec<Hold>>, Error>;

/// What is gone, or what Rust does not have.
const GONE: [(&str, &str); 9] = [
    ("no_right_to_ping", "nothing is pinged; and a session has no EPHEMERAL holds"),
    ("a_refused_renewal_is_the_reason", "the session renews; sessions.json has a refused SESSION"),
    ("no_right_to_renew", "a grant after a wait is told by its row, and is not confirmed by RENEW"),
    ("an_ephemeral_hold_over_a_failover_elsewhere", "a session has no EPHEMERAL holds"),
    ("an_ephemeral_hold_ends_with_its_connection", "a session has no EPHEMERAL holds"),
    ("a_fork", "a runtime of tokio does not outlive a fork"),
    ("forgotten_and_left_to_its_lease", "a hold that is dropped is given back: cases.json has that"),
    ("released_by_the_work_itself", "a release takes the hold: nothing is left to be released again"),
    ("work_that_is_yet_to_be_done", "the only function that takes work awaits it, and drops it when the lock is lost"),
];

/// A client that asks more than once takes longer, however busy the machine.
const AT_ONCE: Duration = Duration::from_millis(250);

/// A busy machine is late by itself. The cases look for delays longer than this.
fn late() -> Duration {
    Duration::from_secs_f64(std::env::var("DLOCK_LATE").ok().and_then(|late| late.parse().ok()).unwrap_or(4.0))
}

/// What the client has logged, in this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("dlock_redis")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{value:?}");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// What a case has made so far.
struct Case {
    server: Server,
    log: Log,
    paths: HashMap<String, String>,
    clients: HashMap<String, Locks>,
    holds: HashMap<String, Vec<Hold>>,
    starts: HashMap<String, JoinHandle<Took>>,
    marks: HashMap<String, u64>,
    spread: HashMap<String, String>,
    taken: Vec<String>,
    frozen: Vec<String>,
    users: Vec<String>,
    settings: Vec<(String, String)>,
}

fn word<'a>(step: &'a Json, name: &str, default: &'a str) -> &'a str {
    step[name].as_str().unwrap_or(default)
}

fn seconds(step: &Json, name: &str, default: f64) -> Duration {
    Duration::from_secs_f64(step[name].as_f64().unwrap_or(default))
}

impl Case {
    fn named(&self, key: &str) -> String {
        self.spread.get(key).cloned().unwrap_or_else(|| format!("{}:{key}", self.server.key))
    }

    fn path(&self, step: &Json) -> &str {
        &self.paths[word(step, "path", "")]
    }

    async fn finish(&mut self) {
        for address in self.frozen.drain(..) {
            control(format!("thaw {address}")).await;
        }
        for path in self.paths.values() {
            control(format!("close {path}")).await;
        }
        self.clients.values().for_each(Locks::close);
        for user in self.users.drain(..) {
            let _: u64 = self.server.ask(&format!("ACL DELUSER {user}")).await;
        }
        for (name, value) in self.settings.drain(..).rev() {
            let _: String = self.server.ask(&format!("CONFIG SET {name} {value}")).await;
        }
    }

    fn client(&mut self, step: &Json, user: Option<(&str, &str)>) {
        let mut clients = self.server.clients();
        if let Some(path) = step["path"].as_str() {
            clients = vec![redis::Client::open(format!("redis://{}/", self.paths[path])).expect("an address")];
        }
        if let Some((user, password)) = user {
            for client in &mut clients {
                let info = client.get_connection_info().clone();
                let redis = info.redis_settings().clone().set_username(user).set_password(password);
                *client = redis::Client::open(info.set_redis_settings(redis)).expect("an address");
            }
        }
        let settings = Settings::new().lease(seconds(step, "lease", 10.0)).hang_timeout(seconds(step, "auto", 60.0));
        let is_cluster = self.server.place == Cluster && step.get("path").is_none();
        let servers = if is_cluster { self.server.servers() } else { clients.into() };
        let name = word(step, "as", "client").to_owned();
        self.clients.insert(name, Locks::with_settings(servers, settings).expect("good settings"));
    }

    /// Those of a step. Some stand for something of this case.
    async fn words(&self, step: &Json) -> Vec<String> {
        let mut words = Vec::new();
        for word in step["words"].as_array().expect("words").iter().filter_map(Json::as_str) {
            words.push(match word {
                "KEY" => self.named("lock"),
                "DATA" => self.named("data"),
                "USER" => self.users.last().expect("a user").clone(),
                // Of the first in the queue.
                "SESSION" => self.session().await,
                "OWNER" => stage::text(&self.server.info_at(&self.named("lock")).await.queue[0], "owner"),
                _ => word.to_owned(),
            });
        }
        words
    }

    /// That of the lock's holder.
    async fn session(&self) -> String {
        stage::text(&self.server.info_at(&self.named("lock")).await.holders[0], "in")
    }

    /// A try, or a wait.
    fn wanted(&self, step: &Json) -> JoinHandle<Took> {
        let locks = &self.clients[word(step, "client", "client")];
        let request = limited(locks.on(self.named(word(step, "key", "lock"))), step);
        let timeout = match step.get("timeout") {
            Some(Json::Null) => None,
            Some(timeout) => {
                let seconds = timeout.as_f64().expect("seconds");
                Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
            }
            None => Some(PATIENCE),
        };
        if let Some(keys) = step["keys"].as_array() {
            let keys: Vec<String> = keys.iter().map(|key| self.named(key.as_str().expect("a key"))).collect();
            let locks = locks.clone();
            return tokio::spawn(async move { locks.many(&keys, timeout).await.map(Some) });
        }
        tokio::spawn(async move {
            match timeout {
                None => request.lock().await.map(|hold| Some(vec![hold])),
                Some(timeout) => Ok(request.wait(timeout).try_lock().await?.map(|hold| vec![hold])),
            }
        })
    }

    async fn judge(&mut self, step: &Json, began: Instant, took: Took) {
        let text = took.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let gives = word(step, "gives", "hold");
        let got = match took {
            Ok(Some(holds)) => {
                self.holds.insert(word(step, "as", "hold").to_owned(), holds);
                "hold"
            }
            Ok(None) | Err(Error::Timeout { cause: None, .. }) => "none",
            Err(Error::Timeout { cause: Some(_), .. }) => "timeout",
            Err(error) => verdict(&error),
        };
        assert_eq!(got, gives, "{step}: {text}");
        let words = match word(step, "text", "") {
            // The redis crate does not pass on what the server has said.
            "invalid username-password pair" => "Password authentication failed",
            words => words,
        };
        assert!(text.contains(words), "{step}: {text}");
        if let Some(within) = step["within"].as_f64() {
            let after = began.elapsed();
            assert!(after < Duration::from_secs_f64(within) + late(), "{step}: after {after:?}");
        }
    }

    async fn step(&mut self, step: &Json) {
        let key = self.named(word(step, "key", "lock"));
        match word(step, "do", "") {
            "path" => {
                let to = match word(step, "to", "single") {
                    "primary" => self.server.address(&key).await,
                    "replica" => self.server.replica().await,
                    to => std::env::var(format!("DLOCK_{}", to.to_uppercase())).expect("it is set"),
                };
                let path = control(format!("path {to}")).await;
                self.paths.insert(word(step, "as", "").to_owned(), path);
            }
            what @ ("close" | "silence" | "strand" | "sound" | "cut") => {
                drop(control(format!("{what} {}", self.path(step))).await)
            }
            "delay" => drop(control(format!("delay {} {}", self.path(step), step["ms"])).await),
            "freeze" => {
                let address = if step["replica"].as_bool() == Some(true) {
                    self.server.replica().await
                } else {
                    self.server.address(&key).await
                };
                control(format!("freeze {address}")).await;
                self.frozen.push(address);
            }
            "thaw" => drop(control(format!("thaw {}", self.frozen.pop().expect("one is frozen"))).await),
            "commands" => {
                let seen: u64 = control(format!("commands {}", self.path(step))).await.parse().expect("a number");
                if let Some(most) = step["at_most"].as_u64() {
                    assert!(seen - self.marks["commands"] <= most, "{} commands", seen - self.marks["commands"]);
                }
                self.marks.insert("commands".into(), seen);
            }
            "settings" => {
                for (name, value) in step.as_object().expect("a step").iter().filter(|(name, _)| *name != "do") {
                    let mut node = self.server.node(&key).await;
                    let mut get = redis::cmd("CONFIG");
                    let old: HashMap<String, String> =
                        get.arg("GET").arg(name).query_async(&mut node).await.expect("it is known");
                    let before = old[name].clone();
                    let mut set = redis::cmd("CONFIG");
                    set.arg("SET")
                        .arg(name)
                        .arg(value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
                        .exec_async(&mut node)
                        .await
                        .expect("it is set");
                    self.settings.push((name.clone(), before));
                }
            }
            "client" => {
                let user = step["user"].as_str().map(|user| (user, word(step, "password", "")));
                self.client(step, user);
            }
            "user" => {
                let name =
                    format!("u{:x}{}", key.len(), self.server.key.trim_matches(['{', '}'].as_slice()).replace('}', ""));
                let rule = format!("ACL SETUSER {name} on >word ~* &* +@all {}", word(step, "rule", ""));
                let _: String = self.server.ask(&rule).await;
                self.client(step, Some((&name, "word")));
                self.users.push(name);
            }
            "lock" | "many" => {
                if step["slots"].as_bool() == Some(true) {
                    let (key, address) = self.server.of_another_node(&self.taken).await;
                    self.taken.push(address);
                    self.spread.insert(word(step, "key", "").to_owned(), key);
                }
                let mut took = None;
                // A busy machine is late by itself: one of twenty is enough.
                for _ in 0..if step["at_once"].as_bool() == Some(true) { 20 } else { 0 } {
                    let began = Instant::now();
                    drop(self.wanted(step).await);
                    took = Some(began.elapsed());
                    if began.elapsed() < AT_ONCE {
                        break;
                    }
                }
                assert!(took.is_none_or(|took| took < AT_ONCE), "{step}: {took:?}");
                let began = Instant::now();
                let took = self.wanted(step).await.expect("no panic");
                self.judge(step, began, took).await;
            }
            "start" => {
                let wanted = self.wanted(step);
                self.starts.insert(word(step, "as", "").to_owned(), wanted);
            }
            "joined" => {
                let start = self.starts.remove(word(step, "start", "")).expect("it was started");
                let took = tokio::time::timeout(PATIENCE, start).await.expect("it ends").expect("no panic");
                self.judge(step, Instant::now(), took).await;
            }
            "holds" => {
                let locks = &self.clients["client"];
                let waits: Vec<_> = (0..step["count"].as_u64().expect("a count"))
                    .map(|i| tokio::spawn(locks.on(self.named(&i.to_string())).lock()))
                    .collect();
                let mut holds = Vec::new();
                for wait in waits {
                    holds.push(wait.await.expect("no panic").expect("the lock"));
                }
                self.holds.insert(word(step, "as", "").to_owned(), holds);
            }
            "release" => {
                let Some(holds) = self.holds.remove(word(step, "hold", "hold")) else {
                    // A second release does not compile: the first has moved the hold.
                    assert_eq!(step["gives"].as_str(), Some("not held"));
                    return;
                };
                for hold in holds {
                    let released = match step["after"].as_f64() {
                        Some(after) => hold.release_after(Duration::from_secs_f64(after)).await,
                        None => hold.release().await,
                    };
                    match step["gives"].as_str() {
                        None => released.expect("it was held"),
                        Some(gives) => {
                            let error = released.expect_err("an error");
                            assert_eq!(verdict(&error), gives);
                            assert!(error.to_string().contains(word(step, "text", "")), "{error}");
                        }
                    }
                }
            }
            "lost" => {
                for hold in &self.holds[word(step, "hold", "")] {
                    let within = seconds(step, "within", 0.0) + late();
                    let reason = tokio::time::timeout(within, hold.lost()).await.expect("it is told");
                    assert!(reason.contains(word(step, "text", "")), "{reason}");
                }
            }
            "kept" => assert!(!self.holds[word(step, "hold", "")].iter().any(Hold::is_lost)),
            "forget" => drop(self.holds.remove(word(step, "hold", ""))),
            "end" => self.clients[word(step, "client", "client")].close(),
            "cycles" => {
                let count = step["count"].as_u64().expect("a count");
                let work = |_| {
                    let (locks, key) = (self.clients["client"].clone(), key.clone());
                    tokio::spawn(async move {
                        for _ in 0..count {
                            locks.on(&key).lock().await.expect("the lock").release().await.expect("it was held");
                        }
                    })
                };
                let workers: Vec<_> = (0..step["workers"].as_u64().expect("workers")).map(work).collect();
                for worker in workers {
                    worker.await.expect("no panic");
                }
            }
            "objects" => {
                for i in 0..step["count"].as_u64().expect("a count") {
                    let request = self.clients["client"].on(self.named(&i.to_string()));
                    request.lock().await.expect("the lock").release().await.expect("it was held");
                }
            }
            "other" => {
                let shared = step["shared"].as_bool() == Some(true);
                self.server.hold_at(&key, if shared { " SHARED" } else { "" }).await;
            }
            "hand_over" => drop(self.server.hand_over_at(&key, "other").await),
            "ask" => {
                let words = self.words(step).await;
                let reply: redis::Value = self.server.ask_at(&key, &words.join(" ")).await;
                if let Some(text) = step["replies"].as_str() {
                    assert_eq!(reply, redis::Value::BulkString(text.into()));
                }
            }
            "fault" => {
                let what = word(step, "what", "");
                control(if what == "switch" { what.to_owned() } else { format!("{what} {key}") }).await;
            }
            "renewed" => {
                until("it is renewed", || async {
                    let holders = self.server.info_at(&key).await.holders;
                    holders.first().is_some_and(|holder| !stage::text(holder, "in").is_empty())
                })
                .await;
            }
            "unkept" => {
                until("nobody keeps it", || async {
                    let holders = self.server.info_at(&key).await.holders;
                    int(holders.first().expect("it is held"), "alive") == 0
                })
                .await;
            }
            // More happens in the session of the lock's holder than a server remembers.
            "overflow" => {
                let (session, one, mut pipe) = (self.session().await, self.named("overflow"), redis::pipe());
                for i in 0..5100 {
                    let owner = format!("overflow/{i}");
                    pipe.cmd("DLOCK.ACQUIRE").arg(&one).arg(owner).arg(60_000).arg("IN").arg(&session).ignore();
                    pipe.cmd("DEL").arg(&one).ignore();
                }
                let mut node = self.server.node(&self.named("lock")).await;
                pipe.exec_async(&mut node).await.expect("it is done");
            }
            "guard" => {
                let words = self.words(step).await;
                let mut command = redis::cmd(&words[0]);
                command.arg(&words[1..]);
                for hold in &self.holds[word(step, "hold", "")] {
                    let guarded = hold.guard(&command).await;
                    match step["gives"].as_str() {
                        None => drop(guarded.expect("it was held")),
                        Some(gives) => assert_eq!(verdict(&guarded.expect_err("an error")), gives),
                    }
                }
            }
            "queued" => {
                let count = step["count"].as_u64().expect("a count");
                let may_be_absent = step["absent"].as_bool().unwrap_or(false);
                until("so many wait", || async {
                    let queue = self.server.info_at(&key).await.queue;
                    let mut absent = queue.iter().map(|place| stage::text(place, "kind") == "absent");
                    queue.len() as u64 == count && (may_be_absent || !absent.any(|absent| absent))
                })
                .await;
            }
            "free" => {
                until("it is free", || async {
                    self.server.ask_at::<redis::Value>(&key, "DLOCK.INFO KEY").await == redis::Value::Nil
                })
                .await;
            }
            "outlasts" => {
                let ms = step["ms"].as_u64().expect("a time");
                until("it is held so long", || async {
                    let holders = self.server.info_at(&key).await.holders;
                    int(holders.first().expect("it is held"), "held-ms") > ms
                })
                .await;
            }
            "connections" => {
                let clients: String = self.server.ask("CLIENT LIST").await;
                let seen = clients.lines().filter(|line| line.contains("cmd=dlock")).count() as u64;
                match step["same"].as_str() {
                    None => drop(self.marks.insert(word(step, "as", "").to_owned(), seen)),
                    Some(before) => assert!(seen <= self.marks[before]),
                }
            }
            "logged" => {
                let seen = || {
                    let log = self.log.0.lock().expect("no panic");
                    log.iter().filter(|line| line.contains(word(step, "text", ""))).count() as u64
                };
                let least = step["at_least"].as_u64().unwrap_or(0);
                until("it is logged", || async { seen() >= least }).await;
                assert!(step["at_most"].as_u64().is_none_or(|most| seen() <= most));
            }
            // What is no time does not compile.
            "bad" if step.get("timeout").is_some() => {}
            "bad" => {
                let key = if step["key"].as_str() == Some("") { String::new() } else { key };
                let request = limited(self.clients["client"].on(key), step);
                let error = request.try_lock().await.expect_err("a bad argument");
                assert!(matches!(error, Error::Invalid { argument, .. } if argument == word(step, "names", "")));
            }
            other => panic!("no such step: {other}"),
        }
    }
}

/// Gives a request what a step names.
fn limited(mut request: Request, step: &Json) -> Request {
    // The old word of the cases is owner.
    if let Some(actor) = step["actor"].as_str().or(step["owner"].as_str()) {
        request = request.actor(actor);
    }
    if step.get("lease").is_some() {
        request = request.lease(seconds(step, "lease", 0.0));
    }
    if step.get("max_hold").is_some() {
        request = request.max_hold(seconds(step, "max_hold", 0.0));
    }
    if let Some(limit) = step["limit"].as_u64() {
        request = request.limit(limit);
    }
    if step["shared"].as_bool() == Some(true) {
        request = request.shared();
    }
    match step["permits"].as_u64() {
        Some(permits) => request.permits(permits),
        None => request,
    }
}

fn verdict(error: &Error) -> &'static str {
    match error {
        Error::NotHeld(_) => "not held",
        Error::NoAck(_) => "unconfirmed",
        Error::Fenced(_) => "fenced",
        Error::Replaced(_) => "replaced",
        Error::Deadlock(_) => "deadlock",
        Error::Closed => "failure",
        Error::Redis(error) if error.is_io_error() => "failure",
        _ => "refusal",
    }
}

/// Plays one case, with a runtime and a log of its own. Returns what has failed in it.
fn failure(case: &Json) -> Option<String> {
    let log = Log::default();
    let _log = tracing::subscriber::set_default(log.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let place = match case["at"].as_str() {
            Some("cluster") => Cluster,
            Some("pair") => Pair,
            _ => Single,
        };
        let case_of = Case {
            server: Server::new(place),
            log,
            paths: HashMap::new(),
            clients: HashMap::new(),
            holds: HashMap::new(),
            starts: HashMap::new(),
            marks: HashMap::new(),
            spread: HashMap::new(),
            taken: Vec::new(),
            frozen: Vec::new(),
            users: Vec::new(),
            settings: Vec::new(),
        };
        let case_of = Arc::new(tokio::sync::Mutex::new(case_of));
        let (run, steps) = (case_of.clone(), case["steps"].as_array().expect("steps").clone());
        let ran = tokio::spawn(async move {
            let mut case = run.lock().await;
            for step in &steps {
                case.step(step).await;
            }
        });
        let failed = ran.await.err().map(|error| {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
        });
        case_of.lock().await.finish().await;
        failed
    })
}

/// What all others at the single server would feel, or what counts what is theirs.
fn is_alone(case: &Json) -> bool {
    let steps = case["steps"].as_array().expect("steps");
    case.get("at").is_none() && steps.iter().any(|step| ["freeze", "connections"].contains(&word(step, "do", "")))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../cases/cases.json");
    let file = std::env::var("DLOCK_CASES").unwrap_or_else(|_| file.to_owned());
    let mut cases: Vec<Json> = Vec::new();
    for file in [file.clone(), file.replace("cases.json", "sessions.json")] {
        let text = std::fs::read_to_string(file).expect("the cases");
        cases.extend(serde_json::from_str::<Vec<Json>>(&text).expect("JSON"));
    }
    let is_gone = |case: &Json| GONE.iter().any(|(name, _)| case["name"] == *name);
    assert_eq!(cases.iter().filter(|case| is_gone(case)).count(), GONE.len(), "cases that are left out, and are there");
    cases.retain(|case| !is_gone(case));
    if arguments == ["names"] {
        cases.iter().for_each(|case| println!("{}", word(case, "name", "")));
        return;
    }
    let named = |name: &str| arguments.is_empty() || arguments.iter().any(|one| name.contains(one.as_str()));
    let name = |case: &Json| case["name"].as_str().expect("a name").to_owned();
    let (alone, others): (Vec<&Json>, Vec<&Json>) =
        cases.iter().filter(|case| named(&name(case))).partition(|case| is_alone(case));
    let failed = Mutex::new(Vec::new());
    let play = |case: &Json| {
        let began = Instant::now();
        let why = failure(case);
        println!(
            "{} {} ({:.1} s)",
            if why.is_none() { "ok  " } else { "FAIL" },
            name(case),
            began.elapsed().as_secs_f64()
        );
        failed.lock().expect("no panic").extend(why.map(|why| format!("{}: {why}", name(case))));
    };
    alone.into_iter().for_each(&play);
    // What one does to the pair, or to the cluster, all others there would feel.
    let (pair, others): (Vec<&Json>, Vec<&Json>) = others.into_iter().partition(|case| case["at"] == "pair");
    let (cluster, others): (Vec<&Json>, Vec<&Json>) = others.into_iter().partition(|case| case["at"] == "cluster");
    let play = &play;
    std::thread::scope(|scope| {
        scope.spawn(move || pair.into_iter().for_each(play));
        scope.spawn(move || cluster.into_iter().for_each(play));
        others.into_iter().for_each(|case| drop(scope.spawn(move || play(case))));
    });
    let failed = failed.into_inner().expect("no panic");
    if !failed.is_empty() {
        println!("failed:\n{}", failed.join("\n"));
        std::process::exit(1);
    }
}
