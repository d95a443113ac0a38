// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** A lock over three masters. */
class QuorumTest {
    private final String key = UUID.randomUUID().toString();
    private final HostAndPort[] addresses = Stage.addresses("masters");
    private final List<DLocks> masters = new ArrayList<>();

    private Quorum quorum(HostAndPort... at) {
        List<DLocks> some = new ArrayList<>();
        for (HostAndPort one : at) {
            some.add(new DLocks(new JedisConnector(DefaultJedisClientConfig.builder().build(), one), Settings.DEFAULT));
        }
        masters.addAll(some);
        return new Quorum(some);
    }

    private Object ask(int master, Object... words) {
        try (Connection connection = Stage.connect(addresses[master])) {
            return Stage.send(connection, words);
        }
    }

    @AfterEach
    void close() {
        masters.forEach(DLocks::close);
    }

    private void awaitGone() throws Exception {
        for (int i = 0; i < 3; i++) {
            int master = i;
            Stage.until("nothing is left", () -> ask(master, "DLOCK.INFO", key) == null);
        }
    }

    @Test
    void quorumAMajorityIsEnough() throws Exception {
        HostAndPort dead = HostAndPort.from(Stage.control("path " + addresses[0]));
        Stage.control("close " + dead);
        long began = System.nanoTime();
        try (Quorum.Held held = quorum(dead, addresses[1], addresses[2]).tryHold(key, Duration.ofSeconds(20))) {
            assertNotNull(held);
            assertEquals(2, held.holds().size());
            assertTrue(System.nanoTime() - began < 10_000_000_000L, "the dead one costs a bound, not the time-out");
        }
        awaitGone();
    }

    @Test
    void quorumAMinorityIsNot() throws Exception {
        ask(1, "DLOCK.ACQUIRE", key, "other", 600_000);
        ask(2, "DLOCK.ACQUIRE", key, "other", 600_000);
        assertNull(quorum(addresses).tryHold(key, Duration.ZERO));
        ask(1, "DLOCK.RELEASE", key, "other");
        ask(2, "DLOCK.RELEASE", key, "other");
        awaitGone();
    }

    @Test
    void quorumNoticesTheLoss() throws Exception {
        Quorum.Held held = quorum(addresses).tryHold(key, Duration.ofSeconds(20));
        ask(0, "DLOCK.FORCERELEASE", key);
        ask(1, "DLOCK.FORCERELEASE", key);
        Stage.until("the loss is told", () -> !held.isHeld());
        assertThrows(DLockException.Fenced.class, () -> held.holds().get(0).guard("SET", key + "x", 1));
        held.close();
        awaitGone();
    }
}
