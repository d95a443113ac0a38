// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A semaphore with the manners of {@link java.util.concurrent.Semaphore}, and first come, first served: a request for many permits is
 * not overtaken by small ones. It differs in that permits have an owner, which is the thread: it takes them together by one {@code
 * acquire}, and the {@code release} of that thread gives them back together. A further {@code acquire} of the thread takes no more of
 * them. It is counted, and must not ask for more than the thread has. For permits that go from thread to thread, or for several
 * holds of one thread, use {@link DLocks#ask}: {@code ask(key).limit(16).permits(4).hold()}.
 */
public final class DSemaphore extends DLock {
    DSemaphore(DLocks locks, String key, int limit) {
        super(locks, key, limit);
    }

    @Override
    public DSemaphore ephemeral() {
        super.ephemeral();
        return this;
    }

    @Override
    public DSemaphore onLost(Consumer<Hold> onLost) {
        super.onLost(onLost);
        return this;
    }

    /** Waits for one permit. */
    public void acquire() throws InterruptedException {
        acquire(1);
    }

    /** Waits until so many permits are free, and takes all of them at once. */
    public void acquire(int permits) throws InterruptedException {
        take(-1, true, null, permits);
    }

    /** Takes a permit if one is free and nobody waits. */
    public boolean tryAcquire() {
        return tryAcquire(1);
    }

    /** Takes so many permits if they are free and nobody waits. */
    public boolean tryAcquire(int permits) {
        try {
            return take(0, false, null, permits);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits so long for that many permits. False if they are taken; {@link DLockException.LockTimeout} if nobody could say so. */
    public boolean tryAcquire(int permits, Duration timeout) throws InterruptedException {
        return take(Asking.nanos(timeout), true, null, permits);
    }

    /** Does what {@link #tryAcquire(int, Duration)} does. */
    public boolean tryAcquire(int permits, long timeout, TimeUnit unit) throws InterruptedException {
        if (unit == null) {
            throw new IllegalArgumentException("unit must not be null");
        }
        return take(Math.min(Long.MAX_VALUE / 4, Math.max(0, unit.toNanos(timeout))), true, null, permits);
    }

    /** Gives back what this thread's last {@code acquire} took. {@link NotHeld} if it holds nothing, or has lost it. */
    public void release() {
        unlock();
    }
}
