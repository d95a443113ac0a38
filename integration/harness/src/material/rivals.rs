//! The rival locks of the benchmark, the ladder and the demonstration: scripts for clients where the server has no locks, written
//! from the documented protocols of such locks.

/// Deletes a plain key if it is still ours.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Extends the lease of a plain key that is still ours.
pub const COMPARE_AND_EXPIRE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// Takes a plain key in turn. Keys: the lock, its queue, and until when each place is kept; arguments: owner, lease, window. The
/// first in the queue, or a request without a queue, takes a free lock; all others get a place, or keep theirs.
pub const TAKE_IN_TURN: &str = "\
    local time = redis.call('TIME'); \
    local now = time[1] * 1000 + math.floor(time[2] / 1000); \
    local first = redis.call('LINDEX', KEYS[2], 0); \
    while first and tonumber(redis.call('ZSCORE', KEYS[3], first)) < now do \
      redis.call('LPOP', KEYS[2]); \
      redis.call('ZREM', KEYS[3], first); \
      first = redis.call('LINDEX', KEYS[2], 0); \
    end; \
    if redis.call('EXISTS', KEYS[1]) == 0 and (not first or first == ARGV[1]) then \
      if first then redis.call('LPOP', KEYS[2]); redis.call('ZREM', KEYS[3], first); end; \
      redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]); \
      return 1; \
    end; \
    if redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[1]); end; \
    return 0;";

/// Takes a re-entrant lock, a hash of owner and count: nil when it is ours, else the milliseconds that its lease lasts.
pub const COUNTED_TAKE: &str = "\
    if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
      redis.call('HINCRBY', KEYS[1], ARGV[2], 1); \
      redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
      return nil; \
    end; \
    return redis.call('PTTL', KEYS[1]);";

/// Releases the re-entrant lock: nil when it was not ours, 0 when holds remain, 1 when it is free and the waiters were notified
/// on the channel.
pub const COUNTED_GIVE: &str = "\
    if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return nil; end; \
    if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]); \
      return 0; \
    end; \
    redis.call('DEL', KEYS[1]); \
    redis.call('PUBLISH', KEYS[2], ARGV[1]); \
    return 1;";

/// Extends the lease of the re-entrant lock: 1 when it was ours.
pub const COUNTED_RENEW: &str = "\
    if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0; end; \
    redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
    return 1;";

/// Removes the places at the head of a fair lock's queue whose time is over, by the client's clock, and leaves in `first` the
/// owner of the next place.
macro_rules! drop_late {
    ($now:literal) => {
        concat!(
            "local first = redis.call('LINDEX', KEYS[2], 0); \
             while first and tonumber(redis.call('ZSCORE', KEYS[3], first)) <= tonumber(",
            $now,
            ") do \
               redis.call('ZREM', KEYS[3], first); \
               redis.call('LPOP', KEYS[2]); \
               first = redis.call('LINDEX', KEYS[2], 0); \
             end; "
        )
    };
}

/// Takes a fair lock: a hash of owner and count, a list of the waiters, and a sorted set of the time at which each place is given
/// up: a fixed time after that of the place before. So each grant moves all others forward, and the script does as much work as
/// there are waiters. nil when it is ours, else the milliseconds that our place lasts.
pub const FAIR_TAKE: &str = concat!(
    drop_late!("ARGV[4]"),
    "if redis.call('EXISTS', KEYS[1]) == 0 and (not first or first == ARGV[2]) then \
       if first then \
         redis.call('LPOP', KEYS[2]); \
         redis.call('ZREM', KEYS[3], first); \
         for _, waiter in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do \
           redis.call('ZINCRBY', KEYS[3], -tonumber(ARGV[3]), waiter); \
         end; \
       end; \
       redis.call('HSET', KEYS[1], ARGV[2], 1); \
       redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
       return nil; \
     end; \
     if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
       redis.call('HINCRBY', KEYS[1], ARGV[2], 1); \
       redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
       return nil; \
     end; \
     local place = redis.call('ZSCORE', KEYS[3], ARGV[2]); \
     if not place then \
       local last = redis.call('LINDEX', KEYS[2], -1); \
       local before = last and redis.call('ZSCORE', KEYS[3], last) \
         or ARGV[4] + math.max(redis.call('PTTL', KEYS[1]), 0); \
       place = before + ARGV[3]; \
       redis.call('ZADD', KEYS[3], place, ARGV[2]); \
       redis.call('RPUSH', KEYS[2], ARGV[2]); \
     end; \
     return place - ARGV[4];"
);

/// Releases the fair lock: nil when it was not ours, 0 when holds remain, 1 when it is free and the first waiter was notified on
/// a channel of its own.
pub const FAIR_GIVE: &str = concat!(
    drop_late!("ARGV[2]"),
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil; end; \
     if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0; end; \
     redis.call('DEL', KEYS[1]); \
     if first then redis.call('PUBLISH', KEYS[4] .. ':' .. first, 0); end; \
     return 1;"
);

