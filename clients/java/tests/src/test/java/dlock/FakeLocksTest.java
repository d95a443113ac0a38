// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;

/** What a program's unit tests do without a server. */
class FakeLocksTest {
    @Test
    void locksWithoutAServer() throws Exception {
        try (FakeLocks fake = new FakeLocks(); Stage.Actor other = new Stage.Actor()) {
            DLocks locks = fake.locks();
            try (Hold hold = locks.ask("stock").hold()) {
                assertNull(locks.ask("stock").tryHold(Duration.ZERO));
                assertNull(locks.ask("stock").tryHold(Duration.ofMillis(50)));
                hold.guard("SET", "left", 41);
            }
            assertEquals(List.of(List.of("SET", "left", "41")), fake.commands());
            fake.replyWith(command -> (long) command.size());
            try (Hold hold = locks.ask("stock").hold()) {
                assertEquals(2L, hold.guard("GET", "left"));
            }

            Hold first = locks.ask("stock").hold();
            List<Integer> order = new ArrayList<>();
            List<Future<?>> waits = new ArrayList<>();
            for (int i = 0; i < 5; i++) {
                int number = i;
                waits.add(locks.ask("stock").holdAsync().thenCompose(hold -> {
                    order.add(number); // by the lock
                    return hold.releaseAsync();
                }).toCompletableFuture());
            }
            first.release();
            assertThrows(NotHeld.class, first::release);
            for (Future<?> wait : waits) {
                Stage.result(wait);
            }
            assertEquals(List.of(0, 1, 2, 3, 4), order);

            Hold lost = locks.ask("stock").hold();
            fake.lose("stock");
            assertEquals("forced", Stage.result(lost.lost().toCompletableFuture()));
            assertThrows(DLockException.Fenced.class, () -> lost.guard("SET", "left", 40));

            Hold some = locks.ask("shop").limit(3).permits(2).hold();
            assertNull(locks.ask("shop").limit(3).permits(2).tryHold(Duration.ZERO));
            some.releaseAfter(Duration.ofMillis(300));
            Lock both = DLocks.all(locks.lock("shop"), locks.lock("stock"));
            both.lock();
            assertTrue(locks.lock("shop").isHeldByCurrentThread());
            assertFalse(other.run(() -> locks.lock("stock").tryLock()));
            both.unlock();

            Leader leader = new Leader(locks, "leader", "me");
            leader.lead(term -> assertEquals(new Leader.Leading("me", term.token()), leader.who().orElseThrow()));
            assertTrue(leader.who().isEmpty());
            CompletableFuture<Hold> left = locks.ask("stock").holdAsync();
            assertTrue(Stage.result(left).left().toSeconds() > 1);
        }
    }

    /** A process that stalled leads no more, and has lost nothing yet: it gives the last term back before it campaigns. */
    @Test
    void aLeaderDoesNotWaitForItself() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            Leader leader = new Leader(fake.locks(), "leader", "me");
            CompletableFuture<Hold> campaign = leader.campaign();
            Hold term = Stage.result(campaign);
            assertSame(campaign, leader.campaign());
            CompletableFuture<Hold> again = fake.locks().sessions.under(() -> { // the clock does not ring in between
                fake.locks().sessions.held.values().forEach(hold -> hold.end = Clock.now() - Clock.SECOND);
                assertTrue(term.isHeld());
                assertFalse(leader.isLeader());
                return leader.campaign();
            });
            Hold next = Stage.result(again);
            assertTrue(next.token() > term.token());
            assertTrue(term.isLost() && leader.isLeader());
        }
    }

    @Test
    void whoObservesNoLongerIsForgotten() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            var timer = fake.locks().sessions.timer;
            Leader.Watch watch = new Leader(fake.locks(), "leader", "me").observe(Duration.ofHours(1), now -> {});
            Stage.until("it has looked", () -> !timer.getQueue().isEmpty());
            watch.close();
            assertTrue(timer.getQueue().isEmpty());
        }
    }

    /** As every {@link Lock} does, also where there is nothing to wait for. */
    @Test
    void anInterruptIsSeenOnEntry() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            DLock lock = fake.locks().lock("stock");
            lock.lock();
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, lock::lockInterruptibly);
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> lock.tryLock(Duration.ZERO));
            assertFalse(Thread.interrupted());
            assertEquals(1, lock.getHoldCount());
            lock.unlock();
        }
    }

    /** The idiom of {@code finally}: nothing hides what the work has thrown. */
    @Test
    void whatIsLostIsNotHeldByItsThread() throws Exception {
        try (FakeLocks fake = new FakeLocks(); Stage.Actor other = new Stage.Actor()) {
            DLock lock = fake.locks().lock("stock");
            lock.lock();
            fake.lose("stock");
            assertThrows(NotHeld.class, lock::lock, "work that does not know it is not entered again");
            assertFalse(lock.isHeldByCurrentThread());
            assertEquals(0, lock.getHoldCount());
            assertTrue(lock.isLost());
            lock.lock();
            assertFalse(other.run(() -> fake.locks().lock("stock").tryLock()), "it is taken anew");
            assertEquals(1, lock.getHoldCount());
            lock.unlock();
            assertThrows(NotHeld.class, lock::unlock);
            assertTrue(other.run(() -> fake.locks().lock("stock").tryLock()));
        }
    }

    @Test
    void whatIsTakenAnewWithinALostBlockHidesNoLoss() {
        try (FakeLocks fake = new FakeLocks()) {
            DLock lock = fake.locks().lock("stock");
            assertThrows(NotHeld.class, () -> {
                try (var locked = lock.hold()) {
                    fake.lose("stock");
                    assertFalse(lock.isHeldByCurrentThread());
                    assertTrue(DLocks.all(lock, fake.locks().lock("shop")).tryLock());
                    DLocks.all(lock, fake.locks().lock("shop")).unlock();
                                    }
            });
            assertThrows(NotHeld.class, lock::unlock);
        }
    }

    /** Each permit of a semaphore is a hold of its own. */
    @Test
    void whatIsLeftOfASemaphoreIsHeld() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            DSemaphore permits = fake.locks().semaphore("shop", 3);
            permits.acquire();
            fake.lose("shop");
            permits.acquire();
            assertEquals(1, permits.getHoldCount());
            permits.release();
            assertFalse(permits.isHeldByCurrentThread());
        }
    }

    @Test
    void timesAreThoseOfTheLease() throws Exception {
        try (FakeLocks fake = new FakeLocks()) {
            DLocks locks = fake.locks();
            assertEquals(-2, locks.lock("stock").remainTimeToLive());
            Hold hold = locks.ask("stock").lease(Duration.ofSeconds(6)).hold();
            long end = System.nanoTime() + Duration.ofSeconds(3).toNanos();
            while (System.nanoTime() < end) {
                long left = hold.left().toMillis();
                assertTrue(left > 2000 && left <= 6000, left + " ms are left");
                Thread.sleep(20);
            }
            long left = locks.lock("stock").remainTimeToLive();
            assertTrue(left > 2000 && left <= 6000, left + " ms are left");
            hold.releaseAfter(Duration.ofMinutes(10));
            left = locks.lock("stock").remainTimeToLive();
            assertTrue(left > 590_000 && left <= 600_000, left + " ms are left");

            try (Hold first = locks.ask("shop").hold()) {
                CompletableFuture<Hold> second = locks.ask("shop").lease(Duration.ofSeconds(50)).holdAsync();
                first.release();
                left = Stage.result(second).left().toSeconds();
                assertTrue(left > 40 && left < 50, left + " s are left");
            }
        }
    }
}
