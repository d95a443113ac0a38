// SPDX-License-Identifier: MIT
package dlock;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLockException.Fenced;
import dlock.DLockException.Unavailable;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;

/** What a program relies on: a lock is never lost without a word, and no call outlasts its bound. */
class PromisesTest {
    private static final List<String> LIBRARIES = List.of("lettuce", "jedis");

    @Test
    void aFutureThatIsCompletedLeavesTheQueue() throws Exception {
        for (String library : LIBRARIES) {
            try (Stage s = new Stage(library, "single")) {
                DLocks locks = s.locks(Stage.LONG);
                s.hold();
                for (int i = 0; i < 20; i++) {
                    CompletableFuture<Hold> wait = locks.ask(s.key).holdAsync().orTimeout(1 + 2 * i, TimeUnit.MILLISECONDS);
                    assertThrows(TimeoutException.class, () -> Stage.result(wait));
                    locks.ask(s.key).holdAsync().complete(null);
                    locks.ask(s.key).holdAsync().cancel(true);
                }
                Stage.until("nobody waits", () -> s.queue().isEmpty());
                Thread.sleep(500); // nothing comes after that
                assertEquals(List.of(), s.queue(), library);
                s.handOver();
                s.awaitGone();
            }
        }
    }

    /** A cancel while the messages' connection is opened, on the real thing. */
    @Test
    void whoCancelsEarlyLeavesNothing() throws Exception {
        for (String library : LIBRARIES) {
            try (Stage s = new Stage(library, "single")) {
                s.hold();
                for (int i = 0; i < 25; i++) {
                    try (DLocks locks = new DLocks(Stage.connector(library, "single"), Stage.settings(Stage.LONG))) {
                        CompletableFuture<Hold> wait = locks.ask(s.key).holdAsync();
                        Stage.until("it has a ticket", () -> s.queue().size() == 1);
                        wait.cancel(true);
                        Stage.until("it has left", () -> s.queue().isEmpty());
                        Thread.sleep(20);
                        assertEquals(List.of(), s.queue(), library);
                    }
                }
            }
        }
    }