/// Takes a lock that readers share: a hash with its `mode`, and a count for each reader. Each hold of a reader is a key of its
/// own that ends with its lease, and the hash lasts as long as the longest of them. nil when it is ours, else the milliseconds
/// that it lasts. A writer's own name lets it read as well.
pub const READ_TAKE: &str = "\
    local mode = redis.call('HGET', KEYS[1], 'mode'); \
    if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then \
      return redis.call('PTTL', KEYS[1]); \
    end; \
    if not mode then redis.call('HSET', KEYS[1], 'mode', 'read'); end; \
    local count = redis.call('HINCRBY', KEYS[1], ARGV[2], 1); \
    redis.call('SET', KEYS[2] .. ':' .. count, 1, 'PX', ARGV[1]); \
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then \
      redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
    end; \
    return nil;";

/// Releases the shared lock: nil when it was not ours, 0 when it is still held, 1 when it is free and the waiters were notified
/// on the channel.
pub const READ_GIVE: &str = "\
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil; end; \
    local left = redis.call('HINCRBY', KEYS[1], ARGV[1], -1); \
    if left == 0 then redis.call('HDEL', KEYS[1], ARGV[1]); end; \
    redis.call('DEL', KEYS[2] .. ':' .. (left + 1)); \
    if redis.call('HLEN', KEYS[1]) > 1 then \
      local longest = 0; \
      for _, holder in ipairs(redis.call('HKEYS', KEYS[1])) do \
        local count = tonumber(redis.call('HGET', KEYS[1], holder)) or 0; \
        for number = 1, count do \
          local timeout = KEYS[3] .. ':' .. holder .. ':' .. number; \
          longest = math.max(longest, redis.call('PTTL', timeout)); \
        end; \
      end; \
      if longest > 0 then redis.call('PEXPIRE', KEYS[1], longest); return 0; end; \
      if redis.call('HGET', KEYS[1], 'mode') == 'write' then return 0; end; \
    end; \
    redis.call('DEL', KEYS[1]); \
    redis.call('PUBLISH', KEYS[4], ARGV[2]); \
    return 1;";

/// Takes a slot of a semaphore, a sorted set of its holders by the time at which each took it, by the client's clock. First it
/// removes the holders whose lease is over. 1 when there was room.
pub const SLOT_TAKE: &str = "\
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[4] - ARGV[3]); \
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0; end; \
    redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2]); \
    redis.call('PEXPIRE', KEYS[1], ARGV[3]); \
    return 1;";

/// Takes all plain keys, or none if one of them exists.
pub const SET_ALL: &str = "\
    if redis.call('EXISTS', unpack(KEYS)) > 0 then return 0; end; \
    for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]); end; \
    return 1;";

/// Deletes those plain keys that are still ours, and returns their number.
pub const COMPARE_AND_DELETE_ALL: &str = "\
    local ours = 0; \
    for _, key in ipairs(KEYS) do \
      if redis.call('GET', key) == ARGV[1] then ours = ours + redis.call('DEL', key); end; \
    end; \
    return ours;";

