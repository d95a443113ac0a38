//! The server's own knowledge of the commands: COMMAND, arity, ACL, and the module's section of INFO. The expectations are copied
//! here from the reference, `docs/commands.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use dlock_harness::redis::{from_redis_value, Value};
use dlock_harness::{command, held, kept, AclRules, Ask, Blocked, Grant, Server, Wire};

const REFERENCE: &str = include_str!("../../../docs/commands.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// The permissions that a user needs on the lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    ReadWrite,
    Read,
    Nothing,
}

use Needs::{Nothing, Read, ReadWrite};

/// The expectations for a command.
struct Expected {
    /// As in the reference, except that `=` and its type follow each argument's name.
    syntax: String,
    arity: i64,
    needs: Needs,
    flags: &'static str,
    categories: &'static str,
    /// Succeeds when alice holds `k`; `<token>` stands for her token. In this order no example spoils the next.
    example: &'static str,
}

/// Syntax, arity, the user's permissions, flags, categories and an example. GUARD only reads the lock; the permissions of its
/// inner command concern that command's keys.
const REFERRED: &str = "\
DLOCK.ACQUIRE key=key owner=string [lease-ms=integer] [BLOCK block-ms=integer]
        [HOLDS holds=integer] [SHARED | LIMIT limit=integer [PERMITS permits=integer]] [EPHEMERAL] [AUTO auto-ms=integer]
        [IN session=string]
    -3; read and write; write denyoom blocking; @write @blocking; DLOCK.ACQUIRE k alice 600000
DLOCK.FAIRACQUIRE key=key owner=string [lease-ms=integer] [BLOCK block-ms=integer]
        [HOLDS holds=integer] [SHARED | LIMIT limit=integer [PERMITS permits=integer]] [EPHEMERAL] [AUTO auto-ms=integer] [CLAIM claim-ms=integer]
        [IN session=string]
    -3; read and write; write denyoom blocking; @write @blocking; DLOCK.FAIRACQUIRE k alice 600000
DLOCK.MACQUIRE numkeys=integer key=key [key=key ...] owner=string [lease-ms=integer] [BLOCK block-ms=integer]
        [HOLDS holds=integer] [SHARED | LIMIT limit=integer [PERMITS permits=integer]] [EPHEMERAL] [AUTO auto-ms=integer]
        [IN session=string]
    -4; read and write; write denyoom movablekeys blocking; @write @blocking; DLOCK.MACQUIRE 1 k alice 600000
DLOCK.MRENEW numkeys=integer key=key [key=key ...] owner=string [lease-ms=integer] [EPHEMERAL] [AUTO auto-ms=integer] [IN session=string]
    -4; read and write; write movablekeys; @write; DLOCK.MRENEW 1 k alice 600000
DLOCK.MRELEASE numkeys=integer key=key [key=key ...] owner=string
    -4; read and write; write movablekeys; @write; DLOCK.MRELEASE 1 k nobody
DLOCK.DOWNGRADE key=key owner=string SHARED | LIMIT limit=integer [TOKEN token=integer]
    -4; read and write; write fast; @write @fast; DLOCK.DOWNGRADE k alice LIMIT 1
DLOCK.RENEW key=key owner=string [lease-ms=integer] [TOKEN token=integer] [EPHEMERAL] [AUTO auto-ms=integer]
        [IN session=string]
    -3; read and write; write fast; @write @fast; DLOCK.RENEW k alice 600000
DLOCK.SESSION key=key session=string ms=integer [SEEN id=integer n=integer] [BLOCK block-ms=integer]
    -4; read and write; blocking; @write @blocking; DLOCK.SESSION k s 1000
DLOCK.RELEASE key=key owner=string [HOLDS holds=integer] [TOKEN token=integer]
    -3; read and write; write fast; @write @fast; DLOCK.RELEASE k alice HOLDS 1
