// SPDX-License-Identifier: MIT
package dlock.spring;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.LettuceConnector;
import java.util.List;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.data.redis.connection.RedisConnection;
import org.springframework.data.redis.connection.lettuce.LettuceConnection;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** Boot's default, and what commands through its own connections need. */
class LettuceTest extends SpringTest {
    @Autowired LettuceConnectionFactory lettuce;

    @Override
    Object run(String command, Object... words) {
        return run(lettuce, command, words);
    }

    private static Object run(LettuceConnectionFactory factory, String command, Object... words) {
        try (RedisConnection connection = factory.getConnection()) {
            return ((LettuceConnection) connection).execute(command, new LettuceConnector.Reply(), bytes(words));
        }
    }

    /** The grant cannot be read by the default output, and the lock is taken all the same. */
    @Test
    void defaultOutputCannotReadAGrant() {
        try (RedisConnection connection = lettuce.getConnection()) {
            assertThrows(RuntimeException.class,
                    () -> connection.execute("DLOCK.ACQUIRE", bytes(item, "me", 60_000)));
        }
        assertNotNull(run("DLOCK.HELD", item, "me"));
    }

    @Test
    void rightOutput() {
        List<?> grant = (List<?>) run("DLOCK.ACQUIRE", item, "me", 60_000);
        assertTrue((Long) grant.get(0) > 0);
        assertEquals(1L, grant.get(1));
        assertNull(run("DLOCK.ACQUIRE", item, "other", 60_000));
        assertEquals(0L, run("DLOCK.RELEASE", item, "me"));
    }

    /** All connections of the factory are one: the release waits behind the wait that it would end. */
    @Test
    void sharedConnectionLetsTheReleaseWait() throws Exception {
        assertNull(waitForARelease(lettuce, 3_000), "the holder's release came only when the time was up");
    }

    @Test
    void connectionsOfTheirOwn() throws Exception {
        LettuceConnectionFactory own =
                new LettuceConnectionFactory(lettuce.getHostName(), lettuce.getPort());
        own.setShareNativeConnection(false);
        own.afterPropertiesSet();
        own.start();
        assertNotNull(waitForARelease(own, 50_000));
        own.destroy();
    }

    private Object waitForARelease(LettuceConnectionFactory factory, int block) throws Exception {
        run(factory, "DLOCK.ACQUIRE", item, "holder", 600_000);
        Future<Object> wait =
                pool.submit(() -> run(factory, "DLOCK.FAIRACQUIRE", item, "waiter", 600_000, "BLOCK", block));
        // By a connection of its own, which nothing holds up.
        Shop.until("it waits", () -> locksQueue(item));
        Future<Object> release = pool.submit(() -> run(factory, "DLOCK.RELEASE", item, "holder"));
        Object granted = wait.get(120, SECONDS);
        assertEquals(0L, release.get(120, SECONDS));
        return granted;
    }

    private boolean locksQueue(String key) {
        LettuceConnectionFactory other = new LettuceConnectionFactory(lettuce.getHostName(), lettuce.getPort());
        other.afterPropertiesSet();
        other.start();
        try {
            return run(other, "DLOCK.POSITION", key, "waiter") != null;
        } finally {
            other.destroy();
        }
    }
}