/// Writes to the second key if the first is still ours.
pub const COMPARE_AND_SET: &str = "\
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('SET', KEYS[2], ARGV[2]); end; \
    return redis.error_reply('LOST the lock is not ours');";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::server::Server;
    use crate::talk::ask::{command, Ask};
    use crate::talk::wire::Wire;
    use redis::Value;

    /// A server and a client that runs scripts there.
    struct Stage {
        connection: Wire,
        _server: Server,
    }

    impl Stage {
        fn new() -> Stage {
            let server = Server::builder().without_module().start();
            Stage {
                connection: server.connection(),
                _server: server,
            }
        }

        /// Runs a script with these words, the first of which are keys.
        #[track_caller]
        fn check(&mut self, script: &str, keys: usize, words: &str, reply: impl Into<Option<i64>>) {
            let mut eval = command("EVAL");
            eval.arg(script).arg(keys);
            for word in words.split_whitespace() {
                eval.arg(word);
            }
            let wanted = reply.into().map_or(Value::Nil, Value::Int);
            assert_eq!(self.connection.answer(&eval), Ok(wanted), "{words}");
        }

        #[track_caller]
        fn read(&mut self, reader: &str, lease_ms: u64, reply: impl Into<Option<i64>>) {
            let words = format!("rw t:rw:{reader} {lease_ms} {reader} {reader}:write");
            self.check(READ_TAKE, 2, &words, reply);
        }

        #[track_caller]
        fn leave(&mut self, reader: &str, reply: impl Into<Option<i64>>) {
            let words = format!("rw t:rw:{reader} t:rw unlocked {reader} 0");
            self.check(READ_GIVE, 4, &words, reply);
        }

        #[track_caller]
        fn take(&mut self, owner: &str, now_ms: u64, reply: impl Into<Option<i64>>) {
            let words = format!("f f:queue f:timeouts 30000 {owner} 5000 {now_ms}");
            self.check(FAIR_TAKE, 3, &words, reply);
        }

        #[track_caller]
        fn give(&mut self, owner: &str, now_ms: u64, reply: impl Into<Option<i64>>) {
            let words = format!("f f:queue f:timeouts unlocked {owner} {now_ms}");
            self.check(FAIR_GIVE, 4, &words, reply);
        }

        #[track_caller]
        fn lasts(&mut self, key: &str, from_ms: i64, to_ms: i64) {
            let left: i64 = self.connection.ask(&format!("PTTL {key}"));
            assert!((from_ms..=to_ms).contains(&left), "{key} lasts {left} ms");
        }

        #[track_caller]
        fn keys(&mut self, wanted: i64) {
            assert_eq!(self.connection.ask::<i64>("DBSIZE"), wanted);
        }
    }

    #[test]
    fn readers_share_and_leave_nothing_behind() {
        let mut stage = Stage::new();
        stage.leave("a", None);
        stage.read("a", 90_000, None);
        stage.read("b", 30_000, None);
        stage.read("b", 60_000, None);
        stage.lasts("rw", 80_000, 90_000);
        stage.lasts("t:rw:b:2", 50_000, 60_000);
        stage.leave("a", 0);
        stage.lasts("rw", 50_000, 60_000);
        stage.leave("a", None);
        stage.leave("b", 0);
        stage.lasts("rw", 20_000, 30_000);
        stage.leave("b", 1);
        stage.keys(0);
    }

    #[test]
    fn a_writer_shuts_out_all_readers_but_itself() {
        let mut stage = Stage::new();
        stage.connection.run("HSET rw mode write w:write 1");
        stage.read("a", 1_000, -1);
        stage.read("w", 30_000, None);
        stage.leave("w", 0);
        stage.connection.run("PERSIST rw");
        stage.read("a", 1_000, -1);
    }

    #[test]
    fn a_semaphore_has_so_many_slots() {
        let mut stage = Stage::new();
        stage.check(SLOT_TAKE, 1, "s 2 a 1000 5000", 1);
        stage.check(SLOT_TAKE, 1, "s 2 b 1000 5500", 1);
        stage.check(SLOT_TAKE, 1, "s 2 c 1000 5900", 0);
        // The lease of the first holder is over, that of the second is not.
        stage.check(SLOT_TAKE, 1, "s 2 c 1000 6000", 1);
        stage.check(SLOT_TAKE, 1, "s 2 d 1000 6400", 0);
        assert_eq!(stage.connection.ask::<i64>("ZREM s b"), 1);
        stage.check(SLOT_TAKE, 1, "s 2 d 1000 6400", 1);
    }

    #[test]
    fn only_the_holder_renews() {
        let mut stage = Stage::new();
        stage.check(COUNTED_TAKE, 1, "lock 30000 a", None);
        stage.check(COUNTED_RENEW, 1, "lock 90000 b", 0);
        stage.lasts("lock", 20_000, 30_000);
        stage.check(COUNTED_RENEW, 1, "lock 90000 a", 1);
        stage.lasts("lock", 80_000, 90_000);
    }

    #[test]
    fn a_fair_lock_goes_to_the_first_who_waits() {
        let mut stage = Stage::new();
        stage.take("a", 1_000, None);
        stage.take("a", 1_000, None);
        stage.connection.run("PERSIST f");
        stage.take("b", 1_000, 5_000);
        stage.take("c", 1_000, 10_000);
        stage.take("b", 2_000, 4_000);
        stage.give("b", 2_000, None);
        stage.give("a", 2_000, 0);
        stage.give("a", 2_000, 1);
        // The lock is free, and kept for the first waiter.
        stage.take("c", 2_000, 9_000);
        stage.take("b", 2_000, None);
        // The others move forward.
        stage.take("c", 2_000, 4_000);
        stage.give("b", 2_000, 1);
        stage.take("c", 2_000, None);
        stage.give("c", 2_000, 1);
        stage.keys(0);
    }

    #[test]
    fn who_does_not_come_in_time_loses_its_place() {
        let mut stage = Stage::new();
        stage.take("a", 1_000, None);
        stage.connection.run("PERSIST f");
        stage.take("b", 1_000, 5_000);
        stage.take("c", 1_000, 10_000);
        stage.give("a", 1_000, 1);
        stage.take("c", 5_999, 5_001);
        stage.take("c", 6_000, None);
        stage.give("c", 6_000, 1);
        stage.keys(0);
    }

    #[test]
    fn all_keys_or_none() {
        let mut stage = Stage::new();
        stage.check(SET_ALL, 3, "x y z a 30000", 1);
        stage.lasts("z", 20_000, 30_000);
        stage.check(SET_ALL, 3, "v w x b 30000", 0);
        stage.keys(3);
        stage.connection.run("SET y b");
        stage.check(COMPARE_AND_DELETE_ALL, 3, "x y z a", 2);
        stage.keys(1);
    }

    #[test]
    fn only_the_holder_writes() {
        let mut stage = Stage::new();
        stage.connection.run("SET lock a");
        let mut write = |owner: &str| {
            let mut eval = command("EVAL");
            eval.arg(COMPARE_AND_SET)
                .arg(2)
                .arg(&["lock", "data", owner, "1"]);
            stage.connection.answer(&eval)
        };
        assert_eq!(write("a"), Ok(Value::Okay));
        assert_eq!(write("b"), Err("LOST the lock is not ours".to_owned()));
    }
}