    /** As with Redisson, a program sees who holds the lock, and for how long, and an operator may take it away. */
    @Test
    void aThreadsLockCanBeSeenAndForced() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            DLock lock = s.locks(Duration.ofMinutes(5)).lock(s.key).lease(Duration.ofMinutes(9));
            long me = Thread.currentThread().getId();
            assertEquals(-2, lock.remainTimeToLive());
            assertFalse(lock.isHeldByThread(me) || lock.forceUnlock());
            lock.lock();
            assertTrue(lock.isHeldByThread(me) && !lock.isHeldByThread(me + 1));
            assertTrue(lock.remainTimeToLive() > Duration.ofMinutes(8).toMillis());
            assertTrue(lock.forceUnlock());
            assertThrows(NotHeld.class, lock::unlock);
            assertFalse(lock.isHeldByThread(me) || lock.isLocked());
        }
    }

    @Test
    void aFencedGuardIsALoss() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            Hold hold = s.locks(Duration.ofMinutes(5)).ask(s.key).hold();
            s.ask(s.key, "DLOCK.FORCERELEASE", s.key);
            assertThrows(Fenced.class, () -> hold.guard("SET", s.key + ":x", 1));
            assertFalse(hold.isHeld());
            assertThrows(NotHeld.class, hold::release);
        }
    }

    /** The reply is lost: whether it has run is unknown, and it is not run again. */
    @Test
    void guardRunsOnce() throws Exception {
        for (String library : LIBRARIES) {
            try (Stage s = new Stage(library, "single"); ServerSocket entrance = new ServerSocket(0)) {
                Sessions.daemon(() -> eat(entrance), "eater").start();
                String path = "127.0.0.1:" + entrance.getLocalPort();
                DLocks locks = s.closing(new DLocks(Stage.connector(library, "single", path, null, null), Stage.settings(Stage.LONG)));
                Hold hold = locks.ask(s.key).hold();
                assertThrows(Unavailable.class, () -> hold.guard("INCR", s.key + ":count"));
                assertEquals("1", Stage.text(s.ask(s.key, "GET", s.key + ":count")), library);
                hold.release();
            }
        }
    }

    /** A path that ends with the reply to INCR. */
    private static void eat(ServerSocket entrance) {
        try {
            while (true) {
                Socket near = entrance.accept();
                var address = Stage.addresses("single")[0];
                Socket far = new Socket(address.getHost(), address.getPort());
                AtomicBoolean eats = new AtomicBoolean();
                Sessions.daemon(() -> pass(near, far, eats, true), "there").start();
                Sessions.daemon(() -> pass(far, near, eats, false), "back").start();
            }
        } catch (IOException over) {
            // The test is.
        }
    }

    private static void pass(Socket from, Socket to, AtomicBoolean eats, boolean asks) {
        byte[] buffer = new byte[1 << 16];
        try (from; to) {
            for (int n = from.getInputStream().read(buffer); n > 0; n = from.getInputStream().read(buffer)) {
                if (asks && new String(buffer, 0, n, StandardCharsets.ISO_8859_1).contains("INCR")) {
                    eats.set(true);
                }
                if (!asks && eats.get()) {
                    return;
                }
                to.getOutputStream().write(buffer, 0, n);
            }
        } catch (IOException over) {
            // One of them has closed.
        }
    }

    /** As in Redisson: with a lease the lock ends then, whatever the thread does. */
    @Test
    void aLockWithALeaseEndsByItself() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            DLocks locks = s.locks(Stage.LONG);
            DLock lock = locks.lock(s.key);
            lock.lock(Duration.ofSeconds(2));
            Hold hold = lock.current();
            assertEquals("max_hold is over", Stage.result(hold.lost().toCompletableFuture()));
            assertThrows(NotHeld.class, lock::unlock);
            s.awaitGone();
            assertTrue(lock.tryLock(1, 60, SECONDS));
            Stage.until("it is older than a turn of its keeper", () -> s.heldMs(s.key) > 1500);
            assertTrue(lock.current().isHeld() && lock.current().left().toSeconds() < 60);
            lock.unlock();
            s.hold();
            assertFalse(lock.tryLock(Duration.ofMillis(200), Duration.ofSeconds(60)));
            assertThrows(IllegalArgumentException.class, () -> lock.lock(Duration.ZERO));
            Settings settings = Settings.DEFAULT; // no hold would ever be believed
            assertThrows(IllegalArgumentException.class, () -> settings.clockMargin(settings.lease()));
            assertThrows(IllegalArgumentException.class, () -> locks.ask(s.key).lease(settings.clockMargin()).tryHold(Duration.ZERO));
            s.ask(s.key, "DLOCK.FORCERELEASE", s.key);
        }
    }

    @Test
    void whatIsReleasedAfterTheEndFails() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            DLocks locks = s.locks();
            Hold hold = locks.ask(s.key).hold();
            locks.close();
            CompletionStage<Void> released = hold.releaseAsync(); // and does not throw here
            assertThrows(Unavailable.class, () -> Stage.result(released.toCompletableFuture()));
        }
    }

    @Test
    void whoHoldsItIsSeen() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            String process = "/" + ProcessHandle.current().pid() + "/";
            Hold hold = s.locks().ask(s.key).actor("me").hold();
            assertTrue(s.owners().get(0).matches("[^/]+" + process + "[^/]{22}/me#[0-9]+"), s.owners().toString());
            assertEquals(hold.owner(), s.owners().get(0));
            hold.release();
            DLock lock = s.locks().lock(s.key);
            lock.lock();
            assertTrue(s.owners().get(0).matches("[^/]+" + process + "[^/]{22}/thread-[0-9]+#[0-9]+"), s.owners().toString());
            lock.unlock();
        }
    }

    /** To ask how long it is held costs no system call. */
    @Test
    void leftIsCheap() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            Hold hold = s.locks().ask(s.key).hold();
            long least = Long.MAX_VALUE;
            for (int round = 0; round < 50; round++) {
                long began = System.nanoTime();
                for (int i = 0; i < 1000; i++) {
                    assertFalse(hold.left().isNegative());
                }
                least = Math.min(least, System.nanoTime() - began);
            }
            assertTrue(least < 5_000_000, least / 1000 + " ns a call");
            hold.release();
        }
    }

    /** A process that was stopped for longer than its lease asks before it gives anything up. */
    @Test
    void aPauseLosesNothingThatTheServerHolds() throws Exception {
        try (Stage s = new Stage("lettuce", "single")) {
            Process child = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp",
                    System.getProperty("java.class.path"), Sleeper.class.getName(), s.key)
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            s.closing(child::destroyForcibly);
            Stage.until("it holds both", () -> s.owners(s.key + ":kept").size() == 1 && s.owners(s.key + ":gone").size() == 1);
            Stage.until("both are kept", () -> s.heldMs(s.key + ":kept") > Stage.LEASE.toMillis() / 2
                    && s.heldMs(s.key + ":gone") > Stage.LEASE.toMillis() / 2);
            signal(child, "STOP");
            long began = s.heldMs(s.key + ":kept");
            Stage.until("three leases have passed", () -> s.heldMs(s.key + ":kept") - began > 3 * Stage.LEASE.toMillis());
            s.ask(s.key, "DLOCK.FORCERELEASE", s.key + ":gone");
            signal(child, "CONT");
            assertEquals("gone lost, kept true", new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip());
        }
    }

    private static void signal(Process child, String name) throws Exception {
        assertEquals(0, new ProcessBuilder("kill", "-" + name, String.valueOf(child.pid())).start().waitFor());
    }

    /** The process that is stopped. */
    static final class Sleeper {
        public static void main(String[] arguments) throws Exception {
            DLocks locks = new DLocks(Stage.connector("jedis", "single"), Stage.settings(Stage.LEASE));
            Hold kept = locks.ask(arguments[0] + ":kept").hold();
            Hold gone = locks.ask(arguments[0] + ":gone").hold();
            gone.lost().toCompletableFuture().get();
            Thread.sleep(3000); // an answer would have come by now
            System.out.println("gone lost, kept " + (kept.isHeld() && !kept.left().isZero()));
            System.exit(0);
        }
    }

    @Test
    @SuppressWarnings("deprecation")
    void theOldNamesWorkForAWhile() throws Exception {
        assertEquals(Settings.DEFAULT, Settings.DEFAULT.queueGrace(Duration.ofSeconds(20)));
        try (Stage s = new Stage("jedis", "single"); Hold hold = s.locks().ask(s.key).owner("me").hold()) {
            assertTrue(hold.owner().contains("/me#"), hold.owner());
        }
    }
}
