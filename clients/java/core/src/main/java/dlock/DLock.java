// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.NEVER;

import dlock.DLockException.Deadlock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;
import java.util.function.Predicate;

/**
 * A lock whose owner is the thread, with {@link java.util.concurrent.locks.ReentrantLock}'s manners, but without conditions.
 * Whichever object of one name a thread uses, it is the same lock. Holds of a thread are counted here: to take what it has sends
 * nothing.
 */
public sealed class DLock implements Lock permits DSemaphore {
    /** What one thread holds under one key: how often with which limit. The strictest one is that of the hold. */
    static final class Held {
        final Hold hold;
        final TreeMap<Integer, Integer> counts = new TreeMap<>();
        /** The thread has been told that it holds this no longer: what it locks from then on is a new beginning. */
        private boolean isToldOver;

        Held(Hold hold, int limit) {
            this.hold = hold;
            counts.put(limit, 1);
        }

        /** Tells the thread whether this is held, as far as is known. */
        private boolean tell() {
            isToldOver |= !hold.isHeld();
            return !isToldOver;
        }

        boolean isToldOver() {
            return isToldOver;
        }
    }

    final DLocks locks;
    final int limit;
    private final String key;
    private final boolean isReentrant;
    private volatile Consumer<Hold> onLost;
    private volatile long lease;
    private volatile long maxHold = NEVER;

    DLock(DLocks locks, String key, int limit, boolean isReentrant) {
        this.locks = locks;
        this.key = key;
        this.limit = limit;
        this.isReentrant = isReentrant;
        lease = locks.sessions.settings.lease().toNanos();
        request(List.of(this), NEVER, 1); // a mistake fails where it is made
    }

    /**
     * Has this called once, by a thread of its own, when a hold that was granted to this object is lost. Set it before {@link #lock()}: it
     * does not apply to a hold that was granted before.
     */
    public DLock onLost(Consumer<Hold> onLost) {
        if (onLost == null) {
            throw new IllegalArgumentException("onLost must not be null");
        }
        this.onLost = onLost;
        return this;
    }

    /** Sets how long what this object takes lasts after the program dies or loses the server, instead of that of the {@link Settings}. */
    public DLock lease(Duration lease) {
        this.lease = Asking.atLeastOneMs("lease", lease);
        return this;
    }

    /** Sets how long what this object takes may be held: then the client reports it lost, and releases it. */
    public DLock maxHold(Duration maxHold) {
        this.maxHold = Asking.atLeastOneMs("maxHold", maxHold);
        return this;
    }

    /** Returns the lock's name. */
    public String key() {
        return key;
    }

    /** Waits for the lock, over every reconnection and interrupt. */
    @Override
    public void lock() {
        uninterrupted(NEVER, NEVER, 1);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(NEVER, true, NEVER, 1);
    }

    /** Never overtakes who waits. An error if nobody can say whether it is taken. */
    @Override
    public boolean tryLock() {
        return uninterrupted(0, NEVER, 1);
    }

    /** False if it is taken for so long; {@link DLockException.LockTimeout} if nobody could say so. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return take(nanos(time, unit), true, NEVER, 1);
    }

    /** Does what {@link #tryLock(long, TimeUnit)} does. */
    public boolean tryLock(Duration timeout) throws InterruptedException {
        return take(Asking.nanos(timeout), true, NEVER, 1);
    }

    /**
     * Waits for the lock, and holds it for that time at most: then the client reports it lost, and releases it, even if the thread keeps
     * working. A lock that this thread holds already is entered as it is.
     */
    public void lock(Duration maxHold) {
        uninterrupted(NEVER, Asking.atLeastOneMs("lease", maxHold), 1);
    }

    /** Does what {@link #lock(Duration)} does. */
    public void lock(long maxHold, TimeUnit unit) {
        lock(Duration.of(maxHold, unit.toChronoUnit()));
    }

