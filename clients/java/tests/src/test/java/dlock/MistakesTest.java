// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Stage.LONG;
import static dlock.Stage.result;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The usual mistakes, and their remedies: those of docs/clients.md that are made in a client. */
class MistakesTest {
    @BeforeAll
    static void warm() throws Exception {
        CasesTest.warm(); // a try is given one reply timeout, connection and all
    }

    private final Stage s = new Stage("lettuce", "single");

    @AfterEach
    void close() throws Exception {
        s.close();
    }

    /** The {@code finally} runs although there was no grant: it hides the real error, or releases an outer lock. */
    @Test
    void unlockInFinallyWithoutAGrant() throws Exception {
        DLock lock = s.locks(LONG).lock(s.key);
        s.hold();
        assertTrue(lock.isLocked()); // connected: 10 ms are enough
        assertThrows(NotHeld.class, () -> {
            try {
                if (!lock.tryLock(10, MILLISECONDS)) {
                    throw new IllegalStateException("busy");
                }
            } finally {
                lock.unlock(); // hides "busy"
            }
        });
        var real = assertThrows(IllegalStateException.class, () -> {
            try (var hold = lock.tryHold(2000, MILLISECONDS)) {
                if (hold == null) {
                    throw new IllegalStateException("busy");
                }
            }
        });
        assertEquals(0, real.getSuppressed().length);
    }

    // A hot stock: one lock for all of it is one sale after the other; k locks, of a part each, are k at once.
    private static final int SEGMENTS = 4;

    private boolean sell(DLocks locks, String stock) throws Exception {
        int start = ThreadLocalRandom.current().nextInt(SEGMENTS);
        for (int i = 0; i < SEGMENTS; i++) {
            String segment = stock + ":" + (start + i) % SEGMENTS;
            try (var hold = locks.lock(segment).hold()) {
                // Below zero is sold out: the next segment may have some left.
                if ((Long) hold.guard("DECR", segment + ":left") >= 0) {
                    return true;
                }
                hold.guard("INCR", segment + ":left");
            }
        }
        return false;
    }

    @Test
    void hotStockInSegments() throws Exception {
        DLocks locks = s.locks(LONG);
        for (int i = 0; i < SEGMENTS; i++) {
            s.ask(s.key, "SET", s.key + ":" + i + ":left", 25);
        }
        AtomicInteger sold = new AtomicInteger();
        List<Future<?>> buyers = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            buyers.add(s.actor().start(() -> {
                while (sell(locks, s.key)) {
                    sold.incrementAndGet();
                }
                return null;
            }));
        }
        for (Future<?> buyer : buyers) {
            result(buyer);
        }
        assertEquals(25 * SEGMENTS, sold.get());
        // The holder of one segment blocks nobody at the others.
        Stage.Actor other = s.actor();
        try (var hold = locks.lock(s.key + ":0").hold()) {
            assertFalse(other.run(() -> locks.lock(s.key + ":0").tryLock()));
            assertTrue(other.run(() -> locks.lock(s.key + ":1").tryLock()));
        }
    }

    /** Another thread is another owner, whatever object it uses. */
    @Test
    void unlockByAnotherThread() throws Exception {
        DLocks locks = s.locks(LONG);
        DLock lock = locks.lock(s.key);
        lock.lock();
        Stage.Actor other = s.actor();
        assertThrows(NotHeld.class, () -> other.run(lock::unlock));
        lock.unlock();
    }
}
