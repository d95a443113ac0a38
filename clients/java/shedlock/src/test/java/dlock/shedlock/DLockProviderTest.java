// SPDX-License-Identifier: MIT
package dlock.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLocks;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.Executors;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.support.LockException;
import net.javacrumbs.shedlock.support.ShortKeepAlive;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of a provider. */
class DLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    static final RedisClient CLIENT = RedisClient.create();
    static final DLocks LOCKS = locks(System.getenv("DLOCK_SINGLE"));

    private final String prefix = UUID.randomUUID() + ":";
    private final DLockProvider provider = new DLockProvider(LOCKS, prefix);

    static DLocks locks(String address) {
        return new DLocks(new LettuceConnector(CLIENT, RedisURI.create("redis://" + address)));
    }

    @AfterAll
    static void end() {
        LOCKS.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return provider;
    }

    @Override
    protected void assertUnlocked(String name) {
        assertEquals(false, LOCKS.lock(prefix + name).isLocked());
    }

    @Override
    protected void assertLocked(String name) {
        assertTrue(LOCKS.lock(prefix + name).isLocked());
    }

    @Test
    void keepAliveProlongsIt() throws Exception {
        var executor = Executors.newSingleThreadScheduledExecutor();
        try {
            var lock = ShortKeepAlive.of(provider, executor).lock(lockConfig("kept", Duration.ofSeconds(10), Duration.ZERO));
            for (long end = System.nanoTime() + 13_000_000_000L; System.nanoTime() < end; Thread.sleep(100)) {
                assertLocked("kept");
            }
            lock.orElseThrow().unlock();
            assertUnlocked("kept");
        } finally {
            executor.shutdownNow();
        }
    }

    @Test
    void whoDoesNotAnswerIsAnErrorOfShedLock() {
        try (DLocks none = locks("127.0.0.1:1")) {
            assertThrows(LockException.class, () -> new DLockProvider(none).lock(lockConfig("x")));
        }
        assertThrows(IllegalArgumentException.class, () -> new DLockProvider(null));
    }
}
