// SPDX-License-Identifier: MIT
package dlock;

import static dlock.Clock.NEVER;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** Several locks: all of them, or none. Those of a slot are taken in one step, and slots in one order. */
final class Many implements Lock {
    /** What one command can name: locks of one slot and one limit. */
    private final List<List<DLock>> groups = new ArrayList<>();

    Many(List<DLock> locks) {
        DLock before = null;
        for (DLock one : locks.stream().sorted(Comparator.<DLock, String>comparing(lock -> lock.locks.servers)
                .thenComparing(Many::slot).thenComparing(DLock::key)).toList()) {
            if (before == null || !before.isAskedLike(one) || slot(before) != slot(one)) {
                groups.add(new ArrayList<>());
            }
            groups.get(groups.size() - 1).add(one);
            before = one;
        }
    }

    private static int slot(DLock lock) {
        return lock.locks.sessions.library.connector.slot(lock.key());
    }

    private boolean take(long wait, boolean isInterruptible) throws InterruptedException {
        long end = Clock.after(Clock.now(), wait);
        Deque<DLock> taken = new ArrayDeque<>();
        boolean isDone = false;
        try {
            for (List<DLock> group : groups) {
                List<DLock> some = new ArrayList<>();
                List<DLock> again = new ArrayList<>();
                for (DLock one : group) {
                    boolean isNew = one.held() == null && some.stream().noneMatch(other -> other.key().equals(one.key()));
                    (isNew ? some : again).add(one);
                }
                long left = wait == NEVER ? NEVER : Math.max(0, end - Clock.now());
                if (!some.isEmpty() && !DLock.takeNew(some, left, isInterruptible, NEVER, 1)) {
                    return false;
                }
                some.forEach(taken::push);
                for (DLock one : again) {
                    if (!one.take(left, isInterruptible, NEVER, 1)) {
                        return false;
                    }
                    taken.push(one);
                }
            }
            isDone = true;
            return true;
        } finally {
            if (!isDone) {
                release(taken);
            }
        }
    }

    /** Releases all of them, whatever happens to one. Returns the first failure. */
    private static RuntimeException release(Iterable<DLock> locks) {
        RuntimeException first = null;
        for (DLock one : locks) {
            try {
                one.unlock();
            } catch (RuntimeException error) {
                first = first == null ? error : first;
            }
        }
        return first;
    }

    private boolean uninterrupted(long wait) {
        try {
            return take(wait, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public void lock() {
        uninterrupted(NEVER);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(NEVER, true);
    }

    @Override
    public boolean tryLock() {
        return uninterrupted(0);
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return take(DLock.nanos(time, unit), true);
    }

    /** Releases them, in reverse. {@link NotHeld} if one of them was lost; it releases the others all the same. */
    @Override
    public void unlock() {
        Deque<DLock> reversed = new ArrayDeque<>();
        groups.forEach(group -> group.forEach(reversed::push));
        RuntimeException first = release(reversed);
        if (first != null) {
            throw first;
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("locks of several programs have no conditions");
    }
}
