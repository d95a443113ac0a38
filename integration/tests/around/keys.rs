//! The server's own commands for any key: each reads, refuses, or is noticed, and the lock keeps working.

use dlock_harness::{assert_sound, Ask, Guarded, Server};

/// Each general command reads or refuses, and the lock is unchanged.
#[test]
fn general_commands_do_no_harm() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    for line in [
        "SET string x",
        "RPUSH list 3 1 2",
        "SADD set a",
        "ZADD zset 1 a",
        "HSET hash f v",
    ] {
        c.run(line);
    }
    assert_eq!(c.ask::<String>("TYPE guarded"), "dlock-obj");
    let (_, found): (String, Vec<String>) = c.ask("SCAN 0 COUNT 1000 TYPE dlock-obj");
    assert_eq!(found, ["guarded"]);
    let (_, found): (String, Vec<String>) = c.ask("SCAN 0 COUNT 1000 TYPE string MATCH guarded");
    assert!(found.is_empty());
    assert!(c.ask::<u64>("MEMORY USAGE guarded") > 100);
    assert!(c.ask::<u64>("MEMORY USAGE guarded SAMPLES 0") > 100);
    c.ask::<String>("OBJECT ENCODING guarded");
    for (line, answered) in [
        ("OBJECT REFCOUNT guarded", true),
        ("OBJECT IDLETIME guarded", true),
        ("OBJECT FREQ guarded", false),
        ("DEBUG OBJECT guarded", true),
        ("MEMORY DOCTOR", true),
        ("MEMORY STATS", true),
        ("MEMORY PURGE", true),
        ("TOUCH guarded", true),
        ("EXISTS guarded guarded", true),
        ("PTTL guarded", true),
        ("EXPIRETIME guarded", true),
        ("KEYS *", true),
        ("RANDOMKEY", true),
        ("DBSIZE", true),
        ("DUMP guarded", true),
        ("INFO everything", true),
        ("LATENCY DOCTOR", true),
        ("SLOWLOG GET", true),
        ("CLIENT LIST", true),
        ("COMMAND COUNT", true),
        ("SORT guarded", false),
        ("SORT_RO guarded", false),
        ("SORT list BY guarded", true),
        ("SORT list BY nosort GET guarded GET #", true),
        ("SORT list BY guarded->x GET guarded->x", true),
        ("GET guarded", false),
        ("MGET guarded", true),
        ("GETDEL guarded", false),
        ("GETEX guarded PERSIST", false),
        ("STRLEN guarded", false),
        ("SETNX guarded x", true),
        ("SET guarded x NX", true),
        ("MSETNX guarded x other y", true),
        ("SET guarded x GET", false),
        ("GETSET guarded x", false),
        ("APPEND guarded x", false),
        ("SETRANGE guarded 0 x", false),
        ("SETBIT guarded 1 1", false),
        ("BITCOUNT guarded", false),
        ("BITOP AND target guarded string", false),
        ("INCR guarded", false),
        ("LPUSH guarded x", false),
        ("LMOVE list guarded LEFT LEFT", false),
        ("BLPOP guarded 1", false),
        ("BLMOVE guarded list LEFT LEFT 1", false),
        ("SMOVE set guarded a", false),
        ("SINTER set guarded", false),
        ("SUNIONSTORE target set guarded", false),
        ("ZUNIONSTORE target 2 zset guarded", false),
        ("ZADD guarded 1 a", false),
        ("HSET guarded f v", false),
        ("XADD guarded * f v", false),
        ("XREAD STREAMS guarded 0", false),
        ("XGROUP CREATE guarded g $ MKSTREAM", false),
        ("PFADD guarded x", false),
        ("PFMERGE target guarded", false),
        ("GEOADD guarded 1 1 x", false),
        ("LCS guarded string", false),
        ("COPY guarded target", false),
        ("RENAMENX string guarded", true),
        ("MOVE guarded 0", false),
        ("RESTORE guarded 0 x", false),
        ("MODULE UNLOAD dlock", false),
        ("PERSIST guarded", true),
        ("CLIENT UNBLOCK 999999", true),
    ] {
        assert_eq!(
            c.try_ask(line).is_ok(),
            answered,
            "{line}: {:?}",
            c.try_ask(line)
        );
        guarded.assert_untouched(&mut c);
    }
    assert_eq!(c.ask::<u64>("EXISTS target"), 0);
    c.run("CONFIG SET maxmemory-policy allkeys-lfu");
    c.ask::<u64>("OBJECT FREQ guarded");
    c.run("CONFIG SET maxmemory-policy noeviction");
    let mut other = server.connection();
    other.run("SELECT 5");
    other.run("SET guarded x");
    guarded.assert_untouched(&mut c);
    // The defragmenter visits every value, where the server has one.
    if c.try_ask("CONFIG SET activedefrag yes").is_ok() {
        c.run("CONFIG SET active-defrag-ignore-bytes 1 active-defrag-threshold-lower 0");
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}
