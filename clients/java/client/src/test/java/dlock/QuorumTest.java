// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Stage.PATIENCE;
import static dlock.Stage.result;
import static dlock.Stage.text;
import static dlock.Stage.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.Quorum.Hold;
import dlock.Stage.Actor;
import java.io.IOException;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.parallel.ResourceAccessMode;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.exceptions.JedisDataException;

/** A lock over masters, of which the first is the stage's place, too: its INFO shows the queue. */
class QuorumTest {
    /** No test lasts so long. */
    private static final Duration AGES = Duration.ofSeconds(600);
    private static final Duration WAIT = Duration.ofSeconds(PATIENCE);

    @ParameterizedTest
    @MethodSource("libraries")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    @Retention(RetentionPolicy.RUNTIME)
    @interface ByEachLibrary {}

    static Stream<Stage> libraries() {
        return Stream.of(new Stage("lettuce", "masters"), new Stage("jedis", "masters"));
    }

    static Stream<Arguments> majorities() {
        return Stream.of("A B dead", "A B hung", "dead A B", "hung A B")
                .flatMap(masters -> libraries().map(stage -> Arguments.of(stage, masters)));
    }

    /** A client of these masters: A, B, C are alive, {@code dead} refuses and {@code hung} says nothing. */
    private static Quorum quorum(Stage s, String masters) throws IOException {
        List<HostAndPort> addresses = new ArrayList<>();
        for (String name : masters.split(" ")) {
            addresses.add(master(s, name));
        }
        // A busy machine answers in its own time.
        int seconds = masters.contains("hung") ? 3 : PATIENCE;
        var config = DefaultJedisClientConfig.builder().timeoutMillis(1000 * seconds).build();
        var connector = Stage.connector(s.library, config, addresses.toArray(HostAndPort[]::new));
        return s.closing(new Quorum(connector, Duration.ofSeconds(seconds)));
    }

    private static HostAndPort master(Stage s, String name) throws IOException {
        int living = "ABC".indexOf(name);
        if (living >= 0) {
            return Stage.addresses("masters")[living];
        }
        // The system takes connections for it, and nobody answers.
        ServerSocket socket = s.closing(new ServerSocket(0, 50, InetAddress.getLoopbackAddress()));
        if (name.equals("dead")) {
            socket.close();
        }
        return new HostAndPort("127.0.0.1", socket.getLocalPort());
    }

    /** The reply of one master. */
    private static Object at(Stage s, String name, Object... words) throws IOException {
        return Stage.send(s.connection(master(s, name)), words);
    }

    private static void assertFree(Stage s, String... names) throws IOException {
        for (String name : names) {
            assertNull(at(s, name, "DLOCK.INFO", s.key), name);
        }
    }

    private static void assertHeldAt(Stage s, String name, String owner) throws IOException {
        assertEquals(owner, text(((List<?>) at(s, name, "DLOCK.HELD", s.key)).get(3)), name);
    }

    /** It has tokens of these masters and no others, and none of them ends it before the client thinks so. */
    private static void assertHeld(Stage s, Hold hold, String masters, String with) throws IOException {
        String[] names = masters.split(" ");
        long first = Long.MAX_VALUE / 2;
        for (int i = 0; i < names.length; i++) {
            Long token = hold.tokens().get(i);
            if (!with.contains(names[i])) {
                assertNull(token, names[i]);
                continue;
            }
            List<?> held = (List<?>) at(s, names[i], "DLOCK.HELD", s.key, hold.owner());
            assertNotNull(held, names[i]);
            assertEquals(held.get(0), token, names[i]);
            // The server was asked first, and both shrink alike. The allowance for clocks is in between.
            long left = hold.left().toMillis();
            long known = (Long) held.get(2);
            assertTrue(0 < left && left <= known - known / 100, names[i] + ": " + known + " left, believed " + left);
            // When this client dies its successor at the first finds the others free: had they been asked for a full
            // lease it would be later by the time-out of one that hangs. A busy machine may make it a little later.
            assertTrue(known < first + 2000, names[i] + ": " + known + " left, and " + first + " at the first");
            first = first == Long.MAX_VALUE / 2 ? known : first;
        }
    }

    private static Future<Hold> compete(Stage s, Actor actor, Quorum quorum) {
        return actor.start(() -> quorum.acquire(s.key, AGES, WAIT.multipliedBy(2)));
    }

