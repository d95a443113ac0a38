// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Stage.LEASE;
import static dlock.Stage.LONG;
import static dlock.Stage.PATIENCE;
import static dlock.Stage.result;
import static dlock.Stage.text;
import static dlock.Stage.until;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.Stage.Actor;
import dlock.jedis.JedisConnector;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.parallel.ResourceAccessMode;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** The tests that every language has, by the same names: see clients/DESIGN.md. */
class DLocksTest {
    @ParameterizedTest
    @MethodSource("everywhere")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    @Retention(RetentionPolicy.RUNTIME)
    @interface Everywhere {}

    @ParameterizedTest
    @MethodSource("alone")
    @ResourceLock(value = "the servers", mode = ResourceAccessMode.READ)
    @Retention(RetentionPolicy.RUNTIME)
    @interface Alone {}

    static Stream<Stage> everywhere() {
        return in("single", "cluster");
    }

    static Stream<Stage> alone() {
        return in("single");
    }

    private static Stream<Stage> in(String... places) {
        return Stream.of(places).flatMap(place -> Stream.of(new Stage("lettuce", place), new Stage("jedis", place)));
    }

    /** Makes an actor wait for the lock, and hold it; the value is its owner's name. */
    private static Future<String> lock(Actor actor, DLocks locks, String key) {
        return actor.start(() -> {
            locks.lock(key).lock();
            return locks.lock(key).current().owner();
        });
    }

