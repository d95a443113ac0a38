// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.NEVER;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A semaphore with the manners of {@link java.util.concurrent.Semaphore}, and first come, first served: a request for many permits is
 * not overtaken by small ones. It differs in that permits have an owner, which is the thread: each {@code release} releases what one
 * {@code acquire} took, the last one first. For permits that go from thread to thread use {@link DLocks#ask}: {@code
 * ask(key).limit(16).permits(4).hold()}.
 */
public final class DSemaphore extends DLock {
    DSemaphore(DLocks locks, String key, int limit) {
        super(locks, key, limit, false);
    }

    @Override
    public DSemaphore onLost(Consumer<Hold> onLost) {
        super.onLost(onLost);
        return this;
    }

    @Override
    public DSemaphore lease(Duration lease) {
        super.lease(lease);
        return this;
    }

    @Override
    public DSemaphore maxHold(Duration maxHold) {
        super.maxHold(maxHold);
        return this;
    }

    /** Waits for one permit. */
    public void acquire() throws InterruptedException {
        acquire(1);
    }

    /** Waits until that many permits are free, and takes all of them at once. */
    public void acquire(int permits) throws InterruptedException {
        take(NEVER, true, NEVER, permits);
    }

    /** Takes a permit if one is free and nobody waits. */
    public boolean tryAcquire() {
        return tryAcquire(1);
    }

    /** Takes that many permits if they are free and nobody waits. */
    public boolean tryAcquire(int permits) {
        return uninterrupted(0, NEVER, permits);
    }

    /** Waits so long for that many permits. False if they are taken; {@link DLockException.LockTimeout} if nobody could say so. */
    public boolean tryAcquire(int permits, Duration timeout) throws InterruptedException {
        return take(Asking.nanos(timeout), true, NEVER, permits);
    }

    /** Does what {@link #tryAcquire(int, Duration)} does. */
    public boolean tryAcquire(int permits, long timeout, TimeUnit unit) throws InterruptedException {
        return take(nanos(timeout, unit), true, NEVER, permits);
    }

    /** Releases what this thread's last {@code acquire} took. {@link NotHeld} if it holds nothing, or has lost it. */
    public void release() {
        unlock();
    }
}