DLOCK.FORCERELEASE key=key [owner=string]
    -2; read and write; write; @write @admin @dangerous; DLOCK.FORCERELEASE k nobody
DLOCK.CANCEL key=key owner=string
    3; read and write; write fast; @write @fast; DLOCK.CANCEL k nobody
DLOCK.POSITION key=key owner=string
    3; read; readonly fast; @read @fast; DLOCK.POSITION k nobody
DLOCK.HELD key=key [owner=string]
    -2; read; readonly fast; @read @fast; DLOCK.HELD k alice
DLOCK.CHECK key=key token=integer
    3; read; readonly fast; @read @fast; DLOCK.CHECK k <token>
DLOCK.GUARD key=key token=integer command=string [arg=string ...]
    -4; read; write movablekeys; @write; DLOCK.GUARD k <token> DBSIZE
DLOCK.INFO key=key [COUNT count=integer]
    -2; read; readonly; @read; DLOCK.INFO k
DLOCK.LIST [cursor=integer] [MATCH pattern=string] [COUNT count=integer] [OWNER owner=string] [IN session=string] [CONTENDED]
    -1; nothing; readonly; @read; DLOCK.LIST
DLOCK.GRAPH [DOT] [COUNT count=integer]
    -1; nothing; readonly; @read; DLOCK.GRAPH
DLOCK.TOP [COUNT count=integer]
    -1; nothing; readonly; @read; DLOCK.TOP
DLOCK.LOG [COUNT count=integer] [KEY key=string] [RESET]
    -1; nothing; readonly; @read; DLOCK.LOG
DLOCK.STATS [RESET]
    -1; nothing; readonly loading stale; @read; DLOCK.STATS
DLOCK.HELP [command=string]
    -1; nothing; loading stale fast; @read @fast; DLOCK.HELP";

/// Commands that are not for clients, so not in the reference.
const INTERNAL: &str = "\
DLOCK.APPLY key=key [effect=string]
    -2; read and write; write; @write @admin @dangerous; DLOCK.APPLY k x
DLOCK.HEED
    1; nothing; write; @write @admin @dangerous; DLOCK.HEED
DLOCK.SYNC [arg=string ...]
    -1; nothing; no_auth loading stale fast; @fast @connection; DLOCK.SYNC";

fn read_table(table: &'static str) -> Vec<Expected> {
    let (mut all, mut syntax) = (Vec::new(), Vec::new());
    for line in table.lines() {
        let cells: Vec<&str> = line.trim().split("; ").collect();
        let [arity, needs, flags, categories, example] = cells[..] else {
            syntax.push(line.trim());
            continue;
        };
        all.push(Expected {
            syntax: std::mem::take(&mut syntax).join(" "),
            arity: arity.parse().expect("a number"),
            needs: match needs {
                "read and write" => ReadWrite,
                "read" => Read,
                _ => Nothing,
            },
            flags,
            categories,
            example,
        });
    }
    all
}

static COMMANDS: LazyLock<Vec<Expected>> = LazyLock::new(|| read_table(REFERRED));
static INTERNALS: LazyLock<Vec<Expected>> = LazyLock::new(|| read_table(INTERNAL));

fn everything() -> impl Iterator<Item = &'static Expected> {
    COMMANDS.iter().chain(INTERNALS.iter())
}

impl Expected {
    /// Returns the name as the server writes it: `dlock.acquire`.
    fn name(&self) -> String {
        self.example
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_lowercase()
    }

    /// Returns the syntax as in the reference.
    fn plain_syntax(&self) -> String {
        ["key", "string", "integer"]
            .iter()
            .fold(self.syntax.clone(), |syntax, kind| {
                syntax.replace(&format!("={kind}"), "")
            })
    }

    fn line(&self, token: u64) -> String {
        self.example.replace("<token>", &token.to_string())
    }

    fn has_key(&self) -> bool {
        self.needs != Nothing
    }

    /// Returns true if a number gives the count of the keys.
    fn many_keys(&self) -> bool {
        self.syntax.contains("numkeys")
    }

