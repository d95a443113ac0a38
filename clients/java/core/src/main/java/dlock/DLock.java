// SPDX-License-Identifier: MIT
package dlock;

import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;

/**
 * A lock whose owner is the thread, with {@link java.util.concurrent.locks.ReentrantLock}'s manners, but without conditions.
 * Whichever object of one name a thread uses, it is the same lock.
 */
public sealed class DLock implements Lock permits DSemaphore {
    /** What one thread holds under one key: how often with which limit. The strictest one is that of the hold. */
    static final class Held {
        final Hold hold;
        /** What the hold takes of its limit. */
        int permits;
        final TreeMap<Integer, Integer> counts = new TreeMap<>();

        Held(Hold hold) {
            this.hold = hold;
        }
    }

    private final DLocks locks;
    private final String key;
    private final int limit;
    private boolean ephemeral;
    private Consumer<Hold> onLost = hold -> {};

    DLock(DLocks locks, String key, int limit) {
        new Request(locks.core.settings, key, "-", limit, false, null); // what is wrong is told at once
        this.locks = locks;
        this.key = key;
        this.limit = limit;
    }

    /** The hold ends at once when the connection does, whatever has cut it. */
    public DLock ephemeral() {
        ephemeral = true;
        return this;
    }

    /** Called once, by a thread of its own, when a hold that was granted to this object is lost. */
    public DLock onLost(Consumer<Hold> onLost) {
        if (onLost == null) {
            throw new IllegalArgumentException("onLost must not be null");
        }
        this.onLost = onLost;
        return this;
    }

    /** The lock's name. */
    public String key() {
        return key;
    }

    String server() {
        return locks.core.connector.toString();
    }