    @Everywhere
    void countsToAThousand(Stage s) throws Exception {
        DLocks locks = s.locks(LONG);
        HostAndPort node = s.node(s.key).getHostAndPort();
        String count = s.key + ":count";
        ExecutorService pool = Executors.newFixedThreadPool(50);
        List<Future<?>> works = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            works.add(pool.submit(() -> {
                Connection data = Stage.connect(node);
                for (int j = 0; j < 20; j++) {
                    try (var hold = locks.lock(s.key).hold()) {
                        Object value = Stage.send(data, "GET", count);
                        Stage.send(data, "SET", count, value == null ? 1 : Integer.parseInt(text(value)) + 1);
                    }
                }
                data.disconnect();
            }));
        }
        for (Future<?> work : works) {
            result(work);
        }
        pool.shutdown();
        assertEquals("1000", text(s.ask(s.key, "GET", count)));
        s.awaitGone();
    }

    /** A burst of grants shares a few threads; a callback that waits for a lock holds up nobody. */
    @Alone
    void callbacksMayWait(Stage s) throws Exception {
        DLocks locks = s.locks(LONG);
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        List<Future<?>> burst = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            burst.add(locks.ask(s.key + ":" + i).holdAsync().thenCompose(hold -> {
                threads.add(Thread.currentThread());
                return hold.releaseAsync();
            }));
        }
        for (Future<?> one : burst) {
            result(one);
        }
        assertTrue(threads.size() < 300, threads.size() + " threads"); // 32, and more after a stall

        Hold taken = locks.ask(s.key).hold();
        List<Hold> before = new ArrayList<>(); // so that no wait is over when it is said what follows: this thread would do it
        List<Future<?>> waits = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            before.add(locks.ask(s.key + ":" + i).hold());
            waits.add(locks.ask(s.key + ":" + i).holdAsync().thenAccept(outer -> {
                locks.ask(s.key).hold().release();
                outer.release();
            }));
        }
        before.forEach(Hold::release);
        s.awaitQueued(100);
        result(locks.ask(s.key + ":free").holdAsync()).release();
        taken.release();
        for (Future<?> one : waits) {
            result(one);
        }
    }

    /** Between two tries nothing waits for the server: closing ends each wait all the same. */
    @Alone
    void closingEndsWhoWaitsInAnOutage(Stage s) throws Exception {
        String path = Stage.control("path " + Stage.addresses("single")[0]);
        Stage.control("close " + path);
        DLocks locks = s.closing(new DLocks(Stage.connector(s.library, "single", path, null, null), Stage.settings(LONG)));
        List<Future<Hold>> waits = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            String key = s.key + i;
            waits.add(locks.ask(key).holdAsync());
            waits.add(s.actor().start(() -> locks.ask(key).hold()));
        }
        Thread.sleep(1000); // each of them has been refused by now, and pauses
        locks.close();
        for (Future<Hold> one : waits) {
            assertThrows(DLockException.Unavailable.class, () -> result(one));
        }
    }

    @Everywhere
    void tryLockDoesNotWait(Stage s) throws Exception {
        DLocks locks = s.locks();
        s.hold();
        DLock lock = locks.lock(s.key);
        assertFalse(lock.tryLock());
        assertFalse(lock.tryLock(0, SECONDS));
        assertNull(lock.tryHold(0, SECONDS));
        assertEquals(List.of(), s.queue());
        assertTrue(lock.isLocked());
        s.handOver();
        assertFalse(lock.isLocked());
        assertTrue(lock.tryLock());
        assertEquals(List.of(lock.current().owner()), s.owners());
        lock.unlock();
        s.awaitGone();
    }

    @Alone
    void waitLongerThanTheTimeOut(Stage s) throws Exception {
        Duration timeOut = Duration.ofSeconds(1);
        HostAndPort address = Stage.addresses(s.place)[0];
        RedisClient client = RedisClient.create();
        client.setOptions(ClientOptions.builder().timeoutOptions(TimeoutOptions.enabled(timeOut)).build());
        DLocks locks = new DLocks(s.library.equals("jedis")
                ? new JedisConnector(DefaultJedisClientConfig.builder().timeoutMillis(1000).build(), address)
                : new LettuceConnector(client, RedisURI.builder().withHost(address.getHost())
                        .withPort(address.getPort()).withTimeout(timeOut).build()), Stage.settings(LONG));
        s.hold();
        Actor one = s.actor();
        Actor two = s.actor();
        Future<String> first = lock(one, locks, s.key);
        s.awaitQueued(1);
        DLocks others = s.locks();
        Future<String> second = lock(two, others, s.key);
        s.awaitQueued(2);
        until("it has waited for four time-outs", () -> s.places(s.key).get(0).number("waited-ms") > 4000);
        List<String> inLine = s.queue();
        assertEquals(inLine.get(0), s.handOver());
        assertEquals(inLine.get(0), result(first));
        assertEquals(1, s.holder().number("holds"));
        one.run(() -> locks.lock(s.key).unlock());
        assertEquals(inLine.get(1), result(second));
        two.run(() -> others.lock(s.key).unlock());
        s.awaitGone();
        locks.close();
        client.shutdown();
    }

    @Everywhere
    void cancelledWait(Stage s) throws Exception {
        DLocks locks = s.locks();
        s.hold();
        Actor one = s.actor();
        Future<?> first = one.start(() -> {
            assertThrows(InterruptedException.class, () -> locks.lock(s.key).lockInterruptibly());
            assertFalse(Thread.currentThread().isInterrupted());
        });
        s.awaitQueued(1);
        Future<String> second = lock(s.actor(), locks, s.key);
        s.awaitQueued(2);
        one.thread.interrupt();
        result(first);
        s.awaitQueued(1);
        String next = s.handOver();
        assertEquals(next, result(second));
        s.handOver(next);
        s.awaitGone();
    }

    /** {@code lock()} continues to wait when it is interrupted, and leaves the flag as it was. */
    @Everywhere
    void lockIsNotInterrupted(Stage s) throws Exception {
        DLocks locks = s.locks();
        s.hold();
        Actor one = s.actor();
        Future<Boolean> wait = one.start(() -> {
            locks.lock(s.key).lock();
            boolean interrupted = Thread.interrupted();
            locks.lock(s.key).unlock();
            return interrupted;
        });
        s.awaitQueued(1);
        String place = s.queue().get(0);
        one.thread.interrupt();
        // Asked again after the interrupt, and still there.
        long waited = s.places(s.key).get(0).number("waited-ms");
        until("it goes on", () -> s.places(s.key).get(0).number("waited-ms") > waited + 1500);
        assertEquals(place, s.handOver());
        assertTrue(result(wait));
        s.awaitGone();
    }

    @Everywhere
    void cancelAtTheGrant(Stage s) throws Exception {
        DLocks locks = s.locks();
        for (int i = 0; i < 30; i++) {
            s.hold();
            Actor actor = s.actor();
            Future<?> wait = actor.start(() -> {
                try {
                    locks.lock(s.key).lockInterruptibly();
                    locks.lock(s.key).unlock();
                } catch (InterruptedException cancelled) {
                    // Nothing is left, as is seen below.
                }
            });
            s.awaitQueued(1);
            Thread canceller = new Thread(() -> {
                LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(2_000_000)); // so that all orders come about
                actor.thread.interrupt();
            });
            canceller.start();
            s.handOver();
            canceller.join();
            result(wait);
            s.awaitGone(); // releases is in the background
            actor.close();
        }
    }

    private static Process program(Stage s) throws Exception {
        String java = System.getProperty("java.home") + "/bin/java";
        return new ProcessBuilder(java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
                System.getProperty("java.class.path"), "dlock.WaitingProgram", s.library, s.place, s.key)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
    }

    private static void kill(Process program) {
        program.destroyForcibly();
        program.onExit().join();
    }

    @Everywhere
    void killedWaiter(Stage s) throws Exception {
        DLocks locks = s.locks();
        s.hold();
        Process program = program(s);
        s.awaitQueued(1);
        Future<String> after = lock(s.actor(), locks, s.key);
        s.awaitQueued(2);
        kill(program);
        until("the server has noticed", () -> s.queue().size() == 1 || s.places(s.key).get(0).word("kind").equals("absent"));
        s.handOver();
        assertEquals(List.of(result(after)), s.owners());
        assertEquals(List.of(), s.queue());
    }

    @Everywhere
    void killedAtTheGrant(Stage s) throws Exception {
        DLocks locks = s.locks();
        for (long delay : new long[] {0, 200_000, 1_000_000}) {
            s.hold();
            Process program = program(s);
            s.awaitQueued(1);
            Actor actor = s.actor();
            Future<String> after = lock(actor, locks, s.key);
            s.awaitQueued(2);
            Thread killer = new Thread(() -> {
                LockSupport.parkNanos(delay);
                kill(program);
            });
            killer.start();
            s.handOver();
            killer.join();
            // It had the lock for no longer than its lease, or its place for no longer than a claim window.
            assertEquals(List.of(result(after)), s.owners());
            assertEquals(List.of(), s.queue());
            actor.run(() -> locks.lock(s.key).unlock());
            s.awaitGone();
        }
    }

    @Everywhere
    void killedHolder(Stage s) throws Exception {
        var messages = s.messages();
        Process program = program(s);
        long token = s.holder().number("token");
        DLocks locks = s.locks();
        Actor actor = s.actor();
        Future<String> after = lock(actor, locks, s.key);
        s.awaitQueued(1);
        kill(program);
        assertEquals("expired " + token, messages.get());
        result(after);
        actor.run(() -> locks.lock(s.key).unlock());
        s.awaitGone();
    }

    /** Nobody can unlock what a thread held that has ended. */
    @ParameterizedTest
    @MethodSource("alone")
    @ResourceLock("the servers") // the collector stops all others
    void deadThreadKeepsNothing(Stage s) throws Exception {
        DLocks locks = s.locks();
        Actor actor = s.actor();
        result(lock(actor, locks, s.key));
        actor.close();
        s.awaitCollected(s.key);
    }

    @Everywhere
    void forcedRelease(Stage s) throws Exception {
        isToldOf(s, "DLOCK.FORCERELEASE");
    }

    private static void isToldOf(Stage s, String loss) throws Exception {
        BlockingQueue<Long> told = new LinkedBlockingQueue<>();
        DLock lock = s.locks().lock(s.key).onLost(hold -> told.add(hold.token()));
        lock.lock();
        s.ask(s.key, loss, s.key);
        assertEquals(lock.token(), told.poll(PATIENCE, SECONDS));
        assertTrue(lock.isLost());
        assertThrows(NotHeld.class, lock::lock, "no re-entry into what is lost");
        assertThrows(NotHeld.class, lock::unlock);
        assertEquals(0, told.size());
        // A new beginning.
        lock.lock();
        lock.unlock();
        s.awaitGone();
    }

    @Everywhere
    void errorsOfItsOwn(Stage s) throws Exception {
        DLocks locks = s.locks(LONG);
        String a = s.key + ":a";
        String b = s.key + ":b";
        Actor one = s.actor();
        Actor two = s.actor();
        result(lock(one, locks, a));
        result(lock(two, locks, b));
        Future<String> wait = lock(one, locks, b);
        s.awaitQueued(b, 1);
        var deadlock = assertThrows(DLockException.Deadlock.class, () -> two.run(() -> locks.lock(a).lock()));
        assertTrue(deadlock.getMessage().contains(a), deadlock.getMessage());
        Stage.until("its place is left", () -> s.places(a).isEmpty());
        two.run(() -> locks.lock(b).unlock());
        result(wait);
        s.ask(a, "DLOCK.FORCERELEASE", a);
        assertThrows(DLockException.Fenced.class, () -> one.run(() -> locks.lock(a).guard("SET", a + ":x", 1)));
        assertThrows(NotHeld.class, () -> one.run(() -> locks.lock(a).unlock()));
        assertThrows(IllegalMonitorStateException.class, () -> locks.lock(b).unlock(), "of another thread");
        assertThrows(IllegalMonitorStateException.class, () -> locks.lock(b).token());
        assertThrows(UnsupportedOperationException.class, () -> locks.lock(b).newCondition());
        s.ask(s.key, "SET", s.key, "no lock");
        var wrong = assertThrows(DLockException.class, () -> locks.lock(s.key).lock());
        assertTrue(wrong.getMessage().startsWith("WRONGTYPE"), wrong.getMessage());
    }

    @Everywhere
    void givesBackOnlyItsOwn(Stage s) throws Exception {
        s.hold(s.key, "another reader", "SHARED");
        DLocks.ReadWrite lock = s.locks().readWrite(s.key);
        String me;
        try (var outer = lock.readLock().hold()) {
            me = s.owners().stream().filter(owner -> !owner.equals("another reader")).findFirst().orElseThrow();
            assertThrows(ArithmeticException.class, () -> {
                // Null: the other reader is in the way. Then there is nothing to release.
                try (var inner = lock.writeLock().tryHold(300, MILLISECONDS)) {
                    assertNull(inner);
                    throw new ArithmeticException();
                }
            });
            assertEquals(new TreeSet<>(List.of("another reader", me)), new TreeSet<>(s.owners()));
            assertEquals(List.of(), s.queue());
            assertEquals(outer.token(), s.holders().stream()
                    .filter(row -> !row.word("owner").equals("another reader")).findFirst().orElseThrow().number("token"));
            // An inner one of the same kind is the same hold.
            try (var inner = lock.readLock().hold()) {
                assertEquals(outer.token(), inner.token());
                assertEquals(2, lock.readLock().getHoldCount());
            }
            assertEquals(1, lock.readLock().getHoldCount());
            assertFalse(lock.readLock().isLost());
        }
        assertEquals(List.of("another reader"), s.owners());
        // The real error is not hidden by that of the release.
        DLock lost = s.locks().lock(s.key + ":2");
        var real = assertThrows(ArithmeticException.class, () -> {
            try (var hold = lost.hold()) {
                s.ask(s.key, "DLOCK.FORCERELEASE", s.key + ":2");
                throw new ArithmeticException();
            }
        });
        assertTrue(real.getSuppressed()[0] instanceof NotHeld);
    }

    /** Each acquire of a thread takes its permits at once, and each release releases what the last acquire took. */
    @Everywhere
    void permitsOfAThread(Stage s) throws Exception {
        DSemaphore budget = s.locks(LONG).semaphore(s.key, 4);
        Actor other = s.actor();
        budget.acquire(2);
        budget.acquire();
        assertEquals(2, budget.getHoldCount());
        assertFalse(budget.tryAcquire(2), "three of four are taken");
        assertThrows(IllegalArgumentException.class, () -> budget.acquire(0));
        assertThrows(IllegalArgumentException.class, () -> budget.tryAcquire(5));
        assertTrue(other.run(() -> budget.tryAcquire()), "the fourth");
        other.run(budget::release);
        budget.release();
        Future<Boolean> waits = other.start(() -> budget.tryAcquire(3, Duration.ofSeconds(PATIENCE)));
        s.awaitQueued(1);
        budget.release();
        assertTrue(result(waits));
        assertFalse(budget.tryAcquire(2, 100, MILLISECONDS));
        assertTrue(budget.tryAcquire(1, 1, SECONDS));
        budget.release();
        other.run(budget::release);
        assertThrows(NotHeld.class, budget::release);
        s.awaitGone();
    }

    /** To take what the thread has sends nothing; the last unlock gives it back. */
    @Alone
    void aReEntrySendsNothing(Stage s) throws Exception {
        String path = Stage.control("path " + Stage.addresses("single")[0]);
        s.closing(() -> Stage.control("close " + path));
        DLocks locks = s.closing(new DLocks(Stage.connector(s.library, "single", path, null, null), Stage.settings(Duration.ofMinutes(5))));
        DLock lock = locks.lock(s.key);
        lock.lock();
        String before = Stage.control("commands " + path);
        for (int i = 0; i < 50; i++) {
            assertTrue(locks.lock(s.key).tryLock());
        }
        for (int i = 0; i < 50; i++) {
            lock.unlock();
        }
        assertEquals(before, Stage.control("commands " + path));
        assertEquals(List.of(lock.current().owner()), s.owners());
        lock.unlock();
        s.awaitGone();
    }

    /** As with ReentrantReadWriteLock: a writer may become a reader, and a reader does not become the writer. */
    @Everywhere
    void aWriterBecomesAReader(Stage s) throws Exception {
        DLocks.ReadWrite lock = s.locks(LONG).readWrite(s.key);
        Actor other = s.actor();
        lock.writeLock().lock();
        lock.readLock().lock();
        assertFalse(other.run(() -> lock.readLock().tryLock()), "it still writes");
        lock.writeLock().unlock();
        assertTrue(other.run(() -> lock.readLock().tryLock()), "it only reads now");
        other.run(() -> lock.readLock().unlock());
        assertFalse(lock.writeLock().tryLock());
        assertThrows(DLockException.Deadlock.class, () -> lock.writeLock().lock(), "it would wait for itself");
        assertThrows(NotHeld.class, () -> lock.writeLock().unlock());
        lock.readLock().unlock();
        s.awaitGone();
        lock.writeLock().lock();
        lock.writeLock().unlock();
    }

    @Everywhere
    void manyOverSeveralSlots(Stage s) throws Exception {
        DLocks locks = s.locks(LONG);
        List<String> keys = IntStream.range(0, 4).mapToObj(i -> "{" + i + s.key.substring(1, 8) + "}m").toList();
        List<String> reversed = new ArrayList<>(keys);
        Collections.reverse(reversed);
        List<Future<?>> works = new ArrayList<>();
        for (List<String> order : List.of(keys, reversed)) {
            Lock all = DLocks.all(order.stream().map(locks::lock).toArray(DLock[]::new));
            works.add(s.actor().start(() -> {
                for (int i = 0; i < 15; i++) {
                    all.lock();
                    all.unlock();
                }
            }));
        }
        for (Future<?> work : works) {
            result(work);
        }
        s.hold(keys.get(2), "other");
        Lock all = DLocks.all(keys.stream().map(locks::lock).toArray(DLock[]::new));
        assertFalse(all.tryLock());
        assertFalse(all.tryLock(500, MILLISECONDS));
        List<List<String>> owners = new ArrayList<>();
        for (String key : keys) {
            owners.add(s.owners(key));
        }
        assertEquals(List.of(List.of(), List.of(), List.of("other"), List.of()), owners);
        assertThrows(NotHeld.class, all::unlock);
    }

    /** Two servers that know nothing of each other. */
    @Alone
    void manyOverSeveralServers(Stage s) throws Exception {
        try (Stage elsewhere = new Stage(s.library, "cluster")) {
            DLocks here = s.locks(LONG);
            DLocks there = elsewhere.locks(LONG);
            List<Future<?>> works = new ArrayList<>();
            for (boolean hereFirst : new boolean[] {true, false}) {
                DLock one = here.lock(s.key);
                DLock two = there.lock(s.key);
                Lock all = hereFirst ? DLocks.all(one, two) : DLocks.all(two, one);
                works.add(s.actor().start(() -> {
                    for (int i = 0; i < 15; i++) {
                        all.lock();
                        assertTrue(one.isHeldByCurrentThread() && two.isHeldByCurrentThread());
                        all.unlock();
                    }
                }));
            }
            for (Future<?> work : works) {
                result(work);
            }
            s.awaitGone();
        }
    }

    @ParameterizedTest
    @MethodSource("everywhere")
    @ResourceLock("the servers") // a crowd, in which others' leases would pass
    void aThousandWaitsInOneSession(Stage s) throws Exception {
        DLocks locks = s.locks(LONG);
        s.hold();
        List<String> served = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            Thread thread = new Thread(null, () -> {
                try (var hold = locks.lock(s.key).hold()) {
                    served.add(locks.lock(s.key).current().owner());
                }
            }, "waiter", 128 << 10);
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        s.awaitQueued(1000);
        assertEquals(1, s.places(s.key).stream().map(row -> row.word("in")).distinct().count());
        List<String> inLine = s.queue();
        s.handOver();
        for (Thread thread : threads) {
            thread.join(2000L * PATIENCE);
        }
        assertEquals(inLine, List.copyOf(served));
        s.awaitGone();
    }
}
