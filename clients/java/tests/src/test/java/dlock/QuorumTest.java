// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.jedis.JedisConnector;
import java.io.IOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** A lock over three masters. */
class QuorumTest {
    private static final Duration PATIENT = Duration.ofSeconds(2 * Stage.PATIENCE);

    private final String key = UUID.randomUUID().toString();
    private final HostAndPort[] addresses = Stage.addresses("masters");
    private final List<DLocks> masters = new ArrayList<>();
    private final Stage stage = new Stage("jedis", "masters"); // of the first one

    private Quorum quorum(HostAndPort... at) {
        return quorum(Settings.DEFAULT, at);
    }

    private Quorum quorum(Settings settings, HostAndPort... at) {
        List<DLocks> some = new ArrayList<>();
        for (HostAndPort one : at) {
            some.add(new DLocks(new JedisConnector(DefaultJedisClientConfig.builder().build(), one), settings));
        }
        masters.addAll(some);
        return new Quorum(some);
    }

    private Object ask(int master, Object... words) {
        try (Connection connection = Stage.connect(addresses[master])) {
            return Stage.send(connection, words);
        }
    }

    private List<?> held(int master, Object... owner) {
        List<Object> words = new ArrayList<>(List.of("DLOCK.HELD", key));
        words.addAll(List.of(owner));
        return (List<?>) ask(master, words.toArray());
    }

    private String owner(int master) {
        List<?> held = held(master);
        return held == null ? null : Stage.text(held.get(3));
    }

    private void isHeldEverywhere(Quorum.Held held) {
        for (int i = 0; i < 3; i++) {
            assertEquals(held.holds().get(i).owner(), owner(i));
        }
    }

    @AfterEach
    void close() throws Exception {
        masters.forEach(DLocks::close);
        stage.close();
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
    void quorumWaitsInOneQueue() throws Exception {
        Quorum.Held held = quorum(addresses).tryHold(key, Duration.ZERO);
        List<Future<Quorum.Held>> waits = new ArrayList<>();
        for (int i = 1; i <= 2; i++) {
            waits.add(stage.actor().start(() -> quorum(addresses).tryHold(key, PATIENT)));
            stage.awaitQueued(key, i);
        }
        List<String> inLine = stage.places(key).stream().map(row -> row.word("owner")).toList();
        for (int i = 1; i < 3; i++) {
            assertEquals(List.of(), queue(i));
        }
        held.close();
        held = Stage.result(waits.get(0));
        assertEquals(inLine.get(0), held.holds().get(0).owner());
        isHeldEverywhere(held);
        held.close();
        held = Stage.result(waits.get(1));
        assertEquals(inLine.get(1), owner(0));
        isHeldEverywhere(held);
        // The holder releases it at the first one last: a token tells when it was granted, and all these servers have one clock.
        List<Future<Object>> nexts = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            int master = i;
            nexts.add(stage.actor().start(() -> ask(master, "DLOCK.FAIRACQUIRE", key, "next", 600_000, "BLOCK", 0)));
            Stage.until("it waits", () -> queue(master).size() == 1);
        }
        held.close();
        long[] next = new long[3];
        for (int i = 0; i < 3; i++) {
            next[i] = (Long) ((List<?>) Stage.result(nexts.get(i))).get(0);
            ask(i, "DLOCK.RELEASE", key, "next");
        }
        assertTrue(next[0] > next[1] && next[0] > next[2], Arrays.toString(next));
        awaitGone();
    }

    private List<?> queue(int master) {
        List<?> info = (List<?>) ask(master, "DLOCK.INFO", key);
        for (int i = 0; i < info.size(); i += 2) {
            if (Stage.text(info.get(i)).equals("queue")) {
                return (List<?>) info.get(i + 1);
            }
        }
        throw new AssertionError("no queue");
    }

    @Test
    void quorumRenewsAndNoticesTheLoss() throws Exception {
        Duration lease = Duration.ofSeconds(5);
        Quorum.Held held = quorum(Stage.settings(lease), addresses).tryHold(key, Duration.ofSeconds(20));
        Stage.until("several leases have passed", () -> {
            assertTrue(held.isHeld());
            return stage.heldMs(key) > 2 * lease.toMillis();
        });
        for (int i = 0; i < 3; i++) {
            assertEquals(held.holds().get(i).token(), held(i).get(0));
        }
        ask(0, "DLOCK.FORCERELEASE", key);
        ask(1, "DLOCK.FORCERELEASE", key);
        Stage.until("the loss is told", () -> !held.isHeld());
        assertThrows(DLockException.Fenced.class, () -> held.holds().get(0).guard("SET", key + "x", 1));
        held.close();
        awaitGone();
    }