    /// Returns the flags of its key, as the server writes them.
    fn key_flags(&self) -> BTreeSet<String> {
        match self.needs {
            ReadWrite => words("RW access update"),
            // There may be more keys, which only the module can find.
            Read if self.flags.contains("movablekeys") => words("RO access incomplete"),
            Read => words("RO access"),
            Nothing => BTreeSet::new(),
        }
    }
}

fn words(line: &str) -> BTreeSet<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

type Fields = BTreeMap<String, Value>;

#[track_caller]
fn read<T: dlock_harness::redis::FromRedisValue>(value: &Value) -> T {
    from_redis_value(value).unwrap_or_else(|error| panic!("{value:?}: {error}"))
}

fn names() -> BTreeSet<String> {
    everything().map(Expected::name).collect()
}

/// Returns a connection of a user with these rules.
fn user(server: &Server, rules: &str) -> Wire {
    let mut admin = server.connection();
    admin.run(&format!("ACL SETUSER worker reset on >secret {rules}"));
    server.connection_as("worker", "secret")
}

#[track_caller]
fn assert_denied(c: &mut Wire, line: &str, why: &str) {
    let error = c.refusal(line);
    assert!(error.starts_with("NOPERM "), "{why}: {line}: {error}");
}

/// Asserts that the example succeeds if it is `allowed`, and that the ACL refuses it otherwise.
#[track_caller]
fn assert_allowed(c: &mut Wire, line: &str, allowed: bool, why: &str) {
    if line == "DLOCK.SYNC" {
        // No rule allows or denies it (`the_answer_to_psync_needs_the_permission_for_it`).
    } else if !allowed {
        assert_denied(c, line, why);
    } else if let Some(internal) = INTERNALS.iter().find(|internal| line == internal.example) {
        let name = internal.name().to_uppercase();
        let refused = format!("ERR {name} is for replication and the AOF only");
        assert_eq!(c.refusal(line), refused, "{why}");
    } else if let Err(error) = c.try_ask(line) {
        panic!("{why}: {line}: {error}");
    }
}

#[test]
fn the_table_is_the_reference() {
    for expected in COMMANDS.iter() {
        let syntax = format!("```\n{}\n```", expected.plain_syntax());
        assert!(
            REFERENCE.contains(&syntax),
            "docs/commands.md does not have {syntax}"
        );
    }
    let headings: BTreeSet<String> = REFERENCE
        .lines()
        .filter_map(|line| line.strip_prefix("### DLOCK."))
        .map(|name| format!("dlock.{}", name.to_lowercase()))
        .collect();
    let named: BTreeSet<String> = COMMANDS.iter().map(Expected::name).collect();
    assert_eq!(headings, named);
}

#[test]
fn the_server_lists_them_all() {
    let server = Server::start();
    let mut c = server.connection();
    let mut list = |filter: &str| -> BTreeSet<String> {
        let listed: Vec<String> = c.ask(&format!("COMMAND LIST FILTERBY {filter}"));
        let set: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(set.len(), listed.len(), "{listed:?}");
        set
    };
    assert_eq!(list("MODULE dlock"), names());
    assert_eq!(list("PATTERN dlock*"), names());
}

