// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Stage.result;
import static dlock.Stage.until;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLocks.DLock;
import dlock.DLocks.DLockException;
import dlock.DLocks.NotHeld;
import dlock.DLocks.Unavailable;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.junit.jupiter.api.parallel.ResourceAccessMode;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** What does not answer, and who may not: nobody waits longer than he has said, or believes longer than is so. */
class FaultsTest {
    private static final Duration LEASE = Duration.ofMillis(1500);
    /** The lease, and so much after it a loss is told where a busy machine stops us; it is 200 ms where it does not. */
    private static final long TOLD = 1500 + 1000;

    static Stream<Arguments> hung() {
        return Stream.of("from the start", "later").flatMap(how -> alone().map(s -> Arguments.of(s, how)));
    }

    static Stream<Stage> alone() {
        return Stream.of(new Stage("lettuce", "single"), new Stage("jedis", "single"));
    }

    static Stream<Stage> inCluster() {
        return Stream.of(new Stage("lettuce", "cluster"), new Stage("jedis", "cluster"));
    }

    private static DLocks locks(Stage s, String user, String password, HostAndPort... seeds) {
        DLocks.Connector connector = s.library.equals("jedis")
                ? new JedisConnector(user == null ? DefaultJedisClientConfig.builder().build()
                        : DefaultJedisClientConfig.builder().user(user).password(password).build(), seeds)
                : new LettuceConnector(Stage.LETTUCE, Stream.of(seeds).map(seed -> {
                    var uri = RedisURI.builder().withHost(seed.getHost()).withPort(seed.getPort());
                    return (user == null ? uri : uri.withAuthentication(user, password.toCharArray())).build();
                }).toArray(RedisURI[]::new));
        return s.closing(new DLocks(connector, Stage.settings(LEASE)));
    }

    /** It ends so soon. A timer of ours is as late as theirs, however busy the machine. */
    private static <T> T within(Stage s, int seconds, Callable<T> work) throws Exception {
        Future<T> future = s.actor().start(work);
        try {
            return future.get(seconds, SECONDS);
        } catch (ExecutionException failed) {
            throw (Exception) failed.getCause();
        }
    }

    private static CountDownLatch loss(DLock lock) {
        CountDownLatch told = new CountDownLatch(1);
        lock.onLost(token -> told.countDown());
        return told;
    }

    @ParameterizedTest
    @MethodSource("hung")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    void aServerThatHangsKeepsNoCaller(Stage s, String how) throws Exception {
        Path path = s.closing(new Path(Stage.addresses("single")[0], () -> {}));
        DLock lock = locks(s, null, null, path.address()).lock(s.key);
        if (how.equals("later")) {
            lock.lock();
            lock.unlock();
        }
        path.freeze();
        assertThrows(Unavailable.class, () -> within(s, 5, lock::tryLock));
        assertFalse(within(s, 3, () -> lock.tryLock(2, SECONDS)));
        Stage.Actor actor = s.actor(); // whose first request is still on its way out
        for (int i = 0; i < 2; i++) {
            assertFalse(actor.start(() -> lock.tryLock(2, SECONDS)).get(3, SECONDS));
        }
        path.thaw();
        assertTrue(within(s, Stage.PATIENCE, () -> {
            lock.lock();
            lock.unlock();
            return true;
        }));
        s.awaitGone();
        s.close();
    }

    @ParameterizedTest
    @MethodSource("alone")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    void aLossIsToldByTheClock(Stage s) throws Exception {
        Path path = s.closing(new Path(Stage.addresses("single")[0], () -> {}));
        DLock lock = locks(s, null, null, path.address()).lock(s.key);
        CountDownLatch told = loss(lock);
        lock.lock();
        until("it is kept", () -> s.holder().number("held-ms") > LEASE.toMillis());
        path.freeze();
        assertTrue(told.await(TOLD, MILLISECONDS));
        assertThrows(NotHeld.class, lock::unlock);
        s.close();
    }