    @ParameterizedTest
    @MethodSource("majorities")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    void quorumAMajorityIsEnough(Stage s, String masters) throws Exception {
        Quorum one = quorum(s, masters);
        Quorum two = quorum(s, masters);
        try (Hold hold = one.acquire(s.key, AGES, WAIT)) {
            assertHeld(s, hold, masters, "A B");
            assertNull(two.acquire(s.key, AGES, Duration.ZERO));
            assertTrue(hold.renew(AGES.multipliedBy(2)));
            assertTrue(hold.left().compareTo(AGES) > 0);
            assertHeld(s, hold, masters, "A B");
            hold.release();
            assertEquals(Duration.ZERO, hold.left());
            assertFree(s, "A", "B");
        }
        try (Hold next = two.acquire(s.key, AGES, WAIT)) {
            assertHeld(s, next, masters, "A B");
        }
        assertFree(s, "A", "B");
    }

    @ByEachLibrary
    void quorumAMinorityIsNot(Stage s) throws Exception {
        var alone = assertThrows(Quorum.Unreachable.class,
                () -> quorum(s, "A dead dead").acquire(s.key, AGES, Duration.ZERO));
        assertEquals(3, alone.getMessage().split("connect to").length, alone.getMessage());
        assertFree(s, "A");
        // Somebody else has the others.
        for (String name : List.of("B", "C")) {
            assertNotNull(at(s, name, "DLOCK.ACQUIRE", s.key, "other", AGES.toMillis()));
        }
        assertNull(quorum(s, "A B C").acquire(s.key, AGES, Duration.ofMillis(300)));
        assertFree(s, "A");
        // Who waits asks again.
        Quorum quorum = quorum(s, "A B C");
        Future<Hold> wait = compete(s, s.actor(), quorum);
        until("it has asked", () -> at(s, "A", "DLOCK.INFO", s.key) != null);
        until("it has given that back", () -> at(s, "A", "DLOCK.INFO", s.key) == null);
        at(s, "B", "DLOCK.RELEASE", s.key, "other");
        try (Hold hold = result(wait)) {
            assertHeld(s, hold, "A B C", "A B");
        }
        assertFree(s, "A", "B");
        assertHeldAt(s, "C", "other");
        // A refusal is no vote.
        for (String name : List.of("B", "C")) {
            at(s, name, "SET", s.key, "no lock");
        }
        var refused = assertThrows(Quorum.Unreachable.class, () -> quorum.acquire(s.key, AGES, Duration.ZERO));
        assertEquals(3, refused.getMessage().split("WRONGTYPE").length, refused.getMessage());
        assertFree(s, "A");
    }

    @ByEachLibrary
    void quorumWaitsInOneQueue(Stage s) throws Exception {
        Quorum quorum = quorum(s, "A B C");
        Hold hold = quorum.acquire(s.key, AGES, WAIT);
        // A thread, and one of another program.
        List<Future<Hold>> waits = new ArrayList<>();
        for (Quorum one : List.of(quorum, quorum(s, "A B C"))) {
            waits.add(compete(s, s.actor(), one));
            s.awaitQueued(waits.size());
        }
        List<String> inLine = s.queue();
        for (String name : List.of("B", "C")) {
            assertNull(at(s, name, "DLOCK.POSITION", s.key, inLine.get(0)), name);
            assertNull(at(s, name, "DLOCK.POSITION", s.key, inLine.get(1)), name);
        }
        for (int i = 0; i < 2; i++) {
            hold.release();
            hold = result(waits.get(i));
            assertEquals(inLine.get(i), hold.owner());
            assertHeld(s, hold, "A B C", "A B C");
        }
        hold.release();
        assertFree(s, "A", "B", "C");
    }

    @ByEachLibrary
    void quorumRenewsAndNoticesTheLoss(Stage s) throws Exception {
        Duration lease = Duration.ofSeconds(10);
        Hold hold = quorum(s, "A B C").acquire(s.key, lease, WAIT);
        List<Long> tokens = hold.tokens();
        while (s.holder().number("held-ms") < 3 * lease.toMillis()) {
            assertTrue(hold.renew(lease));
            assertHeld(s, hold, "A B C", "A B C");
            Thread.sleep(300); // it is the server that says how much time has passed
        }
        assertEquals(tokens, hold.tokens());
        assertTrue(hold.renew(AGES));
        // One of three may lose it, two may not.
        at(s, "C", "DLOCK.FORCERELEASE", s.key);
        assertTrue(hold.renew(AGES));
        assertHeld(s, hold, "A B C", "A B");
        at(s, "B", "DLOCK.FORCERELEASE", s.key);
        long before = hold.deadline();
        assertFalse(hold.renew(AGES.multipliedBy(2)));
        assertEquals(before, hold.deadline());
        // One has heard of a shorter lease.
        assertFalse(hold.renew(AGES.dividedBy(10)));
        assertTrue(hold.left().compareTo(AGES.dividedBy(10)) < 0);
        // The next holder there is not overwritten.
        String data = s.key + ":data";
        Object next = ((List<?>) at(s, "B", "DLOCK.ACQUIRE", s.key, "next", AGES.toMillis())).get(0);
        at(s, "B", "DLOCK.GUARD", s.key, next, "SET", data, "next");
        var fenced = assertThrows(JedisDataException.class,
                () -> at(s, "B", "DLOCK.GUARD", s.key, tokens.get(1), "SET", data, "late"));
        assertTrue(fenced.getMessage().startsWith("FENCED"), fenced.getMessage());
        assertEquals("next", text(at(s, "B", "GET", data)));
        hold.release();
        assertFree(s, "A", "C");
        assertHeldAt(s, "B", "next");
    }