#[test]
fn command_info_is_right() {
    let server = Server::start();
    let categories = server.version().has_redis_api(7, 2);
    for mut c in [server.connection(), server.connection_resp3()] {
        for expected in everything() {
            let name = expected.name();
            // In any case of letters.
            let answer: Vec<Vec<Value>> = c.ask(&format!("COMMAND INFO {}", name.to_uppercase()));
            let info = &answer[0];
            assert_eq!(read::<String>(&info[0]), name);
            assert_eq!(read::<i64>(&info[1]), expected.arity, "{name}");
            let mut flags = words(expected.flags);
            flags.insert("module".into());
            assert_eq!(read::<BTreeSet<String>>(&info[2]), flags, "{name}");
            let positions: Vec<i64> = info[3..6].iter().map(read).collect();
            // Keys after a number have no position of their own.
            let placed = expected.has_key() && !expected.many_keys();
            let own = if placed { [1; 3] } else { [0; 3] };
            assert_eq!(positions, own, "{name}");
            let own_category = one_category(&server);
            let own = match (categories, own_category) {
                (false, _) => BTreeSet::new(),
                (true, false) => words(expected.categories),
                (true, true) => words(&format!("{} @dlock", expected.categories)),
            };
            assert_eq!(read::<BTreeSet<String>>(&info[6]), own, "{name}");
            let tips = match name.as_str() {
                "dlock.list" => {
                    "nondeterministic_output request_policy:special response_policy:special"
                }
                "dlock.graph" | "dlock.log" => "nondeterministic_output request_policy:all_shards",
                "dlock.top" | "dlock.stats" => {
                    "nondeterministic_output request_policy:all_shards response_policy:special"
                }
                _ => "",
            };
            assert_eq!(read::<BTreeSet<String>>(&info[7]), words(tips), "{name}");
            let keys: Vec<Fields> = read(&info[8]);
            assert_eq!(keys.len(), usize::from(expected.has_key()), "{name}");
            if let Some(key) = keys.first() {
                assert_first_word(key, expected);
            }
            // There are no subcommands.
            assert_eq!(read::<Vec<Value>>(&info[9]), [], "{name}");
        }
    }
}

/// Asserts that the first word is the only key, or gives the number of keys after it.
#[track_caller]
fn assert_first_word(key: &Fields, expected: &Expected) {
    let name = expected.name();
    let flags: BTreeSet<String> = read(&key["flags"]);
    assert_eq!(flags, expected.key_flags(), "{name}");
    let begin: Fields = read(&key["begin_search"]);
    assert_eq!(read::<String>(&begin["type"]), "index", "{name}");
    let spec: BTreeMap<String, i64> = read(&begin["spec"]);
    assert_eq!(spec, BTreeMap::from([("index".into(), 1)]), "{name}");
    let find: Fields = read(&key["find_keys"]);
    let (kind, only) = match expected.many_keys() {
        true => (
            "keynum",
            [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)],
        ),
        false => ("range", [("lastkey", 0), ("keystep", 1), ("limit", 0)]),
    };
    assert_eq!(read::<String>(&find["type"]), kind, "{name}");
    let spec: BTreeMap<String, i64> = read(&find["spec"]);
    let only = only.map(|(field, value)| (field.to_owned(), value));
    assert_eq!(spec, BTreeMap::from(only), "{name}");
}

/// Returns an argument of COMMAND DOCS, written as in the table.
fn written(arg: &Value) -> String {
    let arg: Fields = read(arg);
    let text = |field: &str| arg.get(field).map(read::<String>);
    let (name, kind) = (read::<String>(&arg["name"]), read::<String>(&arg["type"]));
    let flags: BTreeSet<String> = arg.get("flags").map(read).unwrap_or_default();
    let token = text("token");
    let mut written = match (kind.as_str(), token) {
        ("oneof" | "block", token) => {
            let parts: Vec<Value> = read(&arg["arguments"]);
            let between = if kind == "oneof" { " | " } else { " " };
            let parts = parts.iter().map(written);
            token
                .into_iter()
                .chain(parts)
                .collect::<Vec<_>>()
                .join(between)
        }
        ("pure-token", Some(token)) => token,
        (_, Some(token)) => format!("{token} {name}={kind}"),
        (_, None) => format!("{name}={kind}"),
    };
    if flags.contains("multiple") && kind == "key" {
        written = format!("{written} [{written} ...]");
    } else if flags.contains("multiple") {
        written += " ...";
    }
    // The key's position for which it stands.
    let key = arg.get("key_spec_index").map(read::<i64>);
    assert_eq!(key, (kind == "key").then_some(0), "{name}");
    if flags.contains("optional") {
        format!("[{written}]")
    } else {
        written
    }
}

