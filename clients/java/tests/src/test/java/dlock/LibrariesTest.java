// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Stage.until;
import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.lettuce.LettuceConnector;
import dlock.lettuce.Reply;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.output.ObjectOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** What the libraries do to the commands themselves: the reasons for what docs/clients.md says of them. */
class LibrariesTest {
    private final Stage s = new Stage("jedis", "single");
    private final HostAndPort address = Stage.addresses("single")[0];

    @AfterEach
    void close() throws Exception {
        s.close();
    }

    // ---- Lettuce ----------------------------------------------------------------------------------------------------

    @SuppressWarnings("deprecation")
    private record Name(String name) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return name.getBytes(US_ASCII);
        }
    }

    private StatefulRedisConnection<byte[], byte[]> lettuce() {
        return Stage.LETTUCE.connect(ByteArrayCodec.INSTANCE, RedisURI.create(address.getHost(), address.getPort()));
    }

    private static <T> RedisFuture<T> send(
            StatefulRedisConnection<byte[], byte[]> connection, CommandOutput<byte[], byte[], T> output, Object... words) {
        CommandArgs<byte[], byte[]> arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE);
        for (int i = 1; i < words.length; i++) {
            arguments.add(words[i].toString());
        }
        return connection.async().dispatch(new Name(words[0].toString()), output, arguments);
    }

    private static RedisFuture<Object> send(StatefulRedisConnection<byte[], byte[]> connection, Object... words) {
        return send(connection, new Reply(), words);
    }

    @Test
    void aWrongPasswordIsNamedHoweverLettuceLosesIt() {
        RedisURI wrong = RedisURI.builder().withHost(address.getHost()).withPort(address.getPort())
                .withAuthentication("nobody", "wrong".toCharArray()).build();
        for (int i = 0; i < 300; i++) {
            try (DLocks locks = new DLocks(new LettuceConnector(Stage.LETTUCE, wrong))) {
                Asking asking = locks.ask(s.key);
                var refused = assertThrows(DLockException.Refused.class, () -> asking.tryHold(Duration.ZERO));
                assertTrue(refused.getMessage().startsWith("WRONGPASS"), refused.getMessage());
            }
        }
    }

    @Test
    void lettuceNestedMultiOutputReadsGrants() throws Exception {
        try (var connection = lettuce()) {
            var granted = send(connection, new NestedMultiOutput<>(ByteArrayCodec.INSTANCE),
                    "DLOCK.ACQUIRE", s.key, "me", 60_000).get(60, SECONDS);
            assertEquals(1L, granted.get(1));
            var refused = send(connection, new NestedMultiOutput<>(ByteArrayCodec.INSTANCE),
                    "DLOCK.ACQUIRE", s.key, "other", 60_000).get(60, SECONDS);
            assertTrue(refused == null || refused.isEmpty() || refused.get(0) == null, "not granted: " + refused);
        }
    }

    /** The grants it can read; that there is none it cannot. */
    @Test
    void lettuceObjectOutputThrowsWhenThereIsNoGrant() throws Exception {
        try (var connection = lettuce()) {
            var grant = send(connection, new ObjectOutput<>(ByteArrayCodec.INSTANCE),
                    "DLOCK.ACQUIRE", s.key, "me", 60_000).get(60, SECONDS);
            assertEquals(1L, ((List<?>) grant).get(1));
            var refused = send(connection, new ObjectOutput<>(ByteArrayCodec.INSTANCE),
                    "DLOCK.ACQUIRE", s.key, "other", 60_000);
            assertThrows(Exception.class, () -> refused.get(60, SECONDS));
        }
    }

    /** One connection for all: the holder's release waits behind the wait that it would end. */
    @Test
    void lettuceWaitHoldsUpTheConnection() throws Exception {
        try (var shared = lettuce()) {
            send(shared, "DLOCK.ACQUIRE", s.key, "holder", 600_000).get(60, SECONDS);
            var wait = send(shared, "DLOCK.FAIRACQUIRE", s.key, "waiter", 600_000, "BLOCK", 3000);
            var release = send(shared, "DLOCK.RELEASE", s.key, "holder");
            assertNull(wait.get(60, SECONDS), "the time was up before the release was read");
            assertEquals(0L, release.get(60, SECONDS));
        }
    }

    /** Who has given up on the reply is granted the lock all the same, and nobody knows. */
    @Test
    void lettuceTimeOutLeavesAnOrphan() throws Exception {
        s.hold();
        try (var connection = lettuce()) {
            var wait = send(connection, "DLOCK.FAIRACQUIRE", s.key, "waiter", 600_000, "BLOCK", 60_000);
            s.awaitQueued(1);
            assertThrows(TimeoutException.class, () -> wait.get(10, MILLISECONDS));
            wait.cancel(true);
            assertEquals("waiter", s.handOver(), "an orphan");
            // The remedy, from any other connection, until the waiting command has answered.
            assertEquals(0L, s.ask(s.key, "DLOCK.CANCEL", s.key, "waiter"));
            assertEquals(0L, s.ask(s.key, "DLOCK.RELEASE", s.key, "waiter", "HOLDS", 0));
        }
        s.awaitGone();
    }

    // ---- Jedis ------------------------------------------------------------------------------------------------------

    private Object[] longWait() {
        return new Object[] {"DLOCK.FAIRACQUIRE", s.key, "waiter", 600_000, "BLOCK", 60_000};
    }

    /** The reply to a wait comes too late for the time-out; the connection is closed, and the place is gone with it. */
    @Test
    void jedisTimeOutEndsTheWait() throws Exception {
        s.hold();
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(500).build();
        Connection connection = new Connection(address, config);
        assertThrows(JedisConnectionException.class, () -> Stage.send(connection, longWait()));
        assertEquals(List.of("waiter"), s.queue(), "as long as nobody closes the connection");
        connection.close();
        until("the place is gone", () -> s.queue().isEmpty());
    }

    /** A command that is known to block is waited for without the time-out. */
    @Test
    @SuppressWarnings("deprecation") // in Jedis 8; the versions before have nothing else
    void jedisSendBlockingCommandHasNoTimeOut() throws Exception {
        s.hold();
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(500).build();
        try (RedisClient jedis = RedisClient.builder().hostAndPort(address).clientConfig(config).build();
                Stage.Actor actor = new Stage.Actor()) {
            var wait = actor.start(() -> jedis.sendBlockingCommand(() -> "DLOCK.FAIRACQUIRE".getBytes(US_ASCII),
                    s.key.getBytes(US_ASCII), "waiter".getBytes(US_ASCII), "600000".getBytes(US_ASCII),
                    "BLOCK".getBytes(US_ASCII), "60000".getBytes(US_ASCII)));
            s.awaitQueued(1);
            until("three time-outs have passed", () -> s.places(s.key).get(0).number("waited-ms") > 1500);
            s.handOver();
            assertEquals(1L, ((List<?>) Stage.result(wait)).get(1));
        }
    }

    // ---- Redisson ---------------------------------------------------------------------------------------------------

    private interface Using {
        void run(RedissonClient redisson) throws Exception;
    }

    private void redisson(Using using) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address)
                .setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
        RedissonClient redisson = Redisson.create(config);
        try {
            using.run(redisson);
        } finally {
            redisson.shutdown();
        }
    }

    /** Neither takes the other's key for a lock that is free: a program that still uses the old name learns of it. */
    @Test
    void redissonAndDlockRefuseEachOthersKeys() throws Exception {
        redisson(redisson -> {
            RLock old = redisson.getLock(s.key);
            old.lock();
            DLock lock = s.locks().lock(s.key);
            var refused = assertThrows(DLockException.class, lock::tryLock);
            assertTrue(refused.getMessage().startsWith("WRONGTYPE"), refused.getMessage());
            old.unlock();

            assertTrue(lock.tryLock());
            var wrong = assertThrows(RedisException.class, old::tryLock);
            assertTrue(wrong.getMessage().contains("WRONGTYPE"), wrong.getMessage());
            lock.unlock();
        });
    }

    /** While old and new programs run side by side: both locks, the old one first. */
    @Test
    void bothLocksWhileMoving() throws Exception {
        redisson(redisson -> {
            RLock old = redisson.getLock(s.key + ":old");
            DLock lock = s.locks().lock(s.key);
            old.lock();
            lock.lock();
            try (Stage.Actor oldProgram = new Stage.Actor(); Stage.Actor newProgram = new Stage.Actor()) {
                assertFalse(oldProgram.run(() -> old.tryLock()));
                assertFalse(newProgram.run(() -> lock.tryLock()));
            }
            lock.unlock();
            old.unlock();
            s.awaitGone();
        });
    }

    /** lock(lease) of a holder that has more left: there it is shortened, here it is not. */
    @Test
    void reEntryNeverShortensALease() throws Exception {
        redisson(redisson -> {
            RLock old = redisson.getLock(s.key + ":old");
            old.lock(600, SECONDS);
            old.lock(60, SECONDS);
            assertTrue(old.remainTimeToLive() <= 60_000);
            old.forceUnlock();
        });
        s.hold(s.key, "me");
        s.ask(s.key, "DLOCK.ACQUIRE", s.key, "me", 60_000);
        long left = (Long) ((List<?>) s.ask(s.key, "DLOCK.HELD", s.key, "me")).get(2);
        assertTrue(left > 60_000, left + " ms are left");
    }

    /** A writer that reads and then ends its writing: here a reader once it says so, by DOWNGRADE. */
    @Test
    void writerStaysAloneUntilDowngrade() throws Exception {
        s.hold(s.key, "writer");
        s.ask(s.key, "DLOCK.ACQUIRE", s.key, "writer", 600_000, "SHARED");
        s.ask(s.key, "DLOCK.RELEASE", s.key, "writer");
        assertNull(s.ask(s.key, "DLOCK.ACQUIRE", s.key, "reader", 600_000, "SHARED"));
        s.ask(s.key, "DLOCK.DOWNGRADE", s.key, "writer", "SHARED");
        assertNotNull(s.ask(s.key, "DLOCK.ACQUIRE", s.key, "reader", 600_000, "SHARED"));
    }

    /** No BLOCK is no wait, and {@code BLOCK 0} is one without an end. */
    @Test
    void blockZeroIsForEver() throws Exception {
        s.hold();
        assertNull(s.ask(s.key, "DLOCK.ACQUIRE", s.key, "me", 60_000));
        Connection connection = Stage.connect(address);
        try (Stage.Actor actor = new Stage.Actor()) {
            var wait = actor.start(() -> Stage.send(connection, "DLOCK.ACQUIRE", s.key, "me", 60_000, "BLOCK", 0));
            s.awaitQueued(1);
            assertEquals("me", s.handOver());
            assertNotNull(Stage.result(wait));
        }
        connection.disconnect();
    }
}