    @ByEachLibrary
    void quorumIsLeftWhenCancelled(Stage s) throws Exception {
        Quorum quorum = quorum(s, "A B C");
        Hold hold = quorum.acquire(s.key, AGES, WAIT);
        Actor cancelled = s.actor();
        Future<Hold> first = compete(s, cancelled, quorum);
        s.awaitQueued(1);
        Future<Hold> second = compete(s, s.actor(), quorum);
        s.awaitQueued(2);
        String last = s.queue().get(1);
        cancelled.thread.interrupt();
        assertThrows(InterruptedException.class, () -> result(first));
        assertEquals(List.of(last), s.queue());
        hold.release();
        hold = result(second);
        assertHeld(s, hold, "A B C", "A B C");
        // In the moment of the grant, too, and while the others are asked.
        for (int i = 0; i < 20; i++) {
            Actor actor = s.actor();
            Future<?> wait = actor.start(() -> {
                try {
                    quorum.acquire(s.key, AGES, WAIT.multipliedBy(2)).release();
                } catch (InterruptedException cancelledAtTheGrant) {
                    // Nothing is left, as is seen below.
                }
                return null;
            });
            s.awaitQueued(1);
            Thread canceller = new Thread(() -> {
                LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(5_000_000)); // so that all orders come about
                actor.thread.interrupt();
            });
            canceller.start();
            hold.release();
            canceller.join();
            result(wait);
            assertFree(s, "A", "B", "C");
            actor.close();
            hold = quorum.acquire(s.key, AGES, WAIT);
        }
        hold.release();
        assertFree(s, "A", "B", "C");
    }

    @ByEachLibrary
    void quorumGivesBackWhereNobodyAnswered(Stage s) throws Exception {
        Path path = s.closing(new Path(master(s, "A"), () -> {}));
        var config = DefaultJedisClientConfig.builder().timeoutMillis(30_000).build();
        Quorum quorum = s.closing(new Quorum(Stage.connector(s.library, config, path.address(), master(s, "B"),
                master(s, "C")), Duration.ofSeconds(3)));
        // The request is on its way, and comes when nobody waits for it any more.
        path.freezeAt("DLOCK.ACQUIRE");
        at(s, "B", "DLOCK.ACQUIRE", s.key, "other", AGES.toMillis());
        assertNull(quorum.acquire(s.key, AGES, Duration.ZERO));
        at(s, "B", "DLOCK.RELEASE", s.key, "other");
        path.thaw();
        s.awaitGone();
        assertFree(s, "A", "B", "C");
        s.close();
    }

    @ByEachLibrary
    void quorumAsksTheSilentOneLast(Stage s) throws Exception {
        List<Boolean> heldAtB = Collections.synchronizedList(new ArrayList<>());
        var b = Stage.connect(master(s, "B"));
        Path path = s.closing(new Path(master(s, "A"), () -> {
            synchronized (b) {
                heldAtB.add(Stage.send(b, "DLOCK.HELD", s.key) != null);
            }
        }));
        path.freeze();
        var config = DefaultJedisClientConfig.builder().timeoutMillis(30_000).build();
        Quorum quorum = s.closing(new Quorum(Stage.connector(s.library, config, path.address(), master(s, "B"),
                master(s, "C")), Duration.ofSeconds(3)));
        for (boolean last : new boolean[] {false, true}) {
            heldAtB.clear();
            Hold hold = quorum.acquire(s.key, AGES, Duration.ZERO);
            assertNotNull(hold);
            assertHeldAt(s, "B", hold.owner());
            assertEquals(last, until("A is asked", () -> heldAtB.isEmpty() ? null : heldAtB.toString())
                    .startsWith("[true"));
            hold.release();
        }
        assertFree(s, "B", "C");
        b.disconnect();
        s.close();
    }
}