#[test]
fn command_docs_are_right() {
    let server = Server::start();
    for mut c in [server.connection(), server.connection_resp3()] {
        let help: Vec<String> = c.ask("DLOCK.HELP");
        let help: BTreeMap<&str, &str> = help
            .chunks(2)
            .map(|pair| (pair[0].as_str(), pair[1].trim()))
            .collect();
        assert_eq!(help.len(), COMMANDS.len());
        for expected in everything() {
            let name = expected.name();
            let answer: BTreeMap<String, Fields> = c.ask(&format!("COMMAND DOCS {name}"));
            let docs = &answer[&name];
            let text = |field: &str| read::<String>(&docs[field]);
            assert_eq!(text("group"), "module", "{name}");
            assert_eq!(text("module"), "dlock", "{name}");
            let since = match name.as_str() {
                "dlock.heed" => "0.3.0",
                "dlock.sync" => "0.3.1",
                "dlock.session" | "dlock.log" => "0.5.0",
                _ => "0.1.0",
            };
            assert_eq!(text("since"), since, "{name}");
            assert!(text("complexity").starts_with("O("), "{name}");
            assert!(!text("summary").is_empty(), "{name}");
            let args: Vec<Value> = docs.get("arguments").map(read).unwrap_or_default();
            let line = args
                .iter()
                .fold(name.to_uppercase(), |line, arg| line + " " + &written(arg));
            assert_eq!(line, expected.syntax);
            // The server's own help has the syntax, too, but not that of internal commands.
            let helped = help.get(expected.plain_syntax().as_str());
            let summary = text("summary");
            let own = INTERNALS.iter().all(|internal| name != internal.name());
            let own = own.then_some(summary.as_str());
            assert_eq!(helped.copied(), own, "{name}");
            // Of one command, with the prefix and without it.
            for word in [name.to_uppercase(), name["dlock.".len()..].to_owned()] {
                let alone = c.try_ask(&format!("DLOCK.HELP {word}"));
                let alone = alone.map(|reply| read::<Vec<String>>(&reply).len());
                assert_eq!(alone.ok(), own.map(|_| 2), "{word}");
            }
        }
    }
}