    /** Waits so long (zero: one try) for a lock that is held for that time at most, as {@link #lock(Duration)} says. */
    public boolean tryLock(Duration timeout, Duration maxHold) throws InterruptedException {
        return take(Asking.nanos(timeout), true, Asking.atLeastOneMs("lease", maxHold), 1);
    }

    /** Does what {@link #tryLock(Duration, Duration)} does. */
    public boolean tryLock(long timeout, long maxHold, TimeUnit unit) throws InterruptedException {
        return tryLock(Duration.of(timeout, unit.toChronoUnit()), Duration.of(maxHold, unit.toChronoUnit()));
    }

    static long nanos(long time, TimeUnit unit) {
        if (unit == null) {
            throw new IllegalArgumentException("unit must not be null");
        }
        return Math.min(NEVER, Math.max(0, unit.toNanos(time)));
    }

    /** {@link NotHeld} if this thread does not hold it, or has lost it. */
    @Override
    public void unlock() {
        unlock(Hold::release);
    }

    private void unlock(Consumer<Hold> release) {
        Held held = mine();
        if (held.counts.merge(limit, -1, Integer::sum) > 0) {
            return;
        }
        boolean isStrictest = held.counts.firstKey() == limit;
        held.counts.remove(limit);
        if (held.counts.isEmpty()) {
            locks.mine.get().pop(key);
            release.accept(held.hold);
        } else if (isStrictest) { // a writer that continues as a reader
            Hold hold = held.hold;
            List<Object> words = new ArrayList<>(List.of("DLOCK.DOWNGRADE", key, hold.owner()));
            words.addAll(held.counts.firstKey() == Request.SHARED ? List.of("SHARED") : List.of("LIMIT", held.counts.firstKey()));
            words.addAll(List.of("TOKEN", hold.token()));
            Hold.await(locks.sessions.ask(key, words.toArray()));
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several programs has no conditions");
    }

    /** For {@code try (var locked = lock.hold())}: an error in the block is never hidden by one of the release. */
    public final class Locked implements AutoCloseable {
        private final Thread thread = Thread.currentThread();
        private final Held held = mine();
        private final int depth = depth();

        private Locked() {}

        /** Returns the fencing token. */
        public long token() {
            return DLock.this.token();
        }

        /** Runs a command in one step with the check that the lock is still held under this token. */
        public Object guard(Object... words) {
            return DLock.this.guard(words);
        }

        /** Releases what was granted here, unless the thread has done so. {@link NotHeld} if it was lost. */
        @Override
        public void close() {
            boolean isDone = thread == Thread.currentThread() && depth() < depth;
            if (!isDone) {
                unlock(Hold::close);
            } else if (held.isToldOver()) { // the thread has taken another lock since, which has forgotten the loss
                held.hold.close();
            }
        }
    }

    /** Locks, and unlocks by {@link Locked#close}. */
    public Locked hold() {
        lock();
        return new Locked();
    }

    /** Does so with a time-out; null if it passes, which {@code try (…)} takes for nothing to close. */
    public Locked tryHold(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(time, unit) ? new Locked() : null;
    }

    /** Returns this thread's hold: what is left of it, and when it is lost. */
    public Hold current() {
        return mine().hold;
    }

    /** Returns the fencing token of this thread's hold. */
    public long token() {
        return current().token();
    }

    /** Runs a command in one step with the check that the lock is still held under this thread's token. */
    public Object guard(Object... words) {
        return current().guard(words);
    }

    /** Returns whether this thread's hold is known to be lost. */
    public boolean isLost() {
        return current().isLost();
    }

    /**
     * Returns whether this thread has locked it, and has not lost it, as far as is known. Once this has been false, {@code lock()} takes the
     * lock again. A thread that has not asked gets {@link NotHeld} from {@code lock()} until it has unlocked what it has lost.
     */
    public boolean isHeldByCurrentThread() {
        return getHoldCount() > 0;
    }

    /** Returns how often this thread has: 0 once the lock is known to be lost, as {@link #isHeldByCurrentThread} says. */
    public int getHoldCount() {
        return count(Held::tell);
    }

    /** Returns how many calls of {@code unlock()} are due, also for what is lost. */
    private int depth() {
        return count(held -> true);
    }

    private int count(Predicate<Held> which) {
        var holds = locks.mine.get().held.get(key);
        return holds == null ? 0 : holds.stream().filter(which).mapToInt(held -> held.counts.getOrDefault(limit, 0)).sum();
    }

    /** Returns whether the thread of that {@link Thread#getId id} has locked it in this program, as far as is known. */
    public boolean isHeldByThread(long threadId) {
        String actor = DLocks.Mine.actor(threadId);
        return locks.sessions.under(() -> locks.sessions.held.values().stream().anyMatch(
                hold -> !hold.isOver && hold.key.equals(key) && hold.owner.startsWith(locks.sessions.name + "/" + actor + "#")));
    }

    /** Returns whether anybody holds it. */
    public boolean isLocked() {
        return Hold.await(locks.heldBy(key)) != null;
    }

    /** Returns how many milliseconds the lease has left that ends last; -2 if nobody holds it. */
    public long remainTimeToLive() {
        return Hold.await(locks.heldBy(key)) instanceof List<?> held ? Sessions.number(held.get(2)) : -2;
    }

    /**
     * Takes the lock away from whoever holds it, for an operator: their holds are lost, and the queue moves on. Returns whether anybody
     * held it. The program's user needs the right to {@code DLOCK.FORCERELEASE}.
     */
    public boolean forceUnlock() {
        return Sessions.number(Hold.await(locks.sessions.ask(key, "DLOCK.FORCERELEASE", key))) > 0;
    }

    private Held mine() {
        Held held = locks.mine.get().last(key);
        if (held == null || !held.counts.containsKey(limit)) {
            throw new NotHeld("this thread has not locked " + key);
        }
        return held;
    }

    private Request request(List<DLock> some, long maxHold, int permits) {
        return new Request(some.stream().map(DLock::key).toList(), lease, Math.min(maxHold, this.maxHold), locks.mine.get().actor, limit,
                permits, some.stream().map(lock -> lock.onLost).toList());
    }

    /** Returns whether one command can take both. */
    boolean isAskedLike(DLock other) {
        return locks == other.locks && limit == other.limit && lease == other.lease && maxHold == other.maxHold;
    }

    final boolean uninterrupted(long wait, long maxHold, int permits) {
        try {
            return take(wait, false, maxHold, permits);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    final boolean take(long wait, boolean isInterruptible, long maxHold, int permits) throws InterruptedException {
        locks.sessions.check();
        if (isInterruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Held held = held();
        if (held == null) {
            return takeNew(List.of(this), wait, isInterruptible, maxHold, permits);
        }
        if (!held.hold.isHeld()) {
            throw new NotHeld(key + (held.hold.isLost() ? " was lost" : " was given back by current().release()"));
        }
        if (held.counts.firstKey() <= limit) {
            held.counts.merge(limit, 1, Integer::sum);
            return true;
        }
        if (wait == NEVER) {
            throw new Deadlock("DEADLOCK this thread shares " + key + ": it can have it alone when it has given that back");
        }
        return false;
    }

    /** Returns what this thread holds and may enter again, or null. */
    Held held() {
        Held held = isReentrant ? locks.mine.get().last(key) : null;
        return held == null || held.isToldOver ? null : held;
    }

    /** Takes locks of one slot, none of which this thread has, in one step. They are of one limit. */
    static boolean takeNew(List<DLock> some, long wait, boolean isInterruptible, long maxHold, int permits) throws InterruptedException {
        DLock first = some.get(0);
        Request request = first.request(some, maxHold, permits);
        List<Hold> holds = first.locks.take(request, wait, isInterruptible);
        for (int i = 0; holds != null && i < some.size(); i++) {
            first.locks.mine.get().push(some.get(i).key, new Held(holds.get(i), first.limit));
        }
        return holds != null;
    }
}
