// SPDX-License-Identifier: MIT
//! What the servers show.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{cmd, from_redis_value, AsyncConnectionConfig, Client, FromRedisValue, Value};

use crate::{locks, Outcome};

async fn connect(url: &str) -> Outcome<MultiplexedConnection> {
    let bound = Some(Duration::from_secs(3));
    let config = AsyncConnectionConfig::new().set_connection_timeout(bound).set_response_timeout(bound);
    Ok(Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// What has control characters could change the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn field<T: FromRedisValue>(entry: &HashMap<String, Value>, name: &str) -> Option<T> {
    from_redis_value(entry.get(name)?.clone()).ok()
}

pub(crate) async fn who(urls: &[String], lock: &str) -> Outcome<u8> {
    let reply = locks(urls)?.ask(lock, cmd("DLOCK.INFO").arg(lock)).await?;
    let Some(info): Option<HashMap<String, Value>> = from_redis_value(reply)? else {
        println!("{} is free", plain(lock));
        return Ok(1);
    };
    for (part, times) in [("holders", ["held-ms", "lease-ms"]), ("queue", ["waited-ms", "left-ms"])] {
        for one in field::<Vec<HashMap<String, Value>>>(&info, part).unwrap_or_default() {
            let text = |name| field::<String>(&one, name).map(|text| plain(&text)).unwrap_or_default();
            let [since, left] = times.map(|name| field::<i64>(&one, name).map_or("-".into(), |ms| format!("{ms} ms")));
            let what = if part == "holders" { "holds" } else { "waits" };
            println!("{what}\t{}\tfor {since}\t{left} left\t{} {}", text("owner"), text("addr"), text("name"));
        }
    }
    Ok(0)
}

type Row = (String, String, u64, u64, i64);

async fn list(urls: &[String], pattern: &str, contended: bool) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for url in urls {
        let (mut node, mut cursor) = (connect(url).await?, String::from("0"));
        loop {
            let mut command = cmd("DLOCK.LIST");
            command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
            if contended {
                command.arg("CONTENDED");
            }
            let (next, mut found): (String, Vec<Row>) = command.query_async(&mut node).await?;
            rows.append(&mut found);
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    rows.sort();
    rows.dedup_by(|a, b| a.0 == b.0);
    Ok(rows)
}

fn show(rows: &[Row]) {
    for (key, owner, holders, queued, left) in rows {
        println!("{}\t{}\t{holders}\t{queued}\t{left}", plain(key), plain(owner));
    }
}

pub(crate) async fn ls(urls: &[String], pattern: &str, contended: bool) -> Outcome<u8> {
    show(&list(urls, pattern, contended).await?);
    Ok(0)
}

pub(crate) async fn release(urls: &[String], lock: &str, owner: Option<String>) -> Outcome<u8> {
    let reply = locks(urls)?.ask(lock, cmd("DLOCK.FORCERELEASE").arg(lock).arg(owner)).await?;
    let ended: u64 = from_redis_value(reply)?;
    println!("{ended} ended");
    Ok(u8::from(ended == 0))
}

pub(crate) async fn top(urls: &[String], once: bool) -> Outcome<u8> {
    loop {
        let mut rows = list(urls, "*", true).await?;
        rows.sort_by_key(|row| std::cmp::Reverse(row.3));
        rows.truncate(20);
        let mut hot = Vec::new();
        for url in urls {
            let mut node = connect(url).await?;
            let found: Vec<Vec<Value>> = cmd("DLOCK.TOP").arg("COUNT").arg(10).query_async(&mut node).await?;
            hot.extend(found);
        }
        if !once {
            print!("\x1b[H\x1b[2J");
        }
        println!("key\towner\tholders\tqueued\tms left");
        show(&rows);
        println!("\nwaited for most: key, waits, ms in all, ms the longest");
        for row in hot {
            let words: Vec<String> = row.into_iter().filter_map(|one| from_redis_value(one).ok()).collect();
            println!("{}", words.iter().map(|word| plain(word)).collect::<Vec<_>>().join("\t"));
        }
        if once {
            return Ok(0);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn setting(node: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let found: HashMap<String, String> = cmd("CONFIG").arg("GET").arg(name).query_async(node).await.ok()?;
    found.get(name).cloned()
}

/// What is missing at one node, and the replicas that it has.
async fn missing(url: &str) -> Outcome<(Vec<String>, Vec<String>, u64)> {
    let mut node = connect(url).await?;
    let (mut lacks, mut replicas) = (Vec::new(), Vec::new());
    let (seconds, micros): (u64, u64) = cmd("TIME").query_async(&mut node).await?;
    let here = SystemTime::UNIX_EPOCH.elapsed()?.as_micros();
    let there = u128::from(seconds) * 1_000_000 + u128::from(micros);
    if here.abs_diff(there) > 1_000_000 {
        lacks.push(format!("its clock and this machine's are {} ms apart", here.abs_diff(there) / 1000));
    }
    let modules: Vec<HashMap<String, Value>> = cmd("MODULE").arg("LIST").query_async(&mut node).await?;
    let module = modules.iter().find(|module| field::<String>(module, "name").is_some_and(|name| name == "dlock"));
    let Some(version) = module.and_then(|module| field::<u64>(module, "ver")) else {
        return Ok((vec!["the module is not loaded".into()], replicas, 0));
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    if setting(&mut node, "maxmemory-policy").await.is_some_and(|policy| policy != "noeviction") {
        lacks.push("maxmemory-policy is not noeviction: a lock can be evicted".into());
    }
    let saves = setting(&mut node, "appendonly").await.is_some_and(|on| on == "yes");
    let quarantine = number(setting(&mut node, "dlock.quarantine-ms").await);
    if !saves && quarantine == 0 {
        lacks.push("neither appendonly nor dlock.quarantine-ms: a restart forgets who holds".into());
    }
    let role: Vec<Value> = cmd("ROLE").query_async(&mut node).await?;
    let is_primary = role.first().and_then(|role| from_redis_value::<String>(role.clone()).ok()).as_deref() == Some("master");
    if is_primary {
        let found: Vec<Vec<String>> = role.get(2).and_then(|one| from_redis_value(one.clone()).ok()).unwrap_or_default();
        replicas.extend(found.iter().filter_map(|one| Some(format!("{}:{}", one.first()?, one.get(1)?))));
        let meant = number(setting(&mut node, "dlock.replicas").await);
        let least = number(setting(&mut node, "min-replicas-to-write").await);
        if replicas.is_empty() {
            lacks.push("it has no replica: its loss is the loss of its locks".into());
        } else if meant == 0 && least == 0 {
            lacks.push("dlock.replicas is 0: grants are not confirmed, and a failover can lose the last ones".into());
        } else if meant > replicas.len() as u64 {
            lacks.push(format!("dlock.replicas is {meant}, and {} are there", replicas.len()));
        }
    }
    let users: Vec<String> = cmd("ACL").arg("LIST").query_async(&mut node).await.unwrap_or_default();
    if users.iter().any(|user| user.starts_with("user default on") && user.contains("nopass")) {
        lacks.push("the default user has no password, and may do anything that it may".into());
    }
    Ok((lacks, replicas, version))
}

pub(crate) async fn check(urls: &[String]) -> Outcome<u8> {
    let (mut todo, mut seen, mut all_well) = (urls.to_vec(), Vec::new(), true);
    let mut versions = Vec::new();
    while let Some(url) = todo.pop() {
        let info = Client::open(url.as_str())?.get_connection_info().clone();
        let name = info.addr().to_string();
        if seen.contains(&name) {
            continue;
        }
        let (lacks, replicas, version) = match missing(&url).await {
            Ok(found) => found,
            Err(error) => (vec![error.to_string()], Vec::new(), 0),
        };
        versions.extend((version > 0).then_some(version));
        todo.extend(replicas.iter().map(|replica| url.replacen(&name, replica, 1)));
        println!("{name}: {}", if lacks.is_empty() { "nothing is missing" } else { "" });
        lacks.iter().for_each(|one| println!("  {one}"));
        all_well &= lacks.is_empty();
        seen.push(name);
    }
    versions.dedup();
    if versions.len() > 1 {
        println!("the nodes have different versions of the module: {versions:?}");
        all_well = false;
    }
    Ok(u8::from(!all_well))
}