#[test]
fn command_getkeys_finds_the_lock() {
    let server = Server::start();
    let mut c = server.connection();
    for expected in everything().filter(|e| e.has_key()) {
        let line = expected.line(1);
        let keys: Vec<String> = c.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(keys, ["k"], "{line}");
        let keys: Vec<(String, BTreeSet<String>)> =
            c.ask(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        let mut flags = expected.key_flags();
        flags.remove("incomplete");
        assert_eq!(keys, [("k".to_owned(), flags)], "{line}");
    }
    // Whatever stands in place of options, and whatever the key looks like.
    for line in [
        "DLOCK.ACQUIRE owner k 1000 BLOCK 5 HOLDS 1 LIMIT 3",
        "dlock.fairacquire owner owner CLAIM 7 SHARED",
        "DLOCK.RELEASE owner k HOLDS 0 TOKEN 9",
        "DLOCK.INFO owner COUNT 2",
    ] {
        let keys: Vec<String> = c.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(keys, ["owner"], "{line}");
    }
    for line in ["DLOCK.HELP", "DLOCK.POSITION k", "DLOCK.CANCEL k a b"] {
        let error = c.refusal(&format!("COMMAND GETKEYS {line}"));
        assert!(error.starts_with("ERR "), "{line}: {error}");
    }
}

/// The server checks the arity before it calls the module: it refuses a transaction while it queues the commands.
#[test]
fn a_wrong_number_of_words_is_the_server_s_to_refuse() {
    let (_server, mut c, _) = held();
    for expected in everything() {
        let name = expected.name();
        let least = expected.arity.unsigned_abs() as usize;
        // The name counts as a word.
        let mut wrong: Vec<usize> = (1..least).collect();
        if expected.arity > 0 {
            wrong.push(least + 1);
        }
        for count in wrong {
            let line = name.to_uppercase() + &" k".repeat(count - 1);
            let text = format!("ERR wrong number of arguments for '{name}' command");
            assert_eq!(c.refusal(&line), text, "{line}");
            c.run("MULTI");
            assert_eq!(c.refusal(&line), text, "{line}");
            let error = c.refusal("EXEC");
            assert!(error.starts_with("EXECABORT "), "{line}: {error}");
        }
    }
    // A command that does not exist.
    let error = c.refusal("DLOCK.MFORCE k");
    assert!(
        error.starts_with("ERR unknown command") && error.contains("MFORCE"),
        "{error}"
    );
}

#[test]
fn key_patterns_are_enforced() {
    let (server, mut admin, token) = held();
    let before = kept(&mut admin, "k");
    for (rules, read, read_write) in [
        ("%R~k", true, false),
        // A user who may only write could still learn about a lock from the answer.
        ("%W~k", false, false),
        ("%R~k %W~other", true, false),
        ("~other", false, false),
        ("~kk ~?k", false, false),
        ("resetkeys", false, false),
        // These may, and come last.
        ("%RW~k", true, true),
        ("%R~k %W~k", true, true),
        ("~k", true, true),
        ("~*", true, true),
    ] {
        let mut c = user(&server, &format!("+@all {rules}"));
        for expected in everything() {
            let allowed = match expected.needs {
                ReadWrite => read_write,
                Read => read,
                Nothing => true,
            };
            assert_allowed(&mut c, &expected.line(token), allowed, rules);
        }
        if !read_write {
            assert_eq!(kept(&mut admin, "k"), before, "{rules}");
        }
    }
    // A denied user has neither taken nor left a place, in scripts and transactions as well.
    let mut c = user(&server, "+@all %R~k ~mine");
    let now = kept(&mut admin, "k");
    for line in [
        "DLOCK.FAIRACQUIRE k bob 1000 CLAIM 60000",
        "DLOCK.ACQUIRE other bob BLOCK 0",
        "DLOCK.FORCERELEASE k",
    ] {
        assert_denied(&mut c, line, "a stranger");
        let mut eval = command("EVAL");
        eval.arg("return redis.call(unpack(ARGV))").arg(0);
        for word in line.split(' ') {
            eval.arg(word);
        }
        let error = c.answer(&eval).expect_err("in a script, too");
        assert!(error.contains(" access "), "{error}");
        c.run("MULTI");
        assert_denied(&mut c, line, "a stranger's transaction");
        assert!(c.refusal("EXEC").starts_with("EXECABORT "));
    }
    assert_eq!(kept(&mut admin, "k"), now);
    assert_eq!(admin.ask::<u64>("EXISTS k other mine"), 1);
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE mine bob").1, 1);
}

/// A replica's user needs PSYNC only.
#[test]
fn the_answer_to_psync_needs_the_permission_for_it() {
    let server = Server::start();
    for (rules, may) in [
        ("+@all", true),
        ("-@all +psync", true),
        ("-@all", false),
        ("-@all +dlock.sync", false),
        ("+@all -psync", false),
    ] {
        let error = user(&server, rules).refusal("DLOCK.SYNC");
        let code = if may { "NOMASTERLINK " } else { "NOPERM " };
        assert!(error.starts_with(code), "{rules}: {error}");
    }
}

/// The server of the module says whether it knows the category.
#[test]
fn one_category_has_all_commands() {
    let server = Server::start();
    let mut admin = server.connection();
    let listed: Vec<String> = admin.ask("ACL CAT");
    let known = listed.contains(&"dlock".to_owned());
    assert_eq!(known, one_category(&server));
    if !known {
        let error = admin.refusal("ACL SETUSER worker +@dlock");
        assert!(error.starts_with("ERR "), "{error}");
        return;
    }
    // Valkey 8.0 shows no command of a module by ACL CAT.
    let commands: Vec<String> = admin.ask("COMMAND LIST FILTERBY ACLCAT dlock");
    assert_eq!(commands.into_iter().collect::<BTreeSet<_>>(), names());
    let mut c = user(&server, "~* -@all +@dlock");
    c.run("DLOCK.ACQUIRE k alice");
    assert_denied(&mut c, "GET k", "another category");
    let mut c = user(&server, "~* +@all -@dlock");
    assert_denied(&mut c, "DLOCK.HELP", "not its category");
    c.run("GET other");
}

/// Returns true if the server lets a module add a category: Redis since 7.4, Valkey since 8.0.
fn one_category(server: &Server) -> bool {
    let text: String = server.connection().ask("INFO server");
    text.contains("valkey_version:") || server.version().has_redis_api(7, 4)
}

/// Each user of the reference may send its own commands and no others.
#[test]
fn the_users_of_the_reference_can_do_what_they_are_for() {
    let app_may =
        "acquire fairacquire macquire mrenew mrelease downgrade renew keep session release cancel \
        position held check info help";
    let ops_may = "info list graph top log stats held position check cancel forcerelease help";
    let rules = AclRules::of_the_page();
    let server = Server::start();
    let mut admin = server.connection();
    let (token, _): Grant = admin.ask("DLOCK.ACQUIRE stock alice 600000");
    admin.run("DLOCK.ACQUIRE k alice 600000");
    for (name, rules, may) in [
        ("app", rules.plain, app_may),
        ("ops", rules.operator, ops_may),
    ] {
        admin.run(rules);
        let mut c = server.connection_as(name, AclRules::PASSWORD);
        for expected in everything() {
            let line = expected.line(token);
            let command = expected.name();
            let allowed = words(may).contains(&command["dlock.".len()..]);
            assert_allowed(&mut c, &line.replace(" k", " stock"), allowed, may);
            if command != "dlock.sync" && (!allowed || name == "app" && expected.has_key()) {
                assert_denied(&mut c, &line, "another's lock, or another's command");
            }
        }
        for line in ["DEL stock", "SET stock x", "PEXPIRE stock 1", "FLUSHALL"] {
            assert_denied(&mut c, line, may);
        }
        assert_eq!(c.ask::<String>("PING"), "PONG");
    }
    assert_eq!(admin.ask::<u64>("EXISTS stock k"), 2);
}

/// Returns the `addr` and `name` of the first place in the queue of `k`, as far as they are shown.
fn shown(info: Value) -> (Option<String>, Option<String>) {
    let info: Fields = read(&info);
    let queue: Vec<Fields> = read(&info["queue"]);
    let text = |field: &str| queue[0].get(field).map(read::<String>);
    assert_eq!(text("owner"), Some("bob".into()));
    // Every user may know the connection's id.
    assert_ne!(text("client"), Some("0".into()));
    (text("addr"), text("name"))
}

#[test]
fn who_may_not_list_clients_is_not_shown_them() {
    let (server, mut admin, _) = held();
    let mut wire = server.connection();
    wire.ask::<()>("CLIENT SETNAME bobs-machine");
    let line = "DLOCK.ACQUIRE k bob 600000 BLOCK 0";
    let mut bob = Blocked::send_on(wire, &command(line), line);
    bob.await_blocked(&server);
    let listed: String = admin.ask(&format!("CLIENT LIST ID {}", bob.client_id()));
    let addr = listed
        .split(' ')
        .find_map(|word| word.strip_prefix("addr="))
        .expect("an address");
    let all = (Some(addr.to_owned()), Some("bobs-machine".to_owned()));

    assert_eq!(shown(admin.ask("DLOCK.INFO k")), all);
    for (rules, may) in [
        ("+@all", true),
        ("+@all -client|list", false),
        ("+@all -client", false),
        ("+@all -@dangerous", false),
        ("+@all -@admin -@dangerous +client|list", true),
        ("-@all +dlock.info", false),
        ("-@all +dlock.info +client|list", true),
        ("-@all +dlock.info +client|info +client|getname", false),
        ("-@all +dlock.info +client", true),
    ] {
        let expected = if may { all.clone() } else { (None, None) };
        let rules = format!("%R~k +hello +eval +multi +exec {rules} +hello +eval +multi +exec");
        let mut c = user(&server, &rules);
        assert_eq!(shown(c.ask("DLOCK.INFO k")), expected, "{rules}");
        // Nor by a detour.
        let eval = "EVAL return{redis.call('DLOCK.INFO','k')} 0";
        let mut answer: Vec<Value> = c.ask(eval);
        assert_eq!(shown(answer.remove(0)), expected, "{rules}");
        c.run("MULTI");
        c.run("DLOCK.INFO k");
        let mut answer: Vec<Value> = c.ask("EXEC");
        assert_eq!(shown(answer.remove(0)), expected, "{rules}");
        c.run("HELLO 3");
        assert_eq!(shown(c.ask("DLOCK.INFO k")), expected, "{rules}");
    }
    // The module asks for the permission each time.
    let mut c = user(&server, "%R~k +@all");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), all);
    admin.run("ACL SETUSER worker -client|list");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), (None, None));
    admin.run("ACL SETUSER worker +client|list");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), all);
}

