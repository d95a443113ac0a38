// SPDX-License-Identifier: MIT
package dlock.spring;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLock;
import dlock.DLocks;
import dlock.NotHeld;
import io.lettuce.core.RedisClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.health.contributor.Status;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.transaction.IllegalTransactionStateException;

/** The starter in a program with transactions. */
@SpringBootTest(classes = Shop.class, properties = {
    "spring.main.banner-mode=off", "logging.level.root=WARN",
    // A transaction waits for a row for longer than any test lasts.
    "spring.datasource.url=jdbc:h2:mem:shop;DB_CLOSE_DELAY=-1;LOCK_TIMEOUT=120000",
})
class SpringTest {
    @DynamicPropertySource
    static void server(DynamicPropertyRegistry properties) {
        properties.add("dlock.url", () -> "redis://" + System.getenv("DLOCK_SINGLE"));
        properties.add("dlock.prefix", () -> "registry:" + UUID.randomUUID() + ":");
    }

    @Autowired DLocks locks;
    @Autowired DLockRegistry registry;
    @Autowired Shop.Stock stock;
    final ExecutorService pool = Executors.newCachedThreadPool();
    final String item = UUID.randomUUID().toString();

    @AfterEach
    void end() {
        pool.shutdownNow();
    }

    private static Object run(String command, Object... words) {
        try (RedisClient client = RedisClient.create("redis://" + System.getenv("DLOCK_SINGLE"))) {
            CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8);
            for (Object word : words) {
                arguments.add(word.toString());
            }
            return client.connect().sync().dispatch(() -> command.getBytes(), new IntegerOutput<>(StringCodec.UTF8), arguments);
        }
    }

    @Autowired HealthIndicator dlockHealthIndicator; // one of several: by its name

    @Test
    void healthIsKnown() {
        assertEquals(Status.UP, dlockHealthIndicator.health().getStatus());
    }

    @Test
    void lockedWithATimeOut() throws Exception {
        stock.add(item);
        DLock lock = locks.lock("stock:" + item);
        lock.lock();
        var failed = assertThrows(ExecutionException.class, () -> pool.submit(() -> stock.sellSoon(item)).get(60, SECONDS));
        assertTrue(failed.getCause() instanceof LockTakenException, String.valueOf(failed.getCause()));
        lock.unlock();
        stock.sellSoon(item);
    }

    @Test
    void distributedLockOfSpringIntegration7() throws Exception {
        DistributedLock lock = registry.obtain(item);
        assertTrue(lock.tryLock(Duration.ofSeconds(5), Duration.ofSeconds(5)));
        assertFalse(tryElsewhere(registry.obtain(item)));
        Shop.until("its time to live is over", () -> tryElsewhere(registry.obtain(item)));
        assertThrows(NotHeld.class, lock::unlock);
    }

    @Test
    void registryObtainsTheSameLock() throws Exception {
        Lock lock = registry.obtain(item);
        lock.lock();
        assertFalse(pool.submit(() -> registry.obtain(item).tryLock()).get(60, SECONDS));
        lock.unlock();
        assertTrue(pool.submit(() -> {
            registry.executeLocked(item, () -> assertFalse(tryElsewhere(registry.obtain(item))));
            return registry.obtain(item).tryLock();
        }).get(60, SECONDS));
    }

    private static boolean waits(String key) {
        return ((Number) run("EVAL", "local i = redis.call('DLOCK.INFO', KEYS[1]) if not i then return 0 end "
                + "for n = 1, #i, 2 do if i[n] == 'queued' then return i[n + 1] end end return 0", 1, key)).longValue() > 0;
    }

    private boolean tryElsewhere(Lock lock) {
        try {
            return pool.submit(() -> lock.tryLock()).get(60, SECONDS);
        } catch (Exception failed) {
            throw new AssertionError(failed);
        }
    }

    /** The second one reads after the first one has released, and before it commits: one of the two sales is lost. */
    @Test
    void releaseBeforeCommitLosesUpdates() throws Exception {
        stock.add(item);
        CountDownLatch bothHaveRead = new CountDownLatch(2);
        stock.when(bothHaveRead::countDown, () -> await(bothHaveRead));
        Future<?> one = pool.submit(() -> stock.sellAndReleaseBeforeCommit(item));
        Future<?> two = pool.submit(() -> stock.sellAndReleaseBeforeCommit(item));
        one.get(60, SECONDS);
        two.get(60, SECONDS);
        assertEquals(1, stock.sold(item));
    }

    /** The same, with the lock around the transaction: while one has not committed the other does not read. */
    @Test
    void releaseAfterCommitLosesNone() throws Exception {
        stock.add(item);
        AtomicInteger within = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch otherWaits = new CountDownLatch(1);
        stock.when(() -> most.accumulateAndGet(within.incrementAndGet(), Math::max), () -> {
            await(otherWaits);
            within.decrementAndGet();
        });
        Future<?> one = pool.submit(() -> stock.sell(item));
        Shop.until("it is held", () -> locks.lock("stock:" + item).isLocked());
        AtomicBoolean begun = new AtomicBoolean();
        Future<?> two = pool.submit(() -> {
            begun.set(true);
            stock.sell(item);
        });
        Shop.until("the other waits", () -> begun.get() && waits("stock:" + item));
        otherWaits.countDown();
        one.get(60, SECONDS);
        two.get(60, SECONDS);
        assertEquals(2, stock.sold(item));
        assertEquals(1, most.get());
        assertFalse(locks.lock("stock:" + item).isLocked());
    }

    @Test
    void lockWithinATransactionIsRefused() {
        stock.add(item);
        stock.when(() -> {}, () -> {});
        var refused = assertThrows(IllegalTransactionStateException.class, () -> stock.sellWithin(stock, item));
        for (String said : List.of("Stock.sell(", "stock:" + item, "call it outside the transaction")) {
            assertTrue(refused.getMessage().contains(said), refused.getMessage());
        }
        assertEquals(0, stock.sold(item));
    }

    /** Data elsewhere refuses a holder that has lost its lock by the token. */
    @Test
    void highWaterMarkInSql() throws Exception {
        stock.add(item);
        DLock lock = locks.lock(item);
        lock.lock();
        long late = lock.token();
        assertTrue(stock.begin(item, late));
        assertTrue(stock.write(item, 1, late));
        assertTrue(stock.write(item, 2, late), "the same holder again");
        run("DLOCK.FORCERELEASE", item);
        pool.submit(() -> {
            try (var next = locks.lock(item).hold()) {
                assertTrue(stock.begin(item, next.token()));
                assertFalse(stock.write(item, 3, late), "the next holder has read, and not written yet");
                assertTrue(stock.write(item, 10, next.token()));
            }
        }).get(60, SECONDS);
        assertFalse(stock.begin(item, late));
        assertFalse(stock.write(item, 3, late));
        assertEquals(10, stock.sold(item));
        assertThrows(NotHeld.class, lock::unlock);
    }

    private static void await(CountDownLatch latch) {
        try {
            assertTrue(latch.await(60, SECONDS));
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }
}