    @ParameterizedTest
    @MethodSource("inCluster")
    @ResourceLock("the servers")
    void oneHungNodeOfThree(Stage s) throws Exception {
        DLocks locks = locks(s, null, null, Stream.of(Stage.addresses("cluster")).limit(2).toArray(HostAndPort[]::new));
        Map<HostAndPort, List<DLock>> places = new HashMap<>();
        for (int i = 0; places.size() < 3 || places.values().stream().anyMatch(all -> all.size() < 6); i++) {
            String key = "{" + i + s.key.substring(1);
            places.computeIfAbsent(s.node(key).getHostAndPort(), node -> new ArrayList<>()).add(locks.lock(key));
        }
        HostAndPort hung = places.keySet().iterator().next();
        List<CountDownLatch> told = new ArrayList<>();
        List<DLock> kept = new ArrayList<>();
        for (var place : places.entrySet()) {
            for (DLock lock : place.getValue()) {
                if (place.getKey().equals(hung)) {
                    told.add(loss(lock));
                } else {
                    kept.add(lock);
                }
                lock.lock();
            }
        }
        Stage.send(s.connection(hung), "CLIENT", "PAUSE", 600_000, "WRITE");
        try {
            long end = System.nanoTime() + MILLISECONDS.toNanos(TOLD);
            for (CountDownLatch one : told) {
                assertTrue(one.await(end - System.nanoTime(), NANOSECONDS));
            }
            String key = kept.get(0).key();
            until("they are kept for ten leases", () -> s.heldMs(key) > 10 * LEASE.toMillis());
            for (DLock lock : kept) {
                assertFalse(lock.isLost(), lock.key());
                lock.unlock();
            }
        } finally {
            Stage.send(s.connection(hung), "CLIENT", "UNPAUSE");
        }
        s.close();
    }

    @ParameterizedTest
    @MethodSource("alone")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    void refusedAtOnce(Stage s) throws Exception {
        String user = "user" + s.key.substring(1, 9);
        for (String[] one : new String[][] {
            {"WRONGPASS", "wrong", "~* &* +@all"},
            {"NOPERM", "right", "~* &* +@all -dlock.fairacquire -dlock.acquire"},
            {"NOPERM", "right", "~* resetchannels +@all"},
            {"NOPERM", "right", "~* &* +@all -dlock.renew"},
        }) {
            List<Object> words = new ArrayList<>(List.of("ACL", "SETUSER", user, "reset", "on", ">right"));
            words.addAll(List.of(one[2].split(" ")));
            s.ask(s.key, words.toArray());
            DLock lock = locks(s, user, one[1], Stage.addresses("single")).lock(s.key);
            // A tenth of a second where nothing else is done.
            List<Callable<Boolean>> calls = List.of(lock::tryLock, () -> lock.tryLock(20, SECONDS), () -> {
                lock.lock();
                return true;
            });
            for (Callable<Boolean> call : calls) {
                var refused = assertThrows(DLockException.class, () -> within(s, 5, call), one[2]);
                assertTrue(refused.getMessage().startsWith(one[0]), refused.getMessage());
                assertEquals(DLockException.class, refused.getClass());
            }
            s.awaitGone();
        }
        s.ask(s.key, "ACL", "DELUSER", user);
        s.close();
    }

    @ParameterizedTest
    @MethodSource("alone")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    void nothingIsTakenAfterTheEnd(Stage s) throws Exception {
        DLocks locks = locks(s, null, null, Stage.addresses("single"));
        DLock lock = locks.lock(s.key);
        CountDownLatch told = loss(lock);
        lock.lock();
        Future<Boolean> waiting = s.actor().start(() -> locks.lock(s.key).tryLock(20, SECONDS));
        s.awaitQueued(1);
        locks.close();
        assertTrue(told.await(TOLD, MILLISECONDS));
        assertInstanceOf(DLockException.class, assertThrows(Exception.class, () -> result(waiting)));
        List<Callable<Boolean>> calls = List.of(lock::tryLock, () -> lock.tryLock(20, SECONDS), () -> {
            lock.lock();
            return true;
        });
        for (Callable<Boolean> call : calls) {
            var refused = assertThrows(DLockException.class, () -> within(s, 5, call));
            assertTrue(refused.getMessage().contains("closed"), refused.getMessage());
        }
        s.awaitGone();
        assertNull(s.ask(s.key, "DLOCK.INFO", s.key));
        s.close();
    }
}
