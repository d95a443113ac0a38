// SPDX-License-Identifier: MIT
package dlock.spring;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLocks;
import dlock.DLocks.DLock;
import dlock.DLocks.Hold;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.transaction.IllegalTransactionStateException;

/** What is the same with both libraries. */
@SpringBootTest(classes = Shop.class, properties = {
    "spring.main.banner-mode=off", "logging.level.root=WARN",
    // Who waits for a row waits longer than any test lasts.
    "spring.datasource.url=jdbc:h2:mem:shop;DB_CLOSE_DELAY=-1;LOCK_TIMEOUT=120000",
})
abstract class SpringTest {
    @DynamicPropertySource
    static void server(DynamicPropertyRegistry properties) {
        String[] address = System.getenv("DLOCK_SINGLE").split(":");
        properties.add("spring.data.redis.host", () -> address[0]);
        properties.add("spring.data.redis.port", () -> address[1]);
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

    /** A command by a connection of the factory, as the library at hand must have it. */
    abstract Object run(String command, Object... words);

    static byte[][] bytes(Object... words) {
        byte[][] bytes = new byte[words.length][];
        for (int i = 0; i < words.length; i++) {
            bytes[i] = words[i].toString().getBytes();
        }
        return bytes;
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
        AtomicReference<String> owner = new AtomicReference<>();
        Shop.until("it is held", () -> locks.lock("stock:" + item).isLocked());
        Future<?> two = pool.submit(() -> {
            owner.set(locks.owner());
            stock.sell(item);
        });
        Shop.until("the other waits", () -> owner.get() != null && run("DLOCK.POSITION", "stock:" + item, owner.get()) != null);
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
        assertThrows(IllegalTransactionStateException.class, () -> stock.sellWithin(stock, item));
        assertEquals(0, stock.sold(item));
    }

    /** Data elsewhere refuses a holder that has lost its lock by the token. */
    @Test
    void highWaterMarkInSql() throws Exception {
        stock.add(item);
        DLock lock = locks.lock(item);
        lock.lock();
        long late = lock.token();
        assertTrue(stock.write(item, 1, late));
        assertTrue(stock.write(item, 2, late), "the same holder again");
        run("DLOCK.FORCERELEASE", item);
        pool.submit(() -> {
            try (Hold next = locks.lock(item).hold()) {
                assertTrue(stock.write(item, 10, next.token()));
            }
        }).get(60, SECONDS);
        assertFalse(stock.write(item, 3, late));
        assertEquals(10, stock.sold(item));
        assertThrows(DLocks.NotHeld.class, lock::unlock);
    }

    private static void await(CountDownLatch latch) {
        try {
            assertTrue(latch.await(60, SECONDS));
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }
}