/// Returns the module's fields in an answer of INFO.
fn info_fields(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter(|line| line.starts_with("dlock_"))
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(field, value)| {
            let number = value.parse();
            (
                field.to_owned(),
                number.unwrap_or_else(|_| panic!("{field}:{value}")),
            )
        })
        .collect()
}

#[test]
fn info_has_the_fields_of_the_reference() {
    // In the first column, as code, one or more in a row.
    let documented: BTreeSet<String> = OPERATIONS
        .split("## INFO fields")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("docs/operations.md has the table")
        .lines()
        .filter_map(|line| line.strip_prefix("| `dlock_"))
        .filter_map(|line| line.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|field| {
            format!(
                "dlock_{}",
                field.trim_matches('`').trim_start_matches("dlock_")
            )
        })
        .collect();
    let (_server, mut c, _) = held();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE k bob");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    let section: String = c.ask("INFO dlock");
    assert_eq!(section.lines().next(), Some("# dlock_locks"));
    let fields = info_fields(&section);
    let names: BTreeSet<String> = fields.keys().cloned().collect();
    assert_eq!(names, documented, "docs/operations.md, INFO fields");
    for (field, value) in [
        ("dlock_locks", 1),
        ("dlock_places_queued", 1),
        ("dlock_grants_immediate_total", 1),
        ("dlock_reentries_total", 1),
        ("dlock_null_replies_total", 2),
        ("dlock_upgrades_total", 0),
        ("dlock_eviction_possible", 0),
    ] {
        assert_eq!(fields[field], value, "{field}");
    }
    for larger in ["INFO modules", "INFO everything"] {
        let text: String = c.ask(larger);
        let mut larger_fields = info_fields(&text);
        // It rises from one question to the next.
        let oldest = fields["dlock_oldest_wait_ms"];
        let later = larger_fields.insert("dlock_oldest_wait_ms".into(), oldest);
        assert!(later >= Some(oldest), "{larger}");
        assert_eq!(larger_fields, fields, "{larger}");
    }
    // A reader that is the only holder becomes a writer at once.
    c.run("DLOCK.ACQUIRE reader alice 600000 SHARED");
    c.run("DLOCK.ACQUIRE reader alice 600000");
    let fields = info_fields(&c.ask::<String>("INFO dlock"));
    assert_eq!(fields["dlock_upgrades_total"], 1);
    assert_eq!(fields["dlock_locks"], 2);
}