    /** Waits for the lock, over every reconnection and interrupt. */
    @Override
    public void lock() {
        try {
            take(-1, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(-1, true);
    }

    /** Never overtakes who waits. An error if nobody can say whether it is taken. */
    @Override
    public boolean tryLock() {
        try {
            return take(0, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** False if it is taken for so long; {@link DLockException.LockTimeout} if nobody could say so. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (unit == null) {
            throw new IllegalArgumentException("unit must not be null");
        }
        return take(Math.min(Long.MAX_VALUE / 4, Math.max(0, unit.toNanos(time))), true);
    }

    /** The same. */
    public boolean tryLock(Duration timeout) throws InterruptedException {
        return take(Asking.nanos(timeout), true);
    }

    /**
     * Waits for the lock, and holds it for the lease at most: nobody renews it, and it ends then even if the thread works on. A
     * loss before that is found when it is given back. A lock that this thread holds already is entered as it is.
     */
    public void lock(Duration lease) {
        try {
            take(-1, false, fixed(lease));
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Does what {@link #lock(Duration)} does. */
    public void lock(long lease, TimeUnit unit) {
        lock(Duration.of(lease, unit.toChronoUnit()));
    }

    /** Waits so long (zero: one try) for a lock that lasts for the lease at most, as {@link #lock(Duration)} says. */
    public boolean tryLock(Duration timeout, Duration lease) throws InterruptedException {
        return take(Asking.nanos(timeout), true, fixed(lease));
    }

    /** Does what {@link #tryLock(Duration, Duration)} does. */
    public boolean tryLock(long timeout, long lease, TimeUnit unit) throws InterruptedException {
        return tryLock(Duration.of(timeout, unit.toChronoUnit()), Duration.of(lease, unit.toChronoUnit()));
    }

    private static Duration fixed(Duration lease) {
        if (lease == null || lease.toMillis() < 1) {
            throw new IllegalArgumentException("lease must be at least 1 ms, not " + lease);
        }
        return lease;
    }

    /** {@link NotHeld} if this thread does not hold it, or has lost it. */
    @Override
    public void unlock() {
        Held held = mine();
        Integer count = held.counts.get(limit);
        if (count == null) {
            throw new NotHeld("this thread has not locked " + key);
        }
        if (count > 1) {
            held.counts.put(limit, count - 1);
            return;
        }
        boolean strictest = held.counts.firstKey() == limit;
        held.counts.remove(limit);
        if (held.counts.isEmpty()) {
            locks.mine.get().held.remove(key);
            held.hold.release();
        } else if (strictest) {
            Request weaker = new Request(locks.core.settings, key, held.hold.owner(), held.counts.firstKey(), false, null);
            Hold.await(locks.core.routes.ask(weaker, weaker.downgrade()), 2 * locks.core.replyNanos);
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several programs has no conditions");
    }

    /** For {@code try (var locked = lock.hold())}: an error in the block is never hidden by one of the release. */
    public final class Locked implements AutoCloseable {
        private Locked() {}

        /** The fencing token. */
        public long token() {
            return DLock.this.token();
        }

        /** Runs a command in one step with the look whether the lock is still held under this token. */
        public Object guard(Object... words) {
            return DLock.this.guard(words);
        }

        /** Gives back what was granted here. {@link NotHeld} if it was lost. */
        @Override
        public void close() {
            unlock();
        }
    }

    /** Locks, and unlocks by {@link Locked#close}. */
    public Locked hold() {
        lock();
        return new Locked();
    }

    /** The same with a time-out; null if it passes, which {@code try (…)} takes for nothing to close. */
    public Locked tryHold(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(time, unit) ? new Locked() : null;
    }

    /** This thread's hold: what is left of it, and when it is lost. */
    public Hold current() {
        return mine().hold;
    }

    /** The fencing token of this thread's hold. */
    public long token() {
        return current().token();
    }

    /** Runs a command in one step with the look whether the lock is still held under this thread's token. */
    public Object guard(Object... words) {
        return current().guard(words);
    }

    /** Whether this thread's hold is known to be lost. */
    public boolean isLost() {
        return current().isLost();
    }

    /** Whether this thread has locked it. */
    public boolean isHeldByCurrentThread() {
        return getHoldCount() > 0;
    }

    /** How often this thread has. */
    public int getHoldCount() {
        Held held = locks.mine.get().held.get(key);
        return held == null ? 0 : held.counts.getOrDefault(limit, 0);
    }

    /** Whether anybody holds it. */
    public boolean isLocked() {
        locks.core.check();
        Request any = new Request(locks.core.settings, key, "-", 1, false, null);
        return Hold.await(locks.core.routes.ask(any, Request.words("DLOCK.HELD", key)), 2 * locks.core.replyNanos) != null;
    }

    private Held mine() {
        Held held = locks.mine.get().held.get(key);
        if (held == null) {
            throw new NotHeld("this thread has not locked " + key);
        }
        return held;
    }

    private boolean take(long timeout, boolean interruptible) throws InterruptedException {
        return take(timeout, interruptible, null);
    }

    private boolean take(long timeout, boolean interruptible, Duration lease) throws InterruptedException {
        return take(timeout, interruptible, lease, 1);
    }

    boolean take(long timeout, boolean interruptible, Duration lease, int permits) throws InterruptedException {
        Request.checkPermits(permits, limit);
        if (interruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        locks.core.check();
        Map<String, Held> all = locks.mine.get().held;
        Held held = all.get(key);
        if (held != null && !held.hold.isHeld()) {
            throw new NotHeld(key + (held.hold.isLost() ? " was lost" : " was given back by current().release()"));
        }
        if (held == null || held.counts.firstKey() > limit) {
            Hold outer = held == null ? null : held.hold;
            String owner = outer == null ? locks.owner() : outer.owner();
            Request request = new Request(locks.core.settings, key, owner, limit, permits, ephemeral, outer);
            request.fixed = lease;
            request.unanswered = outer == null ? locks.mine.get().unanswered : null; // an upgrade that is left sends no RELEASE
            Take take = new Take(locks.core, request, timeout).start(false);
            if (DLocks.await(take, interruptible) == null) {
                return false;
            }
            if (outer != null) {
                Upgrade.done(locks.core, outer, request);
            } else {
                held = new Held(new Hold(locks.core, request, onLost));
                all.put(key, held);
            }
            held.permits = permits;
        } else if (permits > held.permits) {
            throw new IllegalArgumentException("permits must be at most " + held.permits + ", which this thread's hold has, not " + permits
                    + ": release it, and ask again");
        }
        held.counts.merge(limit, 1, Integer::sum);
        return true;
    }
}
