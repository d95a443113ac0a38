// SPDX-License-Identifier: MIT
package dlock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** The examples of docs/clients.md. */
class ExamplesTest {
    private final Stage s = new Stage("lettuce", "single");
    private final HostAndPort address = Stage.addresses("single")[0];
    private final String stock = s.key;
    private final String left = s.key + ":left";

    @AfterEach
    void close() throws Exception {
        s.close();
    }

    private void use(DLocks locks) throws Exception {
        try (var hold = locks.lock(stock).hold()) {
            hold.guard("SET", left, 41); // runs only while the lock is held: else Fenced
        }
        try (var hold = locks.lock(stock).tryHold(5, SECONDS)) {
            if (hold != null) { // null: not within 5 s, and nothing to release
                System.getLogger("example").log(System.Logger.Level.DEBUG, hold.token());
            }
        }
        assertEquals("41", new String((byte[]) s.ask(left, "GET", left), UTF_8));
        s.awaitGone();
    }

    @Test
    void lettuce() throws Exception {
        RedisClient client = RedisClient.create();
        RedisURI uri = RedisURI.create("redis://" + address);
        DLocks locks = new DLocks(new LettuceConnector(client, uri));
        use(locks);
        locks.close();
        client.shutdown();
    }

    @Test
    void jedis() throws Exception {
        var config = DefaultJedisClientConfig.builder().build();
        DLocks locks = new DLocks(new JedisConnector(config, address));
        use(locks);
        locks.close();
    }

    @Test
    void more() throws Exception {
        DLocks locks = s.locks();
        List<Long> lost = new ArrayList<>();
        DLock lock = locks.lock(stock).onLost(hold -> lost.add(hold.token()));
        lock.lock();
        try {
            assertTrue(lock.isHeldByCurrentThread());
        } finally {
            lock.unlock(); // after lock() has returned, and only then
        }
        var readWrite = locks.readWrite(stock);
        readWrite.writeLock().lock();
        readWrite.readLock().lock(); // still the only one
        readWrite.writeLock().unlock(); // from now on a reader among others
        readWrite.readLock().unlock();
        DLock permit = locks.semaphore(stock + ":permits", 3);
        Lock both = DLocks.all(permit, locks.lock(stock)); // in one order, whoever names them
        both.lock();
        assertNotNull(s.ask(stock, "DLOCK.HELD", stock));
        both.unlock();
        assertEquals(List.of(), lost);
    }
}