    private static void interrupt(Stage.Actor actor, Future<?> work) {
        actor.thread.interrupt();
        assertThrows(InterruptedException.class, () -> Stage.result(work));
    }

    @Test
    void quorumIsLeftWhenCancelled() throws Exception {
        Quorum.Held held = quorum(addresses).tryHold(key, Duration.ZERO);
        Stage.Actor actor = stage.actor();
        Future<Quorum.Held> cancelled = actor.start(() -> quorum(addresses).tryHold(key, PATIENT));
        stage.awaitQueued(key, 1);
        Future<Quorum.Held> after = stage.actor().start(() -> quorum(addresses).tryHold(key, PATIENT));
        stage.awaitQueued(key, 2);
        interrupt(actor, cancelled);
        stage.awaitQueued(key, 1);
        held.close();
        held = Stage.result(after);
        isHeldEverywhere(held);
        held.close();
        awaitGone();
        // Some masters have granted it already: the quorum releases it there.
        try (ServerSocket hung = new ServerSocket(0)) {
            HostAndPort there = new HostAndPort("127.0.0.1", hung.getLocalPort());
            cancelled = actor.start(() -> quorum(addresses[0], addresses[1], there).tryHold(key, Duration.ZERO));
            Stage.until("it is held", () -> owner(1) != null);
            interrupt(actor, cancelled);
            awaitGone();
        }
    }

    /** The request arrives when nobody waits for it any longer. */
    @Test
    void quorumGivesBackWhereNobodyAnswered() throws Exception {
        record Some(int silent, List<Integer> others) {}
        for (Some some : List.of(new Some(0, List.of(1, 2)), new Some(0, List.of(0, 1, 2)), new Some(1, List.of(2)))) {
            String path = Stage.control("path " + addresses[some.silent]);
            HostAndPort[] three = addresses.clone();
            three[some.silent] = HostAndPort.from(path);
            Quorum quorum = quorum(Settings.DEFAULT.lease(Duration.ofSeconds(20)).replyTimeout(Duration.ofMillis(500)), three);
            Stage.until("all are connected", () -> {
                try (Quorum.Held held = quorum.tryHold(key, Duration.ofSeconds(20))) {
                    return held != null && held.holds().size() == 3;
                } catch (DLockException.Unavailable busy) {
                    return false;
                }
            });
            awaitGone();
            for (int other : some.others) {
                ask(other, "DLOCK.ACQUIRE", key, "other", 600_000);
            }
            Stage.control("silence " + path);
            try {
                assertNull(quorum.tryHold(key, Duration.ofSeconds(1)));
            } catch (DLockException.Unavailable silent) {
                // On a busy machine others may also be silent.
            }
            Stage.control("sound " + path);
            for (int other : some.others) {
                ask(other, "DLOCK.RELEASE", key, "other");
            }
            awaitGone(); // left behind what was asked, or by the lease if the connection had ended by then
            Stage.control("close " + path);
        }
    }

    /** The others have granted it when the silent one is asked. */
    @Test
    void quorumAsksTheSilentOneLast() throws Exception {
        List<String> asked = new CopyOnWriteArrayList<>();
        List<DLocks> three = new ArrayList<>();
        for (String name : List.of("a", "b", "c")) {
            Connector to = new JedisConnector(DefaultJedisClientConfig.builder().build(), addresses["abc".indexOf(name)]);
            Connector noting = new Connector() {
                @Override
                public Line open(String node, Duration within) throws Exception {
                    if (name.equals("a")) {
                        asked.add(name + (owner(1) == null ? "" : " after b") + (owner(2) == null ? "" : " after c"));
                        throw new IOException("silent");
                    }
                    return to.open(to.node(0), within);
                }

                @Override
                public String said(Throwable error) {
                    return to.said(error);
                }
            };
            three.add(new DLocks(noting, Settings.DEFAULT.replyTimeout(Duration.ofSeconds(1))));
        }
        masters.addAll(three);
        Quorum quorum = new Quorum(three);
        Stage.until("it is asked last", () -> { // a busy machine may let a second pass
            for (int i = 0; i < 2; i++) {
                asked.clear();
                Quorum.Held held = quorum.tryHold(key, Duration.ofSeconds(5));
                if (held != null) {
                    held.close();
                }
            }
            return asked.size() > 0 && asked.get(0).equals("a after b after c");
        });
        awaitGone();
    }
}
